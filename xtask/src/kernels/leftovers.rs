//! Checked-in files of kernels that no longer exist.

use anyhow::{Context as _, Result, ensure};
use std::collections::BTreeSet;
use std::path::Path;

/// Fails with the names of the files in `folder` that are not in `expected`.
pub(super) fn check(folder: &Path, expected: &BTreeSet<String>) -> Result<()> {
    let cannot = || format!("cannot read {}", folder.display());
    let mut leftovers = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(cannot)? {
        let name = entry.with_context(cannot)?.file_name().to_string_lossy().into_owned();
        if !expected.contains(&name) {
            leftovers.push(name);
        }
    }
    leftovers.sort();
    let names = leftovers.join(", ");
    ensure!(leftovers.is_empty(), "{} has files of no kernel: remove {names}", folder.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_removed_kernels_fail_the_check_with_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let expected = BTreeSet::from(["gemm_80.cubin.xz", "gemm_90.cubin.xz"].map(str::to_owned));
        let add = |name: &str| std::fs::write(folder.path().join(name), "").unwrap();
        add("gemm_80.cubin.xz");
        check(folder.path(), &expected).unwrap();
        for name in ["old_90.cubin.xz", "gemm_90.cubin.xz", "gemm_70.cubin.xz"] {
            add(name);
        }
        let error = check(folder.path(), &expected).unwrap_err().to_string();
        assert!(error.ends_with("files of no kernel: remove gemm_70.cubin.xz, old_90.cubin.xz"), "{error}");
    }
}
