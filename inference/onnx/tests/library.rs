//! Errors without a usable ONNX Runtime. A separate program, because a loaded library stays in the
//! process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

mod support;

use std::path::Path;
use support::{MIB, config, id, shared_model};
use weir_device::Arena;
use weir_inference::{
    Backend, ErrorKind, InferenceError, ModelKey, ModelSource, PrepareError, Prepared, Preparer,
};
use weir_onnx::{LibraryError, OnnxRuntime, OnnxRuntimeConfig, find_onnxruntime};
use weir_types::{Batching, ErrorCode, Signature};

fn backend(library: &Path) -> OnnxRuntime {
    OnnxRuntime::new(OnnxRuntimeConfig { library: Some(library.to_owned()), ..config() }, Arena::new(MIB))
}

fn source(folder: &Path) -> ModelSource {
    let prepared = Prepared {
        signature: Signature::default(),
        weight_bytes: 0,
        resident_bytes: 0,
        variants: Vec::new(),
        unsupported: Vec::new(),
    };
    ModelSource {
        key: ModelKey { id: id("any"), generation: 1 },
        prepared: prepared.into(),
        blobs: folder.to_owned(),
        slots: None,
        batching: Batching::default(),
        meter: weir_inference::Meter::default(),
    }
}

#[tokio::test]
async fn missing_or_wrong_library_error_names_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("libonnxruntime.so");
    let expected = LibraryError::NotWhereSet { path: missing.clone(), set_by: "the configuration" };
    assert_eq!(find_onnxruntime(Some(&missing)), Err(expected));

    let text = folder.path().join("text.so");
    std::fs::write(&text, "not a library").unwrap();
    // A valid library, but not ONNX Runtime; using libc needs no compiler.
    let other = std::fs::read_to_string("/proc/self/maps").unwrap();
    let other = other
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .find(|path| path.contains("libc.so"))
        .unwrap();

    for library in [&missing, &text, Path::new(other)] {
        let backend = backend(library);
        let error = backend
            .prepare(&shared_model("good/add.onnx"), weir_types::Precision::default(), folder.path())
            .await
            .unwrap_err();
        assert!(matches!(error, PrepareError::Library(_)), "{error:?}");
        assert_eq!(error.code(), ErrorCode::Unavailable);
        let Err(error) = backend.load(&source(folder.path())) else {
            panic!("{} was loaded", library.display())
        };
        assert!(matches!(error, InferenceError::Library(_)), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        if library != missing {
            let text = error.to_string();
            assert!(text.contains("weir doctor --fix") && text.contains("cargo xtask setup"), "{text}");
        }
    }
}
