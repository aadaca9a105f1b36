//! Models without weights in the kit.

use super::kit::{repository, run};
use std::fs;
use std::path::Path;
use std::process::Command;

const WEIGHT_BYTES_MIN: usize = 16 << 10;

fn models(command: &str, model: &Path, out: &Path, more: &[&str]) -> Vec<u8> {
    let mut python = Command::new("python3");
    python.arg(repository().join("bench/gpu/models.py")).arg(command).arg(model);
    run(python.arg("--out").arg(out).args(more));
    fs::read(out.join(model.file_name().unwrap())).unwrap()
}

#[test]
fn filled_model_has_the_original_size_and_deterministic_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let digits = repository().join("functions/classify-digits/model/digits.onnx");
    let original = fs::read(&digits).unwrap();
    let skeleton = models("strip", &digits, &at("skeleton"), &[]);
    assert!(skeleton.len() < WEIGHT_BYTES_MIN, "{}", skeleton.len());
    let skeleton = at("skeleton/digits.onnx");
    let filled = models("fill", &skeleton, &at("filled"), &[]);
    assert!(filled.len() == original.len() && filled != original);
    assert!(filled == models("fill", &skeleton, &at("again"), &[]));
    assert!(filled != models("fill", &skeleton, &at("other"), &["--seed", "1"]));
    // Filling a model that already has weights gives the same file.
    assert!(filled == models("fill", &at("filled/digits.onnx"), &at("filled again"), &[]));
}

#[test]
fn invalid_model_file_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.onnx");
    fs::write(&model, [0x3a, 0x7f, 0x08, 0x01]).unwrap();
    let mut python = Command::new("python3");
    python
        .arg(repository().join("bench/gpu/models.py"))
        .arg("strip")
        .arg(&model)
        .arg("--out")
        .arg(folder.path());
    let output = python.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("model.onnx: cut off"), "{said}");
}
