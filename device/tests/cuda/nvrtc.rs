//! NVRTC on the fake driver.

use crate::support::TestDevice;
use weir_device::cuda::{CompileTarget, CudaSource, Nvrtc};

/// The fake caches libraries by their sources. Two programs must not share a library because their
/// texts and headers are equal when joined.
#[test]
fn programs_with_different_headers_do_not_share_a_library() {
    let machine = TestDevice::new(0);
    let nvrtc = Nvrtc::open(&machine.fake.nvrtc(12)).unwrap();
    let kernel = "#include \"a.cuh\"\nextern \"C\" void nothing() {}\n// ";
    let compile = |text: &str, header: &str| {
        let source = CudaSource { name: "program.cu", text, headers: &[(header, "")] };
        nvrtc.compile(&source, CompileTarget::Cubin(80), &["--std=c++17", "--fmad=false"])
    };
    compile(kernel, "a.cuh").unwrap();
    let error = compile(&format!("{kernel}a"), ".cuh").unwrap_err();
    assert!(error.contains("a.cuh"), "{error}");
}
