//! Packs the PTX in `ptx/` into the crate, compressed. PTX is repetitive text and shrinks to a
//! tenth (to a fifth with zlib). The machine code in `cubin/` is compressed already.

use lzma_rust2::{XzOptions, XzWriter};
use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is not set")?);
    table(&here.join("ptx"), ".ptx", &out.join("ptx.rs"), |file| {
        let packed = out.join(file.file_stem().ok_or("a file without a name")?);
        let mut encoder = XzWriter::new(std::fs::File::create(&packed)?, XzOptions::with_preset(9))?;
        encoder.write_all(&std::fs::read(file)?)?;
        encoder.finish()?;
        Ok(packed)
    })?;
    table(&here.join("cubin"), ".cubin.xz", &out.join("cubin.rs"), |file| Ok(file.to_owned()))
}

/// Write a table of the files in `folder`: the module, the lowest compute capability that the file
/// is for, and the compressed content.
fn table(folder: &Path, ending: &str, to: &Path, pack: impl Fn(&Path) -> Result<PathBuf>) -> Result<()> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files: Vec<PathBuf> =
        folder.read_dir()?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    files.sort();
    let mut table = String::from("&[\n");
    for file in files {
        // `gemm_tensor_80.ptx`: module `gemm_tensor`, for compute capability 8.0.
        let name = file.file_name().and_then(|name| name.to_str()).ok_or("a file without a name")?;
        let stem = name.strip_suffix(ending).ok_or_else(|| format!("{name} does not end in {ending}"))?;
        let (module, capability) =
            stem.rsplit_once('_').ok_or_else(|| format!("{name}: for which device?"))?;
        let capability: u32 = capability.parse()?;
        writeln!(table, "({module:?}, {capability}, include_bytes!({:?})),", pack(&file)?)?;
    }
    table.push(']');
    std::fs::write(to, table)?;
    Ok(())
}
