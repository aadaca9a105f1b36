//! Builds the program that runs kernels for the tests, with and without AddressSanitizer.

use std::error::Error;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    program(&out, "emulate", &[])?;
    // Lower optimisation halves the compile time, and gives correct line numbers in reports.
    program(&out, "emulate-sanitised", &["-fsanitize=address", "-fno-omit-frame-pointer", "-O1"])?;
    println!("cargo::rerun-if-changed=cpp");
    Ok(())
}

fn program(out: &Path, name: &str, flags: &[&str]) -> Result<(), Box<dyn Error>> {
    let folder = out.join(format!("{name}.build"));
    std::fs::create_dir_all(&folder)?;
    let mut build = weir_kernels_emulator::build(&folder)?;
    flags.iter().for_each(|flag| {
        build.flag(flag);
    });
    let objects = build.file("cpp/emulate.cpp").file("cpp/faulty.cpp").compile_intermediates();
    let mut link = build.get_compiler().to_command();
    let status = link.args(objects).args(["-pthread", "-o"]).arg(out.join(name)).status()?;
    if status.success() { Ok(()) } else { Err(format!("linking {name} failed: {status}").into()) }
}
