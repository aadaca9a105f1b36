//! Rebuilds the binary when a file that it embeds changes, and embeds the component of `weir demo`.

#![allow(clippy::expect_used, reason = "a build script reports errors by panicking")]

use std::path::{Path, PathBuf};

/// Component of the example, which `cargo xtask functions` builds. Without it, the program has no
/// example, and needs no target for components to compile.
const EXAMPLE: &str = "target/functions/classify-digits.wasm";

/// Variable that `cargo xtask` sets once the component exists.
const EXAMPLE_IS_BUILT: &str = "WEIR_EXAMPLE_IS_BUILT";

fn main() {
    for folder in [
        "guest-sdk/templates",
        "guest-sdk/rust",
        "guest-sdk/python/src",
        "guest-sdk/js",
        "guest-sdk/c",
        "guest-sdk/go",
        "wit",
    ] {
        println!("cargo:rerun-if-changed=../{folder}");
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let example = Path::new("..").join(EXAMPLE);
    if example.exists() {
        println!("cargo:rerun-if-changed={}", example.display());
    } else {
        // Cargo would run this again in every build for a missing file.
        println!("cargo:rerun-if-env-changed={EXAMPLE_IS_BUILT}");
    }
    let component = std::fs::read(&example).unwrap_or_default();
    std::fs::write(out.join("classify-digits.wasm"), component).expect("the output folder is writable");
}
