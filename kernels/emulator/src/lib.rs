//! CPU emulator of the CUDA kernels, for tests and for machines without an NVIDIA device.
//!
//! A C++17 compiler compiles the sources in `../cuda/` unchanged, with a header that defines CUDA's
//! language extensions (`cpp/cuda.h`). The threads of a block are fibers, which run one at a time
//! until they wait for each other. Uninitialised memory is poisoned, the order of threads is
//! configurable, and a barrier that some threads do not reach is reported (`cpp/block.h`).
//! `cpp/launch.h` is the interface for programs: it finds kernels by name and launches them with
//! pointers to their arguments, like `cuLaunchKernel`.
//!
//! A build script compiles the emulator and the kernels together with the calling program:
//!
//! ```no_run
//! let mut build = weir_kernels_emulator::build(&out_dir()).unwrap();
//! let objects = build.file("driver.cpp").compile_intermediates();
//! # fn out_dir() -> std::path::PathBuf { std::env::var_os("OUT_DIR").unwrap().into() }
//! # let _ = objects;
//! ```

use std::io;
use std::path::{Path, PathBuf};

/// Folder of the emulator's sources, including `launch.h`.
#[must_use]
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cpp")
}

/// Folder of the kernels.
#[must_use]
pub fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda")
}

/// Modules that are compiled without contraction of products and sums, as on a device.
const APART: [&str; 1] = ["elementwise"];

/// Create a build of the emulator and all kernels, to which more files can be added; these can
/// include `launch.h`. The build writes one small file per module into the folder `out`, so each
/// build needs a separate folder. Call it in a build script, since it prints the files that cargo
/// watches for changes.
///
/// # Errors
/// If a folder cannot be read, or a file cannot be written.
pub fn build(out: &Path) -> io::Result<cc::Build> {
    let mut build = cc::Build::new();
    // Always optimised: without optimisation, the kernels of a network run for minutes.
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
        // Products and sums are fused, as on a device, and binary16 has instructions.
        build.flag("-march=x86-64-v3");
    }
    for source in files(&sources(), "cpp")? {
        build.file(source);
    }
    // A namespace per module, since modules may define different helpers of the same name.
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

/// Files in `folder` with this extension, in alphabetical order.
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
