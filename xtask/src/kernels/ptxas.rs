//! NVIDIA's assembler: PTX to machine code for one architecture.

use super::log::{self, KernelUsage};
use super::nvrtc::site_packages;
use anyhow::{Context as _, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Path of ptxas.
pub(super) struct Ptxas(PathBuf);

/// Assembled module for one architecture.
pub(super) struct Assembled {
    pub(super) cubin: Vec<u8>,
    pub(super) usages: Vec<KernelUsage>,
}

impl Ptxas {
    /// Finds ptxas in the Python environment in `folder`.
    pub(super) fn find(folder: &Path) -> Result<Self> {
        let packages = site_packages(folder)?.into_iter();
        let mut programs = packages.map(|packages| packages.join("nvidia/cuda_nvcc/bin/ptxas"));
        let program = programs.find(|program| program.is_file());
        Ok(Self(program.with_context(|| format!("there is no ptxas below {}", folder.display()))?))
    }

    /// Assembles PTX for an architecture. The output depends only on the PTX, the architecture and
    /// the version of the assembler.
    pub(super) fn assemble(&self, ptx: &str, architecture: u32) -> Result<Assembled> {
        let folder = tempfile::tempdir().context("cannot make a folder for the assembler")?;
        let source = folder.path().join("module.ptx");
        let cubin = folder.path().join("module.cubin");
        std::fs::write(&source, ptx)?;
        let mut command = Command::new(&self.0);
        // ptxas writes its options into the machine code, so `-v` must stay for the comparison.
        command.arg(format!("-arch=sm_{architecture}")).arg("-v").arg("-o").arg(&cubin).arg(&source);
        let Output { status, stderr, .. } = command.output().context("cannot start ptxas")?;
        let said = String::from_utf8_lossy(&stderr);
        if !status.success() {
            bail!("ptxas fails for sm_{architecture} ({status}):\n{said}");
        }
        let usages = log::usages(&said)?;
        ensure!(!usages.is_empty(), "ptxas reports no registers:\n{said}");
        Ok(Assembled { cubin: std::fs::read(&cubin)?, usages })
    }
}
