//! Builds the fake driver from its sources, the emulator's sources and every kernel. Also builds
//! fakes of the management library, of cuBLASLt and of NVRTC in the driver's folder.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let driver = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("driver");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed={}", driver.display());
    println!("cargo::rerun-if-changed={}", driver.join("../../examples/kernel-graphs").display());

    let mut build = weir_kernels_emulator::build(&out)?;
    // Several copies of the library in one process must not share state.
    build.flag("-fvisibility=hidden").flag_if_supported("-fno-gnu-unique").flag("-pthread");
    build.include(&driver).files(sources(&driver)?).cargo_metadata(false);
    let objects = build.try_compile_intermediates()?;

    let folder = out.join("library");
    std::fs::create_dir_all(&folder)?;
    let library = folder.join("libcuda.so.1");
    let mut link = build.get_compiler().to_command();
    link.args(["-shared", "-pthread", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic"]);
    // The library installs a signal handler, so it must never be unloaded.
    link.args(["-Wl,-z,nodelete", "-o"]).arg(&library).args(objects);
    if !link.status()?.success() {
        return Err("the fake driver could not be linked".into());
    }
    management(&build.get_compiler(), &folder)?;
    products(&build.get_compiler(), &folder)?;
    compiler(&build.get_compiler(), &out, &folder)?;
    println!("cargo::rustc-env=WEIR_FAKE_CUDA_LIBRARY={}", library.display());
    Ok(())
}

/// Build the fake management library, next to the driver like the real one.
fn management(compiler: &cc::Tool, folder: &Path) -> Result<(), Box<dyn Error>> {
    let source = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("management/nvml.cpp");
    println!("cargo::rerun-if-changed={}", source.display());
    let mut compile = compiler.to_command();
    compile.args([
        "-shared",
        "-Wl,-Bsymbolic",
        "-Wl,-z,nodelete",
        "-ldl",
        "-Wl,-soname,libnvidia-ml.so.1",
        "-o",
    ]);
    compile.arg(folder.join("libnvidia-ml.so.1"));
    if !compile.arg(source).status()?.success() {
        return Err("the fake management library could not be built".into());
    }
    Ok(())
}

/// Build the fake cuBLASLt in the driver's folder. One binary has two names: it takes its version
/// from its file name.
fn products(compiler: &cc::Tool, folder: &Path) -> Result<(), Box<dyn Error>> {
    let source = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("cublaslt");
    println!("cargo::rerun-if-changed={}", source.display());
    let mut compile = compiler.to_command();
    compile.args(["-shared", "-O2", "-Wl,-Bsymbolic", "-Wl,-z,nodelete", "-ldl", "-Idriver", "-o"]);
    let library = folder.join("libcublasLt.so.12");
    if !compile.arg(&library).args(sources(&source)?).status()?.success() {
        return Err("the fake cuBLASLt could not be built".into());
    }
    std::fs::copy(&library, folder.join("libcublasLt.so.13"))?;
    Ok(())
}

/// Build the fake NVRTC, which runs this build's C++ compiler with the emulator's headers. One
/// binary has two names, like cuBLASLt.
fn compiler(compiler: &cc::Tool, out: &Path, folder: &Path) -> Result<(), Box<dyn Error>> {
    let source = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("nvrtc");
    println!("cargo::rerun-if-changed={}", source.display());
    // Cached libraries were compiled against older headers.
    let compiled = out.join("compiled");
    if compiled.exists() {
        std::fs::remove_dir_all(&compiled)?;
    }
    std::fs::create_dir_all(&compiled)?;
    // Without builtins, functions of the C library are called, as in the interpreter, and never
    // evaluated at compile time.
    let mut flags = "-std=c++17 -O2 -fPIC -w -fno-strict-aliasing -fno-builtin -ffp-contract=off -fvisibility=hidden -Wl,-z,defs".to_owned();
    if env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        flags += " -march=x86-64-v3";
    }
    let includes = format!("-I'{}' -I'{}'", source.display(), weir_kernels_emulator::sources().display());
    let define = |name: &str, value: &str| format!("-D{name}={value:?}");
    let mut compile = compiler.to_command();
    compile.args(["-shared", "-O2", "-Wl,-Bsymbolic", "-Wl,-z,nodelete", "-ldl", "-Idriver"]);
    compile.arg(define("COMPILER", &compiler.path().display().to_string())).arg(define("FLAGS", &flags));
    compile.arg(define("INCLUDES", &includes)).arg(define("FOLDER", &compiled.display().to_string()));
    let library = folder.join("libnvrtc.so.12");
    if !compile.arg("-o").arg(&library).args(sources(&source)?).status()?.success() {
        return Err("the fake NVRTC could not be built".into());
    }
    std::fs::copy(&library, folder.join("libnvrtc.so.13"))?;
    Ok(())
}

/// C++ files in `folder`, sorted.
fn sources(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let entries = folder.read_dir()?.map(|entry| Ok(entry?.path()));
    let mut files = entries.collect::<Result<Vec<_>, std::io::Error>>()?;
    files.retain(|path| path.extension().is_some_and(|found| found == "cpp"));
    files.sort();
    Ok(files)
}
