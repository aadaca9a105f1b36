//! Compilation of chains by NVIDIA's compiler, as nodes compile them. The fake driver tests the
//! results, and `weir doctor --gpu` tests them on devices.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed setup fails the test")]

use std::path::{Path, PathBuf};
use weir_device::cuda::{CompileTarget, CudaSource, Nvrtc, Search};
use weir_kernels::{Chain, Example};

/// The compiler that `cargo xtask` installed.
fn nvrtc() -> Nvrtc {
    let environment = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.weir/nvrtc/lib");
    let pythons = environment.read_dir().into_iter().flatten().flatten();
    let folder = |python: PathBuf| python.join("site-packages/nvidia/cuda_nvrtc/lib");
    let search =
        Search { folders: pythons.map(|python| folder(python.path())).collect(), ..Search::default() };
    Nvrtc::find(&search).unwrap_or_else(|error| panic!("{error}; `cargo xtask kernels --check` gets it"))
}

/// Check that every example compiles to machine code and keeps its numbers in registers.
#[track_caller]
fn compile_all(device: u32) {
    let nvrtc = nvrtc();
    let target = nvrtc.target(device).unwrap();
    assert_eq!(target, CompileTarget::Cubin(device));
    let mut options = Chain::OPTIONS.to_vec();
    options.push("--ptxas-options=-v");
    for example in Example::all().into_iter().chain([Example::silu(&[8]), Example::silu(&[2, 4])]) {
        let text = example.chain().unwrap().source();
        let source = CudaSource { name: "chain.cu", text: &text, headers: &Chain::HEADERS };
        let compiled = nvrtc.compile(&source, target, &options).unwrap_or_else(|log| panic!("{log}\n{text}"));
        assert!(compiled.image.starts_with(b"\x7fELF"));
        let name = Chain::KERNEL.as_bytes();
        assert!(compiled.image.windows(name.len()).any(|window| window == name));
        let spills: Vec<_> = compiled.log.lines().filter(|line| line.contains("bytes spill")).collect();
        assert!(!spills.is_empty(), "the compiler reports no registers: {}", compiled.log);
        let fits = |line: &&str| line.contains(" 0 bytes spill stores, 0 bytes spill loads");
        assert!(spills.iter().all(fits), "sm_{device}: {}\n{text}", compiled.log);
    }
}

#[test]
fn every_instruction_compiles_for_turing() {
    compile_all(75);
}

#[test]
fn every_instruction_compiles_for_ampere() {
    compile_all(80);
}

#[test]
fn every_instruction_compiles_for_hopper() {
    compile_all(90);
}

#[test]
fn products_and_sums_are_not_contracted() {
    let nvrtc = nvrtc();
    let text = Example::silu(&[8]).chain().unwrap().source();
    let source = CudaSource { name: "chain.cu", text: &text, headers: &Chain::HEADERS };
    let compiled = nvrtc.compile(&source, CompileTarget::Ptx(80), &Chain::OPTIONS).unwrap();
    let ptx = String::from_utf8(compiled.image).unwrap();
    // Without the rounding modifier, the driver could contract these instructions.
    let is_loose = |line: &&str| line.contains("add.f32") || line.contains("mul.f32");
    assert_eq!(ptx.lines().find(is_loose), None);
    assert!(ptx.contains("add.rn.f32") && ptx.contains("mul.rn.f32"));
}

#[test]
fn compile_error_reports_its_line() {
    let source =
        CudaSource { name: "wrong.cu", text: "#include \"a.cuh\"\nnonsense;", headers: &[("a.cuh", "")] };
    let log = nvrtc().compile(&source, CompileTarget::Cubin(80), &[]).unwrap_err();
    assert!(log.contains("wrong.cu(2): error"), "{log}");
}

#[test]
fn unknown_device_gets_ptx_of_newest_known_architecture() {
    let nvrtc = nvrtc();
    assert_eq!(nvrtc.target(999), Some(CompileTarget::Ptx(90)));
    assert_eq!(nvrtc.target(10), None);
    assert_eq!(nvrtc.version(), "12.4");
}
