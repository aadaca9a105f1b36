//! Packs the OpenAPI document into the crate.

use lzma_rust2::{XzOptions, XzWriter};
use std::error::Error;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is not set")?);
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let document = here.join("../../docs/reference/openapi.yaml");
    println!("cargo::rerun-if-changed={}", document.display());
    let packed = File::create(out.join("openapi.yaml.xz"))?;
    let mut encoder = XzWriter::new(packed, XzOptions::with_preset(9))?;
    encoder.write_all(&std::fs::read(document)?)?;
    encoder.finish()?;
    Ok(())
}
