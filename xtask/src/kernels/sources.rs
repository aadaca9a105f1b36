//! Kernel sources and their compilation to PTX.

use super::FAMILIES;
use super::nvrtc::{KernelSource, NvrtcLibrary};
use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};

/// Suffix of modules with instructions that the first family lacks.
const TENSOR: &str = "_tensor";
/// Modules compiled without FMA contraction, so that code compiled from the same sources at run
/// time gives equal bits.
const APART: [&str; 1] = ["elementwise"];

/// Kernel sources with their compiler.
pub(super) struct Sources {
    folder: PathBuf,
    nvrtc: NvrtcLibrary,
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
    /// Opens the modules in `only`, or all modules in `folder` if it is empty. The compiler is in
    /// `environment`.
    pub(super) fn open(folder: &Path, environment: &Path, only: &[String]) -> Result<Self> {
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
        Ok(Self { folder: folder.to_owned(), nvrtc: NvrtcLibrary::open(environment)?, modules, headers })
    }

    /// Module names: file names without the extension, sorted.
    pub(super) fn modules(&self) -> &[String] {
        &self.modules
    }

    /// Compiles a module for a family to PTX without comments.
    pub(super) fn compile(&self, module: &str, family: u32) -> Result<String> {
        let architecture = format!("--gpu-architecture=compute_{family}");
        let mut options = vec![architecture.as_str(), "--std=c++17"];
        options.extend(APART.contains(&module).then_some("--fmad=false"));
        let source = KernelSource::read(&self.folder.join(module).with_extension("cu"))?;
        Ok(code(&self.nvrtc.ptx(&source, &self.headers, &options)?))
    }
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
}
