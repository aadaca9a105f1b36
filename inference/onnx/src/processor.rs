//! Identity of the processor that a fully optimised model can be loaded on.

use weir_types::ContentHash;

/// Kind of the current processor and ONNX Runtime. A model laid out for one kind gives wrong
/// answers on another.
///
/// The library must be loaded.
pub(crate) fn processor() -> String {
    let build = ContentHash::from_content(ort::info().as_bytes()).to_string();
    let build = build.get(..12).unwrap_or_default();
    format!("{} {} onnxruntime {build}", std::env::consts::ARCH, vectors())
}

/// The widest vector registers of the processor: ONNX Runtime lays out weights by their width.
#[cfg(target_arch = "x86_64")]
fn vectors() -> &'static str {
    if std::arch::is_x86_feature_detected!("avx512f") {
        "avx512f"
    } else if std::arch::is_x86_feature_detected!("avx2") {
        "avx2"
    } else if std::arch::is_x86_feature_detected!("avx") {
        "avx"
    } else {
        "sse2"
    }
}

/// On other architectures, all processors have the same width.
#[cfg(not(target_arch = "x86_64"))]
fn vectors() -> &'static str {
    "baseline"
}
