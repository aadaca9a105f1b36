//! Where things are in the repository.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A checkout of this repository.
pub(crate) struct Repo {
    root: PathBuf,
}

impl Repo {
    /// The checkout that this program was built from.
    pub(crate) fn find() -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        Self { root: here.parent().unwrap_or(here).to_owned() }
    }

    /// The top folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// What setting up brings, out of version control.
    pub(crate) fn local(&self) -> PathBuf {
        self.root.join(".weir")
    }

    /// ONNX Runtime, once setup has brought it.
    pub(crate) fn onnxruntime(&self) -> PathBuf {
        self.local().join("lib").join(weir_provision::OnnxRuntime::FILE_NAME)
    }

    /// Models that are too large for version control, as `<name>.onnx`; the demo, tests and benchmarks look here.
    pub(crate) fn models(&self) -> PathBuf {
        self.local().join("models")
    }

    /// The workspace of the functions.
    pub(crate) fn functions(&self) -> PathBuf {
        self.root.join("functions")
    }

    /// Where built functions go, as `<name>.wasm`; tests and benchmarks look here.
    pub(crate) fn built_functions(&self) -> PathBuf {
        self.root.join("target/functions")
    }

    /// `path` as a person at the top folder would write it.
    pub(crate) fn show<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.root).unwrap_or(path).display()
    }

    /// Cargo, to be run in `folder`.
    pub(crate) fn cargo(&self, folder: impl AsRef<Path>) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(self.root.join(folder));
        cargo
    }
}
