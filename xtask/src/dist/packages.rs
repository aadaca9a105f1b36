//! Packages for pip, npm and Debian, made of the contents of a release.

mod debian;
mod libc;
mod npm;
mod wheel;

pub(super) use debian::DebianPackage;
pub(super) use npm::NpmPackage;
pub(super) use wheel::Wheel;

use crate::repo::Repo;
use std::path::{Path, PathBuf};

/// One line about Weir, for package indexes.
const SUMMARY: &str =
    "A platform for machine-learning functions: WebAssembly sandboxes, with models on shared GPUs";
/// Address of the project.
const HOMEPAGE: &str = "https://github.com/weir-platform/weir";

/// A release that packages are made of.
pub(super) struct Release<'a> {
    pub(super) repo: &'a Repo,
    /// The folder with the contents of the release.
    pub(super) folder: &'a Path,
    /// The folder for the packages.
    pub(super) dist: &'a Path,
}

impl Release<'_> {
    fn program(&self) -> PathBuf {
        self.folder.join("bin/weir")
    }

    fn onnxruntime(&self) -> PathBuf {
        self.folder.join("lib/libonnxruntime.so")
    }

    /// Folder of the packages' own files in the repository.
    fn sources(&self) -> PathBuf {
        self.repo.root().join("deploy/packages")
    }
}
