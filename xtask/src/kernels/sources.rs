//! Kernel sources and their compilation to PTX.

use super::FAMILIES;
use super::nvrtc::{KernelSource, NvrtcLibrary};
use super::record::digest;
use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};

/// Suffix of modules with instructions that the first family lacks.
const TENSOR: &str = "_tensor";
/// Modules compiled without FMA contraction, so that code compiled from the same sources at run
/// time gives equal bits.
const APART: [&str; 1] = ["elementwise"];

/// Kernel sources: modules, and headers that any of them may include.
pub(super) struct Sources {
    folder: PathBuf,
    modules: Vec<String>,
    headers: Vec<KernelSource>,
}

/// Whether a module can be compiled for a family or an architecture.
pub(super) fn is_for(module: &str, target: u32) -> bool {
    target > FAMILIES[0] || !module.ends_with(TENSOR)
}

/// Removes comments from PTX, which contain the version of the compiler and a counter.
pub(super) fn code(ptx: &str) -> String {
    let lines = ptx.lines().map(|line| line.split("//").next().unwrap_or_default().trim_end());
    lines.filter(|line| !line.is_empty()).fold(String::new(), |code, line| code + line + "\n")
}

impl Sources {
    /// Opens the modules in `only`, or all modules in `folder` if it is empty.
    pub(super) fn open(folder: &Path, only: &[String]) -> Result<Self> {
        let mut modules = Vec::new();
        let mut headers = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("cu") if only.is_empty() || only.contains(&stem) => modules.push(stem),
                Some("cuh") => headers.push(KernelSource::read(&path)?),
                _ => {}
            }
        }
        let missing = only.iter().find(|name| !modules.contains(name));
        ensure!(missing.is_none(), "there is no kernels/cuda/{}.cu", missing.cloned().unwrap_or_default());
        modules.sort();
        headers.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Self { folder: folder.to_owned(), modules, headers })
    }

    /// Module names: file names without the extension, sorted.
    pub(super) fn modules(&self) -> &[String] {
        &self.modules
    }

    /// Compiles a module for a family to PTX without comments.
    pub(super) fn compile(&self, nvrtc: &NvrtcLibrary, module: &str, family: u32) -> Result<String> {
        let options = options(module, family);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        Ok(code(&nvrtc.ptx(&self.source(module)?, &self.headers, &options)?))
    }

    /// Digest of everything that determines a module's PTX for a family; `tools` are the versions
    /// of the compilers.
    pub(super) fn digest(&self, module: &str, family: u32, tools: &str) -> Result<String> {
        let source = self.source(module)?;
        let options = options(module, family);
        let files = [&source].into_iter().chain(&self.headers);
        let files = files.flat_map(|file| [file.name.as_str(), file.text.as_str()]);
        let parts = [tools].into_iter().chain(options.iter().map(String::as_str)).chain(files);
        Ok(digest(parts.map(str::as_bytes)))
    }

    fn source(&self, module: &str) -> Result<KernelSource> {
        KernelSource::read(&self.folder.join(module).with_extension("cu"))
    }
}

/// Options of the compiler for a module and a family.
fn options(module: &str, family: u32) -> Vec<String> {
    let mut options = vec![format!("--gpu-architecture=compute_{family}"), "--std=c++17".to_owned()];
    options.extend(APART.contains(&module).then(|| "--fmad=false".to_owned()));
    options
}

impl KernelSource {
    fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_comments_are_removed() {
        assert_eq!(code("// 12.4\n.version 8.4\n\n\t{ // callseq 7\n"), ".version 8.4\n\t{\n");
        assert_ne!(code(".version 8.4\n"), code(".version 8.5\n"));
    }

    #[test]
    fn tensor_modules_begin_with_the_second_family() {
        assert!(!is_for("gemm_tensor", 75) && is_for("gemm_tensor", 80) && is_for("gemm", 75));
    }

    #[test]
    fn digest_changes_with_sources_headers_target_and_tools() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let of = |family, tools: &str| {
            Sources::open(folder.path(), &[]).unwrap().digest("gemm", family, tools).unwrap()
        };
        write("gemm.cu", "kernel");
        write("common.cuh", "header");
        let mut digests = vec![of(80, "12.4"), of(75, "12.4"), of(80, "12.5")];
        assert_eq!(of(80, "12.4"), digests[0]);
        write("gemm.cu", "changed kernel");
        digests.push(of(80, "12.4"));
        write("common.cuh", "changed header");
        digests.push(of(80, "12.4"));
        let different: std::collections::BTreeSet<_> = digests.iter().collect();
        assert_eq!(different.len(), 5);
    }
}
