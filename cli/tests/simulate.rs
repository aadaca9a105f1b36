//! `weir simulate`: schedules of workloads, and errors for invalid arguments.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};
use weir_scheduler::{Event, Recorder, Setup};
use weir_types::NodeId;

const WORKLOAD: &str = r#"{"models": [[1000, 2.0, 1.0], [7000, 3.0, 1.5]], "requests": [[0.0, 0], [0.5, 1], [1.0, 0]], "capacity": 8000, "gpus": 2}"#;

fn weir(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("simulate").args(arguments).current_dir(folder).env_clear().output().unwrap()
}

fn ok(folder: &Path, arguments: &[&str]) -> Value {
    let output = weir(folder, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn workload_file_is_simulated_and_its_schedule_written() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("day.json"), WORKLOAD).unwrap();
    let arguments =
        ["--workload", "day.json", "--policy", "lb", "--dump", "out.json", "--plots", "plots", "--json"];
    let rows = ok(folder.path(), &arguments);
    assert_eq!((rows.as_array().unwrap().len(), &rows[0]["policy"]), (1, &"lb".into()));
    let dump: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("out.json")).unwrap()).unwrap();
    // The third request waits for the first device, which has its model.
    let expected = serde_json::json!([
        [0.0, 0, 0, 0.0, 3.0, false],
        [0.5, 1, 1, 0.5, 5.0, false],
        [1.0, 0, 0, 3.0, 4.0, true]
    ]);
    assert_eq!(dump["requests"], expected);
    let plot = std::fs::read_to_string(folder.path().join("plots/mean-latency.svg")).unwrap();
    assert!(plot.starts_with("<svg"));
    std::fs::copy(folder.path().join("out.json"), folder.path().join("again.json")).unwrap();
    assert_eq!(
        ok(folder.path(), &["--workload", "again.json", "--policy", "lb", "--json"]),
        rows,
        "a dump is a workload"
    );
}

#[test]
fn device_rule_hand_over_and_failures_can_be_chosen() {
    /// Shorter than the work that is committed ahead, and exact in binary.
    const RUN_S: f64 = 1.0 / 256.0;
    let folder = tempfile::tempdir().unwrap();
    // The second request arrives during the load, and the third one at an idle device.
    // Under committed work, the second one is committed ahead, because the runs are short.
    let requests = [(0.0, 0), (0.5, 0), (10.0, 0)];
    let workload = json!({"models": [[1000, 2.0, RUN_S]], "requests": requests, "capacity": 8000, "gpus": 1})
        .to_string();
    std::fs::write(folder.path().join("three.json"), workload).unwrap();
    let requests = |more: &[&str]| {
        let arguments = ["--workload", "three.json", "--policy", "lb", "--dump", "out.json", "--json"];
        ok(folder.path(), &[&arguments[..], more].concat());
        let dump = std::fs::read(folder.path().join("out.json")).unwrap();
        serde_json::from_slice::<Value>(&dump).unwrap()["requests"].clone()
    };
    let ends = |requests: &Value| [0, 1, 2].map(|at| requests[at][4].as_f64().unwrap());
    let counted = requests(&["--rule", "counted-invocations"]);
    assert_eq!(counted, requests(&[]), "the papers' rule is the default");
    let loaded = 2.0 + RUN_S;
    assert_eq!(
        (ends(&counted), counted[1][3].as_f64()),
        ([loaded, loaded + RUN_S, 10.0 + RUN_S], Some(loaded))
    );
    let committed = requests(&["--rule", "committed-work"]);
    assert!(committed[1][3].as_f64() < Some(2.0), "{committed}");
    let handed_over = requests(&["--rule", "committed-work", "--hand-over-ms", "250"]);
    assert_eq!(ends(&handed_over)[2], ends(&committed)[2] + 0.25, "{handed_over} {committed}");
    let failed = requests(&["--rule", "committed-work", "--fail-share", "1"]);
    assert!(ends(&failed)[2] < ends(&committed)[2], "{failed} {committed}");
    assert!(!weir(folder.path(), &["--fail-share", "1.5"]).status.success());
    assert!(!weir(folder.path(), &["--hand-over-ms", "-1"]).status.success());
}

#[test]
fn default_policy_runs_and_equal_seeds_give_equal_results() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--preset", "overload", "--functions", "5", "--minutes", "1", "--seed", "3", "--json"];
    let rows = ok(folder.path(), &arguments);
    assert_eq!(rows[0]["policy"], "finish-first");
    assert_eq!(rows, ok(folder.path(), &arguments));
    let all = ok(folder.path(), &["--minutes", "1", "--policy", "all", "--seeds", "2", "--json"]);
    assert_eq!(all.as_array().unwrap().len(), 10);
}

#[test]
fn device_options_override_the_workload_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("day.json"), WORKLOAD).unwrap();
    let one = ["--workload", "day.json", "--devices", "1", "--policy", "lb", "--json"];
    // One after the other: 3 s, 4.5 s, and 1 s.
    assert_eq!(ok(folder.path(), &one)[0]["makespan"], 8.5);
    // If both models do not fit, the first has to be loaded again.
    let tight = [&one[..], &["--capacity-mb", "7999"]].concat();
    assert_eq!(ok(folder.path(), &tight)[0]["makespan"], 10.5);
    let unsaid = WORKLOAD.replace(r#", "capacity": 8000, "gpus": 2"#, "");
    std::fs::write(folder.path().join("unsaid.json"), unsaid).unwrap();
    let devices = ["--workload", "unsaid.json", "--policy", "lb", "--json"];
    assert_eq!(ok(folder.path(), &devices)[0]["miss"], 1.0, "twelve devices, each new to its model");
}

/// Lost nodes lose their runs, and equal arguments give equal results.
#[test]
fn lost_nodes_lose_only_their_running_requests() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--minutes", "1", "--nodes", "4", "--mixed", "--lose-every-s", "20", "--json"];
    let rows = ok(folder.path(), &arguments);
    let lost = rows[0]["rejected"].as_f64().unwrap();
    assert!(lost > 0.0 && lost < 0.1, "{lost}");
    assert_eq!(rows, ok(folder.path(), &arguments));
}

#[test]
fn workflows_are_simulated_from_a_file_and_from_the_preset() {
    let folder = tempfile::tempdir().unwrap();
    let steps = json!([{"name": "a", "model": "m"}, {"name": "b", "model": "m", "after": ["a"]}]);
    let workload = json!({
        "devices": [{"kind": "cpu", "count": 1, "mb": 100, "price": 1000}],
        "models": [{"name": "m", "mb": 10, "run_ms": {"cpu": 10}}],
        "workflows": [{"name": "w", "steps": steps, "slo_ms": 30, "cost_slo": 20}],
        "requests": [[0.0, "w"], [0.001, "w"]],
        "warm": true,
        "seconds": 0.1,
    });
    std::fs::write(folder.path().join("flows.json"), workload.to_string()).unwrap();
    let rows = ok(folder.path(), &["workflows", "--workload", "flows.json", "--json"]);
    let of = |row: usize, key: &str| rows[row][key].clone();
    let goodputs: Vec<Value> = (0..4).map(|row| of(row, "goodput")).collect();
    // One of the two in 0.1 s. FIFO runs both, and finishes the second one too late.
    assert_eq!(goodputs, vec![json!(10.0); 4], "{rows}");
    assert_eq!(
        (of(0, "cost_goodput"), of(1, "given_up"), of(2, "rejected")),
        (20.0.into(), 0.5.into(), 0.5.into())
    );
    let later = ["workflows", "--workload", "flows.json", "--slo", "40ms", "--policy", "admission", "--json"];
    assert_eq!(ok(folder.path(), &later)[0]["goodput"], 20.0);
    let preset = ["workflows", "--slo", "20ms", "--slo", "0.04s", "--seeds", "2", "--json"];
    let rows = ok(folder.path(), &preset);
    assert_eq!((rows.as_array().unwrap().len(), &rows[7]["slo_ms"]), (8, &40.0.into()));
    assert_eq!(rows, ok(folder.path(), &preset));
    for (arguments, why) in [
        (["workflows", "--slo", "20x"], "500ms"),
        (["workflows", "--policy", "lalb"], "admission"),
        (["workflows", "--preset", "trace"], "pipelines"),
        (["workflows", "--workload", "absent.json"], "absent.json"),
    ] {
        let output = weir(folder.path(), &arguments);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && told.contains(why), "{arguments:?}: {told}");
    }
}

#[test]
fn invalid_workloads_and_options_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("large.json"), WORKLOAD.replace("8000", "5000")).unwrap();
    std::fs::write(folder.path().join("day.json"), WORKLOAD).unwrap();
    let cases: [(&[&str], i32, &str); 8] = [
        // Options that a workload file already determines are rejected.
        (&["--workload", "day.json", "--functions", "3"], 2, "--functions"),
        (&["--workload", "day.json", "--capacity-mb", "5000"], 2, "do not fit"),
        (&["--azure", "day.json", "--tenants", "3"], 2, "--tenants"),
        (&["--policy", "fastest"], 2, "finish-first"),
        (&["--preset", "nonesuch"], 2, "overload"),
        (&["--workload", "absent.json"], 1, "absent.json"),
        (&["--workload", "large.json"], 1, "do not fit"),
        (&["--capacity-mb", "100"], 2, "do not fit"),
    ];
    for (arguments, code, why) in cases {
        let output = weir(folder.path(), arguments);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {told}");
        assert!(told.contains(why), "{arguments:?}: {told}");
    }
}

/// A recording replays, and an altered recording is reported.
#[test]
fn recording_is_replayed_and_differences_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::default();
    let mut scheduler = setup.build();
    let mut recorder = Recorder::new(&setup, 10_000);
    let up = Event::NodeUp { node: NodeId(0), devices: Vec::new() };
    recorder.handle(&mut scheduler, 0, up, &mut Vec::new());
    recorder.handle(&mut scheduler, 1, Event::Woken, &mut Vec::new());
    let lines = String::from_utf8(recorder.take_lines()).unwrap();
    std::fs::write(folder.path().join("record.jsonl"), &lines).unwrap();
    let replayed = ok(folder.path(), &["--replay", "record.jsonl", "--json"]);
    assert_eq!(replayed, serde_json::json!({"calls": 2, "actions": 0, "is_cut_short": false}));
    let other = lines.replacen("\"actions\":[]", "\"actions\":[{\"wake_at\":5}]", 1);
    std::fs::write(folder.path().join("other.jsonl"), other).unwrap();
    let output = weir(folder.path(), &["--replay", "other.jsonl"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("line 2") && told.contains("wake_at"), "{told}");
}
