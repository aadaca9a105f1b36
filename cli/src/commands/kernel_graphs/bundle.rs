//! Packs the folder of a kernel graph into one JSON file for the upload.

use crate::error::Problem;
use anyhow::Result;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use weir_kernel_graph::{Bundle, KernelGraph, UPLOAD_BYTES_MAX, check_source};

/// Name of the document in the folder.
const DOCUMENT: &str = "graph.json";

/// Checks a kernel graph without a node, and describes the result.
pub(super) fn check(path: &Path) -> Result<String> {
    let bundle = read(path)?;
    let shown = path.display();
    for (name, text) in bundle.to_compile() {
        check_source(name, text).map_err(|error| Problem::new(format!("{shown}: {error}")))?;
    }
    let to_compile: Vec<&str> = bundle.to_compile().map(|(name, _)| name).collect();
    if !to_compile.is_empty() {
        return Ok(format!(
            "{shown} can be read; the node compiles {} and checks the rest when it is pushed",
            to_compile.join(", ")
        ));
    }
    let graph = KernelGraph::new(bundle).map_err(|error| Problem::new(format!("{shown}: {error}")))?;
    let launches = graph.document().launches.len();
    Ok(format!("{shown} is sound (launches: {launches}, sources: {})", graph.modules().len()))
}

/// CUDA C sources that are not uploaded, because the folder has PTX with the same name.
pub(super) fn left_out(path: &Path) -> Vec<String> {
    let entries = path.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let has_ptx = |file: &PathBuf| {
        file.extension().is_some_and(|ending| ending == "cu") && file.with_extension("ptx").is_file()
    };
    entries
        .filter(has_ptx)
        .filter_map(|file| Some(file.file_name()?.to_string_lossy().into_owned()))
        .collect()
}

/// Writes a kernel graph to one JSON file.
pub(super) fn pack(path: &Path) -> Result<NamedTempFile> {
    let mut file = NamedTempFile::new()?;
    serde_json::to_writer(&mut file, &read(path)?)?;
    file.flush()?;
    Ok(file)
}

/// Reads a kernel graph from a folder or from one JSON file. If a folder has a source as CUDA C and
/// as PTX (`a.cu` and `a.ptx`), the PTX is used.
fn read(path: &Path) -> Result<Bundle> {
    let shown = path.display();
    let text = |path: &Path| -> Result<String> {
        let unreadable = |error| Problem::new(format!("cannot read {}", path.display())).because(error);
        let len = std::fs::metadata(path).map_err(unreadable)?.len();
        if len > UPLOAD_BYTES_MAX as u64 {
            let text = format!(
                "{}: the kernel graph has {len} bytes; the limit is {UPLOAD_BYTES_MAX} bytes",
                path.display()
            );
            return Err(Problem::new(text).into());
        }
        Ok(std::fs::read_to_string(path).map_err(unreadable)?)
    };
    if path.is_file() {
        let bundle = Bundle::parse(text(path)?.as_bytes());
        return Ok(bundle.map_err(|error| Problem::new(format!("{shown}: {error}")))?);
    }
    let document = path.join(DOCUMENT);
    let graph = serde_json::from_str(&text(&document)?);
    let graph = graph.map_err(|error| Problem::new(format!("{}: {error}", document.display())))?;
    let mut bundle = Bundle { graph, sources: Default::default() };
    for entry in path.read_dir()? {
        let file = entry?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_source =
            name.ends_with(".ptx") || (name.ends_with(".cu") && !file.with_extension("ptx").is_file());
        if is_source {
            bundle.sources.insert(name, text(&file)?);
        }
    }
    if bundle.sources.is_empty() {
        return Err(Problem::new(format!("{shown} has no sources: *.cu or *.ptx")).into());
    }
    Ok(bundle)
}
