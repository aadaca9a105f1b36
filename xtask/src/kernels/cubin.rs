//! Checked-in machine code: compression, and stamps that skip repeated checks.

use anyhow::{Context as _, Result};
use lzma_rust2::{XzOptions, XzReader, XzWriter};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

/// The densest preset of xz: code is compressed once, and unpacking is equally fast for all
/// presets.
const XZ_PRESET: u32 = 9;

/// Compresses a cubin.
pub(super) fn pack(cubin: &[u8]) -> Result<Vec<u8>> {
    let mut writer = XzWriter::new(Vec::new(), XzOptions::with_preset(XZ_PRESET))?;
    writer.write_all(cubin)?;
    Ok(writer.finish()?)
}

/// Decompresses a cubin.
pub(super) fn unpack(packed: &[u8]) -> Result<Vec<u8>> {
    let mut cubin = Vec::new();
    XzReader::new(packed, false)
        .read_to_end(&mut cubin)
        .context("a cubin is not compressed as it should be")?;
    Ok(cubin)
}

/// Stamp of the last successful check of PTX, machine code and resources. Without stamps,
/// assembling all modules for all architectures takes minutes of CPU time.
pub(super) struct CheckStamp {
    file: PathBuf,
    content: String,
}

impl CheckStamp {
    /// Creates the stamp of a module for an architecture. `subject` is the compared data; the
    /// pinned version of the assembler is included.
    pub(super) fn new(folder: &Path, module: &str, architecture: u32, subject: impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        (include_str!("../../../kernels/requirements.txt"), subject).hash(&mut hasher);
        let content = format!("{:016x}", hasher.finish());
        Self { file: folder.join(format!("{module}_{architecture}.checked")), content }
    }

    /// Whether the same content was checked before.
    pub(super) fn is_current(&self) -> bool {
        std::fs::read_to_string(&self.file).is_ok_and(|found| found == self.content)
    }

    /// Records the successful check.
    pub(super) fn write(&self) -> Result<()> {
        std::fs::write(&self.file, &self.content)
            .with_context(|| format!("cannot write {}", self.file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cubin_survives_compression() {
        let cubin: Vec<u8> = (0..100_000_u32).flat_map(|number| (number / 7).to_le_bytes()).collect();
        let packed = pack(&cubin).unwrap();
        assert!(packed.len() < cubin.len() / 4);
        assert_eq!(unpack(&packed).unwrap(), cubin);
        assert!(unpack(&packed[..packed.len() / 2]).is_err());
    }

    #[test]
    fn stamp_is_current_only_for_equal_content() {
        let folder = tempfile::tempdir().unwrap();
        let stamp = |content: &str| CheckStamp::new(folder.path(), "gemm", 90, content);
        assert!(!stamp("a").is_current());
        stamp("a").write().unwrap();
        assert!(stamp("a").is_current() && !stamp("b").is_current());
    }
}
