//! `weir doctor --gpu`: each stage runs in its own process, and its failures are reported.

use super::libraries::beside_the_driver;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use weir_tests::{TestNode, children, eventually, signal};

/// Finished run of the doctor.
struct DoctorRun {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: String,
}

impl DoctorRun {
    #[track_caller]
    fn checks(&self) -> Vec<Value> {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stderr))
    }

    #[track_caller]
    fn check(&self, case: &str) -> Value {
        let mut found = self.checks().into_iter().filter(|check| check["case"] == case);
        let check = found.next().unwrap_or_else(|| panic!("no check of {case}: {}", self.stderr));
        assert_eq!(found.next(), None, "one check only");
        check
    }
}

/// Command for the doctor on a fake driver with these settings, with minimal repetitions.
fn command(settings: &str, arguments: &[&str]) -> Command {
    let mut doctor = Command::new(TestNode::builder().binary());
    doctor.args(["doctor", "--gpu", "--json", "--warm-up-ms", "0"]).args(arguments);
    if !arguments.contains(&"--repeats") {
        doctor.args(["--repeats", "1"]);
    }
    doctor.env("WEIR_CUDA_LIBRARY", weir_fake_cuda::library());
    doctor.env("WEIR_FAKE_CUDA", format!("devices=1,seed=3{settings}"));
    doctor
}

async fn run(mut command: Command) -> DoctorRun {
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.expect("a thread").expect("weir");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    DoctorRun { status: output.status, stdout: output.stdout, stderr }
}

async fn doctor(settings: &str, arguments: &[&str]) -> DoctorRun {
    run(command(settings, arguments)).await
}

fn kept(out: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(out).ok()?).expect("whole JSON at any time")
}

#[tokio::test]
async fn fault_fails_its_case_and_the_stage_continues() {
    let cases = ["--case", "softmax, fp32", "--case", "sum of rows", "--case", "top 5, fp32"];
    let run = doctor(",fault_kernel=reduce_f32", &cases).await;
    assert_eq!(run.status.code(), Some(1), "{}", run.stderr);
    for case in ["sum of rows, fp32, own", "sum of rows, tf32, own"] {
        let check = run.check(case);
        let detail = check["detail"].as_str().unwrap_or_default();
        assert!(check["passed"] == false && detail.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{check}");
        let launch = &check["launches"][0];
        assert_eq!(launch["kernel"], "reduce_f32", "{check}");
        assert!(launch["grid"][0].as_u64() > Some(0) && launch["block"][0].as_u64() > Some(0), "{check}");
        assert!(launch["shared_bytes"].is_u64(), "{check}");
    }
    let others =
        ["softmax, fp32, own", "sum of rows, fp16, own", "sum of rows, bf16, own", "top 5, fp32, own"];
    for case in others {
        assert_eq!(run.check(case)["passed"], true, "{case}");
    }
    assert_eq!(run.checks().len(), 6);
}

#[tokio::test]
async fn hanging_stage_is_killed_and_the_next_stage_runs() {
    let cases = ["--stage", "operations,transfers", "--case", "softmax, fp32", "--case", "64 KiB"];
    let limit = ["--stage-time-s", "5"];
    let run = doctor(",fault_kernel=softmax_f32,fault=-1", &[&cases[..], &limit].concat()).await;
    assert_eq!(run.status.code(), Some(1), "{}", run.stderr);
    let check = run.check("softmax, fp32, own");
    let detail = check["detail"].as_str().unwrap_or_default();
    assert!(check["passed"] == false && detail.contains("longer than 5 s (--stage-time-s)"), "{check}");
    assert_eq!(check["launches"][0]["kernel"], "softmax_f32", "{check}");
    let copied = run.checks().into_iter().filter(|check| check["stage"] == "transfers");
    assert!(copied.inspect(|check| assert_eq!(check["passed"], true, "{check}")).count() > 0);
}

#[tokio::test]
async fn case_without_progress_is_killed_and_the_stage_continues() {
    let cases = ["--case", "softmax, fp32", "--case", "top 5, fp32", "--case-time-s", "5"];
    let run = doctor(",fault_kernel=softmax_f32,fault=-1", &cases).await;
    assert_eq!(run.status.code(), Some(1), "{}", run.stderr);
    let check = run.check("softmax, fp32, own");
    let detail = check["detail"].as_str().unwrap_or_default();
    assert!(check["passed"] == false && detail.contains("no progress for 5 s"), "{check}");
    assert_eq!(run.check("top 5, fp32, own")["passed"], true, "{}", run.stderr);
}

#[tokio::test]
async fn process_killed_by_a_signal_fails_its_case() {
    let settings = ",fault_kernel=softmax_f32,fault_signal=9";
    let run = doctor(settings, &["--case", "softmax, fp32", "--case", "top 5, fp32"]).await;
    assert_eq!(run.status.code(), Some(1), "{}", run.stderr);
    let check = run.check("softmax, fp32, own");
    let detail = check["detail"].as_str().unwrap_or_default();
    assert!(check["passed"] == false && detail.contains("SIGKILL"), "{check}");
    assert_eq!(check["launches"][0]["kernel"], "softmax_f32", "{check}");
    assert_eq!(run.check("top 5, fp32, own")["passed"], true, "{}", run.stderr);
}

#[tokio::test]
async fn stage_is_abandoned_after_the_restart_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("gpu.json");
    // Every process of the stage faults in its first launch.
    let mut doctor = command(",launches_left=0", &["--stage", "operations"]);
    doctor.arg(&out);
    let run = run(doctor).await;
    assert_eq!(run.status.code(), Some(1), "{}", run.stderr);
    let checks = run.checks();
    // The first process and eight restarts.
    assert_eq!(checks.iter().filter(|check| check["passed"] == false).count(), 9, "{}", run.stderr);
    let kept = kept(&out).expect("a file");
    assert!(kept["finished"].as_array().is_some_and(Vec::is_empty), "{kept}");
}

#[tokio::test]
async fn wrong_values_are_reported_with_index_and_launch() {
    let run = doctor(",idle_kernel=reduce_f32", &["--case", "sum of rows, fp32"]).await;
    assert_eq!(run.status.code(), Some(1), "{}", run.stderr);
    let check = run.check("sum of rows, fp32, own");
    let worst = &check["worst"];
    assert!(worst["index"].is_u64() && worst["expected"].is_f64(), "{check}");
    assert!(worst["found"].is_number() || worst["found"] == "NaN", "{check}");
    assert_eq!(check["launches"][0]["kernel"], "reduce_f32", "{check}");
    assert!(run.stderr.contains("instead of") && run.stderr.contains("reduce_f32 grid"), "{}", run.stderr);
}

#[tokio::test]
async fn cases_are_listed_and_unknown_cases_rejected() {
    let run = doctor("", &["--list-cases", "--stage", "memory,launches"]).await;
    let listed = run.checks();
    assert!(listed.contains(&json!({"stage": "memory", "case": "context"})), "{listed:?}");
    assert!(listed.contains(&json!({"stage": "launches", "case": "module gemm from PTX"})), "{listed:?}");
    let run = doctor("", &["--case", "no such case"]).await;
    assert_eq!(run.status.code(), Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("no such case") && run.stderr.contains("--list-cases"), "{}", run.stderr);
}

/// Waits until the doctor runs a case, and returns the PID of its stage process.
async fn until_case(doctor: &mut Child, out: &Path, case: &str) -> u32 {
    eventually("the case runs", async || {
        assert!(doctor.try_wait().expect("a process").is_none(), "the doctor has ended");
        kept(out).filter(|kept| kept["running"]["case"] == case).map(drop)
    })
    .await;
    children(doctor.id()).first().copied().expect("the process of the stage")
}

#[tokio::test]
async fn interrupted_run_keeps_its_results_and_resumes() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("gpu.json");
    // Copies of 1 MiB or more never end.
    let mut stuck = command(",loads_left=0", &["--stage", "transfers"]);
    let mut stuck = stuck.arg(&out).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("weir");
    let stage = until_case(&mut stuck, &out, "2048 KiB").await;
    signal(stuck.id(), "INT");
    let status = tokio::task::spawn_blocking(move || stuck.wait()).await.expect("a thread");
    assert!(!status.expect("a status").success());
    eventually("the process of the stage ends", async || {
        std::fs::read_link(format!("/proc/{stage}/exe")).err().map(drop)
    })
    .await;
    let before = kept(&out).expect("a file");
    let checks = |kept: &Value| kept["checks"].as_array().cloned().unwrap_or_default();
    let cases = |kept: &Value| -> Vec<Value> {
        checks(kept).into_iter().map(|check| check["case"].clone()).collect()
    };
    assert_eq!(cases(&before), ["64 KiB", "64 KiB"], "{before}");

    let mut doctor = command("", &["--stage", "transfers"]);
    doctor.arg(&out);
    let run = run(doctor).await;
    assert!(run.status.success(), "{}", run.stderr);
    assert!(run.stderr.contains("cut off in transfers: 2048 KiB"), "{}", run.stderr);
    let after = kept(&out).expect("a file");
    assert!(checks(&after).starts_with(&checks(&before)), "earlier checks are lost: {after}");
    assert!(cases(&after).contains(&json!("64 KiB behind a load")), "{after}");
    assert_eq!((&after["finished"], &after["running"]), (&json!(["transfers"]), &Value::Null));
}

#[tokio::test]
async fn context_memory_is_measured_with_libraries_installed() {
    let arguments = ["--stage", "environment,memory", "--stage", "functions", "--model", DIGITS];
    let mut doctor = command(",context_bytes=314572800", &arguments);
    doctor.env("WEIR_CUDA_LIBRARY_PATH", beside_the_driver());
    let run = run(doctor).await;
    assert!(run.status.success(), "{}", run.stderr);
    let mib = run.check("context")["memory_bytes"].as_u64().unwrap_or_default() >> 20;
    assert!((300..332).contains(&mib), "{mib} MiB: {}", run.stderr);
    let checks = run.checks();
    let library = checks.iter().find(|check| check["what"] == "cuBLASLt").expect("a check");
    assert!(library["detail"].as_str().is_some_and(|detail| detail.starts_with("13.4.5")), "{library}");
    // 24 functions share one context.
    let shared = checks.iter().find(|check| check["goal"]["unit"] == "% below a process for each");
    let shared = shared.expect("a goal");
    assert!(shared["goal"]["is_met"] == true, "{shared}");
    assert!(shared["detail"].as_str().is_some_and(|detail| detail.starts_with("context 3")), "{shared}");
}

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../functions/classify-digits/model/digits.onnx");

#[tokio::test]
async fn model_stage_without_models_is_rejected() {
    let run = doctor("", &["--stage", "environment,networks"]).await;
    let said = &run.stderr;
    assert!(!run.status.success() && said.contains("networks") && said.contains("--model"), "{said}");
}

#[tokio::test]
async fn missing_driver_is_an_error() {
    let mut doctor = command("", &["--stage", "launches"]);
    doctor.env("WEIR_CUDA_LIBRARY", "/nowhere/libcuda.so.1");
    let run = run(doctor).await;
    assert_eq!(run.status.code(), Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("/nowhere/libcuda.so.1"), "{}", run.stderr);
}

#[tokio::test]
async fn finished_stages_are_kept_only_for_the_same_machine() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("gpu.json");
    let check = async |stages: &str, settings: &str| {
        let mut doctor = command(settings, &["--stage", stages]);
        doctor.arg(&out);
        run(doctor).await
    };
    let run = check("environment,launches", "").await;
    assert!(run.status.success() && run.stderr.contains("one of 64 launches"), "{}", run.stderr);
    let run = check("environment,launches,memory", "").await;
    let said = &run.stderr;
    assert!(run.status.success() && said.contains("launches has passed before"), "{said}");
    assert!(said.contains("another tenant") && !said.contains("one of 64 launches"), "{said}");
    let kept = kept(&out).expect("a file");
    assert_eq!(kept["finished"], json!(["environment", "launches", "memory"]), "{kept}");
    let before = std::fs::read(&out).expect("a file");
    let run = check("environment,launches", ",driver_version=12040").await;
    let said = &run.stderr;
    assert!(!run.status.success() && said.contains("is of another device, driver or library"), "{said}");
    assert_eq!(std::fs::read(&out).expect("a file"), before, "the file of another device was changed");
}

#[tokio::test]
async fn libraries_are_shown_with_their_versions() {
    let mut doctor = command("", &["--stage", "environment"]);
    doctor.env("WEIR_CUDA_LIBRARY_PATH", beside_the_driver());
    let checks = run(doctor).await.checks();
    for (what, version) in [("cuBLASLt", "13.4.5 in "), ("NVRTC", "13.0 in ")] {
        let library = checks.iter().find(|check| check["what"] == what).expect("a line about it");
        let detail = library["detail"].as_str().unwrap_or_default();
        assert!(library["passed"] == true && detail.starts_with(version), "{library}");
    }
}

#[tokio::test]
async fn worker_and_kernel_graph_stages_pass() {
    let run = doctor("", &["--stage", "worker,kernel-graphs", "--repeats", "20", "--model", DIGITS]).await;
    assert!(run.status.success(), "{}", run.stderr);
    let checks = run.checks();
    assert_eq!(checks.len(), 11, "{checks:?}");
    assert!(checks.iter().all(|check| check["passed"] == true), "{checks:?}");
}
