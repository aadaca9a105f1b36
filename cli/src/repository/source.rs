//! Where a repository is: a folder, or a prefix of a bucket.

use super::bucket::{self, BucketMirror, VersionFiles};
use super::folder::{self, FilesState, ModelFolder};
use crate::error::Problem;
use anyhow::Result;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use weir_types::ContentHash;

/// Interval of the looks at a folder. Polling also works on network file systems, which do not report
/// the changes of other machines.
const FOLDER_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of the lists of a bucket.
const BUCKET_INTERVAL: Duration = Duration::from_secs(10);

/// The address of a repository, as options take it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RepositoryAddress {
    Folder(PathBuf),
    /// `s3://BUCKET[/PREFIX]`.
    Bucket(String),
}

impl From<OsString> for RepositoryAddress {
    fn from(text: OsString) -> Self {
        match text.into_string() {
            Ok(text) if text.starts_with("s3://") => Self::Bucket(text),
            Ok(text) => Self::Folder(text.into()),
            Err(text) => Self::Folder(text.into()),
        }
    }
}

impl RepositoryAddress {
    /// Checks that it can be the address of a repository. Sends no request.
    pub(crate) fn check(&self, option: &str) -> Result<()> {
        match self {
            Self::Folder(folder) if !folder.is_dir() => {
                let problem = Problem::usage(format!("{option} {}: not a folder", folder.display()));
                Err(problem.hint("give a folder that has a folder for each model (NAME/1/model.onnx), or s3://BUCKET/PREFIX").into())
            }
            Self::Folder(_) => Ok(()),
            Self::Bucket(address) => bucket::open(address).map(drop),
        }
    }
}

/// A repository that is read.
pub(super) enum RepositorySource {
    Folder {
        folder: PathBuf,
        /// Data folder of a node, which is no model.
        data: Option<PathBuf>,
    },
    Bucket(Box<BucketMirror>),
}

impl RepositorySource {
    /// A mirror of a bucket is in the data folder of a node, or in a temporary folder.
    pub(super) fn new(
        address: RepositoryAddress,
        data: Option<PathBuf>,
        stop: Arc<AtomicBool>,
    ) -> Result<Self> {
        Ok(match address {
            RepositoryAddress::Folder(folder) => Self::Folder { folder, data },
            RepositoryAddress::Bucket(address) => {
                Self::Bucket(Box::new(BucketMirror::new(&address, data.as_deref(), stop)?))
            }
        })
    }

    /// Finds the models that are there now.
    pub(super) fn models(&mut self) -> Result<Vec<ModelFolder>> {
        match self {
            Self::Folder { folder, data } => folder::models(folder, data.as_deref()),
            Self::Bucket(mirror) => {
                mirror.refresh()?;
                folder::models(&mirror.folder(), None)
            }
        }
    }

    /// The state of the files of a model.
    pub(super) fn state(&self, model: &ModelFolder) -> FilesState {
        match self {
            Self::Folder { .. } => model.state(),
            Self::Bucket(mirror) => mirror.state(&model.name),
        }
    }

    /// Makes the files of a version readable until the guard is dropped.
    pub(super) fn fetch(&self, model: &ModelFolder, version: u32) -> Result<Option<VersionFiles>> {
        match self {
            Self::Folder { .. } => Ok(None),
            Self::Bucket(mirror) => mirror.fetch(&model.name, version).map(Some),
        }
    }

    /// The hash of a version, if it is known without its files.
    pub(super) fn digest(&self, model: &ModelFolder, version: u32) -> Option<ContentHash> {
        match self {
            Self::Folder { .. } => None,
            Self::Bucket(mirror) => mirror.digest(&model.name, version),
        }
    }

    /// Remembers the hash of a version, if that is useful.
    pub(super) fn remember(&mut self, model: &ModelFolder, version: u32, digest: ContentHash) {
        if let Self::Bucket(mirror) = self {
            mirror.remember(&model.name, version, digest);
        }
    }

    /// An error with the names that the user knows.
    pub(super) fn named(&self, error: &str) -> String {
        match self {
            Self::Folder { .. } => error.to_owned(),
            Self::Bucket(mirror) => mirror.with_addresses(error),
        }
    }

    /// Interval of the looks at a repository. Files that changed within an interval are not read.
    pub(super) fn interval(&self) -> Duration {
        match self {
            Self::Folder { .. } => FOLDER_INTERVAL,
            Self::Bucket(_) => BUCKET_INTERVAL,
        }
    }
}

impl fmt::Display for RepositorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder { folder, .. } => Path::display(folder).fmt(f),
            Self::Bucket(mirror) => mirror.address().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_a_bucket_or_a_folder() {
        let address = |text: &str| RepositoryAddress::from(OsString::from(text));
        assert_eq!(address("models"), RepositoryAddress::Folder("models".into()));
        assert_eq!(address("s3://models/all"), RepositoryAddress::Bucket("s3://models/all".into()));
        let refused = |text: &str| address(text).check("--model-repository").unwrap_err().to_string();
        assert!(refused("s3://").contains("s3:// cannot be opened"));
        assert!(refused("/nowhere").contains("--model-repository /nowhere: not a folder"));
    }
}
