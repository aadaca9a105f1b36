//! Rebuilds the binary when a file that it embeds changes. Packs the templates of projects, which are
//! copies of the SDKs to nine tenths, and embeds the component of `weir demo`.

#![allow(clippy::expect_used, reason = "a build script reports errors by panicking")]

use lzma_rust2::{XzOptions, XzWriter};
use std::fs::File;
use std::io::{self, Write};
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
    pack_templates(&out.join("templates.tar.xz")).expect("the templates are readable");
    let example = Path::new("..").join(EXAMPLE);
    if example.exists() {
        println!("cargo:rerun-if-changed={}", example.display());
    } else {
        // Cargo would run this again in every build for a missing file.
        println!("cargo:rerun-if-env-changed={EXAMPLE_IS_BUILT}");
    }
    let component = std::fs::read(&example).unwrap_or_default();
    pack_component(&component, &out.join("classify-digits.wasm.xz")).expect("the output folder is writable");
}

/// Compresses the component. Without one, the file is empty.
fn pack_component(component: &[u8], to: &Path) -> io::Result<()> {
    let mut file = File::create(to)?;
    if component.is_empty() {
        return Ok(());
    }
    let mut compressed = XzWriter::new(&mut file, XzOptions::with_preset(9))?;
    compressed.write_all(component)?;
    compressed.finish()?.flush()
}

/// Packs the folders of templates, with the files to which their links lead.
fn pack_templates(to: &Path) -> io::Result<()> {
    let compressed = XzWriter::new(File::create(to)?, XzOptions::with_preset(9))?;
    let mut archive = tar::Builder::new(compressed);
    append(&mut archive, Path::new("../guest-sdk/templates"), Path::new(""))?;
    archive.into_inner()?.finish()?.flush()
}

/// Appends the files of a folder in the order of their names.
fn append(archive: &mut tar::Builder<impl Write>, folder: &Path, inside: &Path) -> io::Result<()> {
    let mut names: Vec<_> =
        folder.read_dir()?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
    names.sort();
    for name in names {
        let path = folder.join(&name);
        let inside = inside.join(&name);
        if !path.is_dir() {
            let content = std::fs::read(&path)?;
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, inside, &content[..])?;
        } else if name != "__pycache__" {
            // Test runs leave such folders in an SDK.
            append(archive, &path, &inside)?;
        }
    }
    Ok(())
}
