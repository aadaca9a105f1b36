//! Kernels for NVIDIA's devices, compiled for the processor: for tests, and for machines that have no such device.
//!
//! The sources in `../cuda/` are compiled unchanged, by a C++17 compiler, behind a header that gives CUDA's words a meaning (`cpp/cuda.h`). Threads
//! of a block are fibers, which run one at a time until they wait for each other; memory that nobody has written is poisoned, the order of
//! threads can be chosen, and a barrier that not all reach is reported (`cpp/block.h`). `cpp/launch.h` is what a program calls: kernels are found by
//! name and launched with pointers to their arguments, as cuLaunchKernel takes them.
//!
//! A build script compiles them together with what calls them:
//!
//! ```no_run
//! let mut build = weir_kernels_emulator::build(&out_dir()).unwrap();
//! let objects = build.file("driver.cpp").compile_intermediates();
//! # fn out_dir() -> std::path::PathBuf { std::env::var_os("OUT_DIR").unwrap().into() }
//! # let _ = objects;
//! ```

use std::io;
use std::path::{Path, PathBuf};

/// The folder of the emulator's own sources, `launch.h` among them.
#[must_use]
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cpp")
}

/// The folder of the kernels.
#[must_use]
pub fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda")
}

/// Kernels whose products and sums are not joined, as on a device.
const APART: [&str; 1] = ["elementwise"];

/// A build of the emulator and all kernels, to which more files can be added. `out` is a folder for a small file for each file of kernels; two builds
/// need two. The files can include `launch.h`. Must be called in a build script: it says what to watch for changes.
///
/// # Errors
/// If a folder cannot be read, or a file not be written.
pub fn build(out: &Path) -> io::Result<cc::Build> {
    let mut build = cc::Build::new();
    // Optimised always: a network through kernels that are not takes minutes.
    build
        .cpp(true)
        .std("c++17")
        .opt_level(3)
        .debug(false)
        .pic(true)
        .warnings(false)
        .out_dir(out)
        .include(sources());
    build.flag("-fno-strict-aliasing").flag("-ffp-contract=fast").flag("-g1");
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        // Multiplications and additions are fused, as on a device; binary16 has instructions.
        build.flag("-march=x86-64-v3");
    }
    for source in files(&sources(), "cpp")? {
        build.file(source);
    }
    // A namespace for each: helpers of one name may differ from file to file.
    for source in files(&kernels(), "cu")? {
        let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let how = if APART.contains(&&*name) { "#pragma GCC optimize(\"fp-contract=off\")\n" } else { "" };
        let text = format!(
            "{how}#include \"cuda.h\"\nnamespace module_{name} {{\n#include \"{}\"\n}}\n",
            source.display()
        );
        let module = out.join(format!("module_{name}.cpp"));
        if std::fs::read_to_string(&module).ok().as_deref() != Some(&text) {
            std::fs::write(&module, text)?;
        }
        build.file(module);
    }
    println!("cargo::rerun-if-changed={}", sources().display());
    println!("cargo::rerun-if-changed={}", kernels().display());
    Ok(build)
}

/// The files in `folder` that end so, in alphabetical order.
fn files(folder: &Path, ending: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
