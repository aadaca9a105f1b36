//! Tests for the PyTorch benchmark with a PyTorch stub: failed and hung rows are recorded, and the
//! other rows are measured.

use super::kit::{repository, torch_stub};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

struct PytorchRun {
    code: Option<i32>,
    said: String,
    /// Rows of the file: name, whether it passed, detail.
    rows: Vec<(String, bool, String)>,
    file: Value,
}

/// Runs MiniLM with one text, and keeps the rows in `folder`.
fn pytorch(folder: &Path, behaviour: &str, more: &[&str]) -> PytorchRun {
    let out = folder.join("pytorch.json");
    let mut python = Command::new("python3");
    python.arg(repository().join("bench/python/pytorch_gpu.py"));
    python.args(["--networks", "minilm", "--batches", "1", "--functions", "2", "--row-s", "2"]).args(more);
    python.arg(&out).env("PYTHONPATH", torch_stub()).env("TORCH_STUB", behaviour);
    // The fake library's folder has a management library (NVML) for the stub's device.
    python.env("LD_LIBRARY_PATH", weir_fake_cuda::library().parent().unwrap());
    let Output { status, stderr, .. } = python.output().unwrap();
    let said = String::from_utf8_lossy(&stderr).into_owned();
    let file: Value = fs::read(&out).map_or(Value::Null, |json| serde_json::from_slice(&json).unwrap());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rows = file["rows"].as_array().cloned().unwrap_or_default();
    let row = |row: &Value| {
        let what = text(&row["what"]).replace("minilm, tf32, batch 1: ", "");
        (what, row["passed"] == true, text(&row["detail"]))
    };
    PytorchRun { code: status.code(), said, rows: rows.iter().map(row).collect(), file }
}

/// Names of the passed and of the failed rows.
fn split(run: &PytorchRun) -> (Vec<&str>, Vec<&str>) {
    let of = |passed| run.rows.iter().filter(move |row| row.1 == passed).map(|row| row.0.as_str()).collect();
    (of(true), of(false))
}

const WAYS: [&str; 5] =
    ["PyTorch, eager", "PyTorch, compiled", "PyTorch, graph", "PyTorch, 2 processes", "PyTorch, 2 streams"];

#[test]
fn rows_are_compared_with_the_doctors_checks() {
    let folder = tempfile::tempdir().unwrap();
    let doctor = folder.path().join("gpu.json");
    let captured = "minilm, tf32, batch 1: run again, as a graph";
    let checks =
        json!([{"what": captured, "passed": true, "time_ns": 3_000_000}, {"what": "of a later version"}]);
    fs::write(&doctor, json!({ "checks": checks }).to_string()).unwrap();
    let beside = doctor.to_str().unwrap();
    let run = pytorch(folder.path(), "", &["--beside", beside]);
    assert_eq!(run.code, Some(0), "{}", run.said);
    let ratios: Vec<_> =
        ["eager", "compiled", "graph"].map(|way| format!("Weir, beside PyTorch, {way}")).into();
    let names: Vec<_> = WAYS.map(str::to_owned).into_iter().chain(ratios).collect();
    assert_eq!(run.rows.iter().map(|row| row.0.clone()).collect::<Vec<_>>(), names);
    let eager = &run.file["rows"][0];
    assert_eq!(eager["time_ns"], 1_500_000);
    assert!(eager["clocks"]["sm_clock_mhz"].is_u64() && eager["clocks"]["power_w"].is_f64(), "{eager}");
    assert_eq!(run.rows[6].2, "2.00 of PyTorch's, at most 1.25: missed");

    fs::write(&doctor, r#"{"checks": [{"wh"#).unwrap();
    let run = pytorch(folder.path(), "", &["--beside", beside]);
    assert!(run.code == Some(0) && run.said.contains("nothing is compared"), "{}", run.said);
    assert_eq!(run.rows.len(), WAYS.len(), "rows that were measured before are lost");
}

#[test]
fn hung_row_is_recorded_and_repeated_by_the_next_run() {
    let folder = tempfile::tempdir().unwrap();
    let run = pytorch(folder.path(), "hang", &[]);
    assert_eq!(run.code, Some(1), "{}", run.said);
    let (passed, failed) = split(&run);
    assert_eq!((passed.len(), failed), (4, vec!["PyTorch, compiled"]));
    assert!(run.rows.iter().any(|row| row.2.contains("longer than 2 s")), "{:?}", run.rows);
    let run = pytorch(folder.path(), "", &[]);
    assert_eq!((run.code, split(&run).0.len()), (Some(0), 5), "{}", run.said);
    assert_eq!(
        run.said.matches("PyTorch, ").count(),
        1,
        "rows that were measured before were measured again: {}",
        run.said
    );
}

#[test]
fn faulting_row_is_recorded_and_the_next_row_runs_in_a_new_process() {
    let folder = tempfile::tempdir().unwrap();
    let run = pytorch(folder.path(), "fault", &[]);
    assert_eq!(run.code, Some(1), "{}", run.said);
    let (passed, failed) = split(&run);
    assert_eq!((passed.len(), failed), (4, vec!["PyTorch, graph"]));
    assert!(run.rows.iter().any(|row| row.2.contains("illegal memory access")), "{:?}", run.rows);
}

#[test]
fn run_over_its_time_limit_keeps_rows_and_reports_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let run = pytorch(folder.path(), "hang", &["--row-s", "100", "--limit-s", "8"]);
    assert!(run.code == Some(1) && run.said.contains("3 rows were left out"), "{}", run.said);
    assert_eq!(split(&run), (vec!["PyTorch, eager"], vec!["PyTorch, compiled"]));
}

#[test]
fn rows_of_another_torch_version_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let of_another = json!({"of": {"torch": "1.0", "device": "stub", "repeats": 50}, "rows": []});
    fs::write(folder.path().join("pytorch.json"), of_another.to_string()).unwrap();
    let run = pytorch(folder.path(), "", &[]);
    assert!(run.code == Some(2) && run.said.contains("remove it, or give another"), "{}", run.said);
    assert_eq!(run.file, of_another, "the file of the other version was changed");
}
