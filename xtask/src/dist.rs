//! `cargo xtask dist`.

use crate::process;
use crate::repo::Repo;
use crate::setup::{self, report};
use anyhow::{Context as _, Result};
use std::path::Path;
use std::process::Command;

/// Make a release tarball: `weir`, ONNX Runtime, licence and README, in `target/dist/`
///
/// It runs on a machine with nothing else: the templates of `weir new` are in the program, and the library is found beside it. The
/// Containerfile at the top of the repository makes an image from the same folder.
#[derive(Debug, clap::Args)]
pub(crate) struct DistArgs {}

pub(crate) fn run(repo: &Repo, _args: &DistArgs) -> Result<()> {
    let library = setup::onnxruntime(repo)?;
    process::run(repo.cargo(".").args(["build", "--profile", "dist", "-p", "weir-cli"]))?;
    let name = format!("weir-{}-{}-linux", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let dist = repo.root().join("target/dist");
    let folder = dist.join(&name);
    for (from, to) in [
        (dist.join("weir"), "bin/weir"),
        (library, "lib/libonnxruntime.so"),
        (repo.root().join("LICENSE"), "LICENSE"),
        (repo.root().join("README.md"), "README.md"),
    ] {
        copy(&from, &folder.join(to))?;
    }
    let tarball = dist.join(format!("{name}.tar.gz"));
    process::run(Command::new("tar").arg("-C").arg(&dist).arg("-czf").arg(&tarball).arg(&name))?;
    report("made", &repo.show(&tarball).to_string());
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    std::fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}
