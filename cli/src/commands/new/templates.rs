//! Templates of projects, which the build script packs into the program.

use anyhow::{Context as _, Result};
use lzma_rust2::XzReader;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// A compressed tar of the folders of `guest-sdk/templates`.
const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/templates.tar.xz"));

/// Files of a template, by their paths in the project.
pub(super) type Template = Vec<(PathBuf, String)>;

/// Unpacks all templates, by the names of their folders, such as `rust-http`.
pub(super) fn unpack() -> Result<BTreeMap<String, Template>> {
    let mut templates = BTreeMap::<String, Template>::new();
    let mut archive = tar::Archive::new(XzReader::new(PACKED, false));
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).with_context(|| format!("{} is no text", path.display()))?;
        let mut parts = path.components();
        let folder = parts.next().and_then(|part| part.as_os_str().to_str());
        let folder = folder.with_context(|| format!("{} is in no template", path.display()))?;
        let inside: &Path = parts.as_path();
        templates.entry(folder.to_owned()).or_default().push((inside.to_owned(), text));
    }
    Ok(templates)
}
