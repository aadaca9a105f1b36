//! The same as the hidden subcommands of `weir` for models, for tests that run without the `weir`
//! binary.

use bytes::Bytes;
use std::path::Path;
use weir_inference::{Content, FormMaker, FormResult, PrepareError, Variant};
use weir_types::{ContentHash, Platform, Precision};

/// Form of models for a platform that computes in FP16 only.
const FORM: FormMaker = FormMaker { platform: Platform::Cuda, make: form };

fn main() -> std::process::ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some(weir_onnx::CPU_WORKER_COMMAND) => weir_onnx::cpu_worker_main(),
        _ => weir_onnx::prepare_main(&[FORM]),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as `FormMaker` declares it")]
fn form(upload: Bytes, precision: Precision, out: &Path) -> FormResult {
    if precision != Precision::Fp16 {
        return Ok(Err(format!("{precision} is not supported")));
    }
    let skeleton = ContentHash::from_content(&upload);
    let path = out.join(skeleton.to_string());
    std::fs::write(&path, &upload).map_err(|error| PrepareError::io("write", &path, error))?;
    Ok(Ok(Variant {
        platform: Platform::Cuda,
        content: Content::Network,
        only_on: None,
        precision,
        skeleton,
        weights: Vec::new(),
        placeholder: None,
        weight_bytes: upload.len() as u64,
        resident_bytes: upload.len() as u64,
        session_bytes: None,
    }))
}
