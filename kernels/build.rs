//! Packs the PTX in `ptx/` into the crate, compressed: it is text that repeats itself, and a tenth of it is left (a fifth with zlib).

use lzma_rust2::{XzOptions, XzWriter};
use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=ptx");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir("ptx")?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    files.sort();
    let mut table = String::from("&[\n");
    for file in files {
        // `gemm_tensor_80.ptx`: of the module `gemm_tensor`, for compute capability 8.0 and up.
        let stem = file.file_stem().and_then(|stem| stem.to_str()).ok_or("a file without a name")?;
        let (module, family) =
            stem.rsplit_once('_').ok_or_else(|| format!("ptx/{stem}: for which family?"))?;
        let family: u32 = family.parse()?;
        let packed = out.join(stem);
        let mut encoder = XzWriter::new(std::fs::File::create(&packed)?, XzOptions::with_preset(9))?;
        encoder.write_all(&std::fs::read(&file)?)?;
        encoder.finish()?;
        writeln!(table, "({module:?}, {family}, include_bytes!({packed:?})),")?;
    }
    table.push(']');
    std::fs::write(out.join("ptx.rs"), table)?;
    Ok(())
}
