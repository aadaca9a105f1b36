//! Tests for the steps of the script.

use super::kit::{Kit, KitStep, torch_stub};
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

/// Script for the program: skips all stages except environment and launches.
const ONLY_LAUNCHES: &str = r#"case $stage in environment | launches) ;; *) exit 0 ;; esac"#;

/// Script for the program: two kinds of operations instead of all.
const FEW_OPERATIONS: &str =
    r#"[ $stage != operations ] || set -- "$@" --case "softmax, fp32" --case "top 5, fp32""#;

/// Copies the results of a step into the kit, as for the next machine.
fn carry(kit: &Kit, step: &KitStep) {
    fs::create_dir_all(kit.path("results")).unwrap();
    for name in step.files() {
        fs::copy(step.path(&name), kit.path("results").join(name)).unwrap();
    }
}

#[test]
fn kit_is_complete_for_a_machine_with_a_driver() {
    let kit = Kit::new();
    let mut entries: Vec<_> =
        fs::read_dir(kit.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    entries.sort();
    let expected = [
        "go.sh",
        "infer.wasm",
        "libonnxruntime.so.gz",
        "models",
        "models.py",
        "pytorch_gpu.py",
        "serve.py",
        "weir.gz",
    ];
    assert_eq!(entries, expected);
    let step = kit.step("2");
    assert!(step.is_ok, "{}", step.stdout);
    assert_eq!(step.stages(), ["environment", "networks"]);
}

#[test]
fn whole_procedure_passes_on_a_healthy_device() {
    let kit = Kit::with_script(FEW_OPERATIONS);
    let with_torch = |command: &mut Command| {
        command.env("PYTHONPATH", torch_stub());
        command.env("WEIR_GPU_PYTORCH", "--networks minilm --functions 2");
    };
    let mut last = None;
    for number in ["1", "2", "3", "4", "5"] {
        let step = kit.step_with(number, with_torch);
        assert!(step.is_ok, "step {number}: {}", step.stdout);
        carry(&kit, &step);
        last = Some(step);
    }
    let last = last.expect("a step");
    let stages = [
        "environment",
        "operations",
        "transfers",
        "launches",
        "memory",
        "handing-over",
        "networks",
        "functions",
        "worker",
        "kernel-graphs",
    ];
    assert_eq!(last.stages(), stages);
    let rows = last.json("pytorch.json");
    let rows = rows["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["passed"] == true), "{rows:?}");
    let compared = rows.iter().filter(|row| row["what"].as_str().is_some_and(|what| what.contains("Weir, ")));
    assert_eq!(compared.count(), 0, "rows of different models were compared");
    assert_eq!(
        rows.len(),
        2 * 2 * 3 + 2,
        "two precisions, two batches and three ways, and the rows of processes and streams"
    );
}

#[test]
fn node_serves_its_models_and_a_function() {
    let kit = Kit::new();
    let step = kit.step_with("6", |command| {
        command.env("WEIR_GPU_SERVE", "--duration-s 0.2");
    });
    assert!(step.is_ok, "{}\n{}", step.stdout, step.text("log.txt"));
    let live = step.json("live.json");
    let rows = live["rows"].as_array().expect("rows");
    let row = |what: &str| {
        let found = rows.iter().find(|row| row["what"] == format!("digits: {what}"));
        found.unwrap_or_else(|| panic!("no row {what}: {rows:?}"))
    };
    assert_eq!(row("results beside the CPU")["on"], serde_json::json!([["cuda:0", "cpu"]]));
    assert_eq!(row("first inference after an unload")["device"], "cuda:0");
    assert_eq!(row("through a function")["same_bytes"], true);
    assert!(step.text("metrics.txt").contains("weir_inferences_total"));
    assert!(step.text("node.txt").contains("GPU found"));
}

#[test]
fn faulting_or_hung_case_is_recorded_and_other_parts_run() {
    let kit =
        Kit::with_script(&format!("{FEW_OPERATIONS}\ncase $stage in transfers | memory) exit 0 ;; esac"));
    for (fault, why) in [("", "ILLEGAL_ADDRESS"), (",fault=-1", "no progress for 8 s")] {
        let step = kit.step_with("1", |command| {
            command.env("WEIR_FAKE_CUDA", format!("devices=1,seed=3,fault_kernel=softmax_f32{fault}"));
            command.env("WEIR_GPU_DOCTOR", "--repeats 1 --warm-up-ms 0 --case-time-s 8");
        });
        assert!(!step.is_ok && step.part("operations").starts_with("FAILED"), "{}", step.stdout);
        assert!(step.stdout.contains("FAILED softmax, fp32, own"), "{}", step.stdout);
        for part in ["environment", "launches"] {
            assert!(step.part(part).starts_with("ok"), "{}", step.stdout);
        }
        let json = step.json("gpu.json");
        let checks = json["checks"].as_array().expect("checks");
        let failed: Vec<_> = checks.iter().filter(|check| check["passed"] == false).collect();
        let detail = failed[0]["detail"].as_str().unwrap_or_default();
        assert!(failed.len() == 1 && detail.contains(why), "{failed:?}");
        assert!(
            checks.iter().any(|check| check["case"] == "top 5, fp32, own"),
            "the case after the failed case did not run"
        );
    }
}

#[test]
fn failed_or_hung_part_does_not_end_the_step() {
    let kit = Kit::with_script(
        r#"case $stage in
            operations) kill -SEGV $$ ;;
            transfers) sleep 600 ;;
            launches | memory) exit 0 ;;
        esac"#,
    );
    let step = kit.step_with("1", |command| {
        command.env("WEIR_GPU_PART_S", "10");
    });
    assert!(!step.is_ok);
    assert!(step.part("operations").starts_with("FAILED, ended with 139"), "{}", step.part("operations"));
    assert_eq!(step.part("transfers"), "FAILED, took longer than 10 s");
    assert!(["environment", "launches", "memory"].iter().all(|name| step.part(name).starts_with("ok")));
    assert_eq!(step.stages(), ["environment"]);
}

#[test]
fn step_ends_within_its_time_limit() {
    let kit = Kit::with_script("[ $stage = environment ] || sleep 600");
    let step = kit.step_with("1", |command| {
        command.env("WEIR_GPU_STEP_S", "12");
    });
    assert!(!step.is_ok && step.part("operations").starts_with("FAILED, took longer"));
    assert!(step.part("memory").starts_with("LEFT OUT"), "{}", step.part("memory"));
    assert_eq!(step.stages(), ["environment"]);
}

#[test]
fn step_resumes_only_from_results_of_the_same_device() {
    let kit = Kit::with_script(ONLY_LAUNCHES);
    let first = kit.step("1");
    assert!(first.is_ok && !first.text("log.txt").contains("passed before"), "{}", first.stdout);
    assert_eq!(first.files(), ["gpu.json", "gpu.txt", "log.txt", "machine.txt", "summary.txt"]);
    carry(&kit, &first);
    let again = kit.step("1");
    assert!(again.is_ok && again.text("log.txt").contains("launches has passed before"), "{}", again.stdout);
    let other = kit.step_with("1", |command| {
        command.env("WEIR_FAKE_CUDA", "devices=2,seed=3");
    });
    assert!(other.is_ok && !other.text("log.txt").contains("passed before"), "{}", other.stdout);
    assert_eq!(other.json("gpu.before.json"), first.json("gpu.json"));
}

#[test]
fn repeated_step_on_the_same_machine_resumes() {
    let kit = Kit::with_script(ONLY_LAUNCHES);
    let scratch = tempfile::tempdir().unwrap();
    let step = || {
        kit.step_with("1", |command| {
            command.env("WEIR_GPU_SCRATCH", scratch.path());
        })
    };
    assert!(step().is_ok);
    let again = step();
    assert!(again.text("log.txt").contains("launches has passed before"), "{}", again.stdout);
}

#[test]
fn missing_python_and_torch_are_reported() {
    let kit = Kit::with_script(ONLY_LAUNCHES);
    let programs = tempfile::tempdir().unwrap();
    for entry in fs::read_dir("/usr/bin").unwrap().chain(fs::read_dir("/bin").unwrap()) {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("python") {
            // Most programs are in both folders.
            let _ = symlink(&path, programs.path().join(name));
        }
    }
    let without_python = |command: &mut Command| {
        command.env("PATH", programs.path());
    };
    let step = kit.step_with("2", without_python);
    assert!(!step.is_ok && step.part("models").contains("install one"), "{}", step.stdout);
    assert!(step.part("networks").contains("no models"), "{}", step.stdout);
    assert_eq!(step.stages(), ["environment"]);
    let step = kit.step_with("3", without_python);
    assert!(step.part("pytorch").contains("no Python in /nowhere has torch"), "{}", step.stdout);
}
