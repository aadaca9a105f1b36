//! Paths in the repository.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Checkout of this repository.
pub(crate) struct Repo {
    root: PathBuf,
}

impl Repo {
    /// The checkout that this program was built from.
    pub(crate) fn find() -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        Self { root: here.parent().unwrap_or(here).to_owned() }
    }

    /// Top folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Folder of downloads and tools, outside version control.
    pub(crate) fn local(&self) -> PathBuf {
        self.root.join(".weir")
    }

    /// Path of ONNX Runtime, which `setup` installs.
    pub(crate) fn onnxruntime(&self) -> PathBuf {
        self.local().join("lib").join(weir_provision::OnnxRuntimeRelease::FILE_NAME)
    }

    /// Folder of models that are too large for version control, as `<name>.onnx`, for the demo, the
    /// tests and the benchmarks.
    pub(crate) fn models(&self) -> PathBuf {
        self.local().join("models")
    }

    /// Workspace of the functions.
    pub(crate) fn functions(&self) -> PathBuf {
        self.root.join("functions")
    }

    /// Folder of built functions, as `<name>.wasm`, for the tests and the benchmarks.
    pub(crate) fn built_functions(&self) -> PathBuf {
        self.root.join("target/functions")
    }

    /// Displays `path` relative to the top folder.
    pub(crate) fn show<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.root).unwrap_or(path).display()
    }

    /// Cargo command with the working directory `folder`.
    pub(crate) fn cargo(&self, folder: impl AsRef<Path>) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(self.root.join(folder));
        // Makes the build script of `weir` look for the component again.
        if self.built_functions().join("classify-digits.wasm").exists() {
            cargo.env("WEIR_EXAMPLE_IS_BUILT", "1");
        }
        cargo
    }
}
