//! A repository below a prefix of a bucket of an S3-compatible store.
//!
//! [`BucketMirror`] has the tree of the bucket's files in a local folder, so that the bucket is read like
//! any other repository. Small files, such as `config.pbtxt`, have their contents. Other files have
//! their size and no contents, until a version is pushed or compared, and again after that: the disk
//! has the files of one version at a time. Lists of the bucket have the tags of its objects (`ETag`), and
//! an object is read again only after its tag has changed.

use super::folder::{CONFIG_BYTES_MAX, DEPTH_MAX, FilesState};
use crate::error::{Exit, Problem};
use crate::files::write_whole;
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::{NamedTempFile, TempDir};
use tokio::runtime::Runtime;
use weir_host::remote::{RemoteError, RemoteFile, RemoteFolder};
use weir_types::ContentHash;

/// Largest number of objects below the prefix.
const FILES_MAX: usize = 100_000;
/// Folder of the mirror in the data folder of a node.
const FOLDER: &str = "model-repository";
/// Subfolder with the files.
const FILES: &str = "files";
/// File with the hashes of versions.
const DIGESTS: &str = "digests.json";

/// The local tree of a bucket's files.
pub(super) struct BucketMirror {
    remote: RemoteFolder,
    runtime: Runtime,
    /// Deleted at the end of the process, for a mirror outside of a node's data folder.
    _temporary: Option<TempDir>,
    folder: PathBuf,
    /// The files of the last list, by path.
    files: BTreeMap<String, RemoteFile>,
    /// Hashes of versions that were read, by `NAME/VERSION`.
    digests: BTreeMap<String, VersionDigest>,
    stop: Arc<AtomicBool>,
}

/// The hash of a version, as a node computes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct VersionDigest {
    /// Hash of the paths and tags of the version's files.
    files: ContentHash,
    digest: ContentHash,
}

/// The contents of a version's files, until dropped.
pub(super) struct VersionFiles {
    files: Vec<(PathBuf, u64)>,
}

impl Drop for VersionFiles {
    fn drop(&mut self) {
        for (path, bytes) in &self.files {
            // A file that keeps its contents only takes space.
            let _ = write_placeholder(path, *bytes);
        }
    }
}

impl BucketMirror {
    /// A mirror of `address` in the data folder of a node, or in a temporary folder. Sends no request
    /// yet.
    pub(super) fn new(address: &str, data: Option<&Path>, stop: Arc<AtomicBool>) -> Result<Self> {
        let remote = open(address)?;
        let mut temporary = None;
        let folder = match data {
            Some(data) => data.join(FOLDER),
            None => {
                let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
                temporary.insert(folder).path().to_owned()
            }
        };
        let cannot = || format!("cannot make {}", folder.display());
        // A process that was killed leaves the contents of files there.
        match fs::remove_dir_all(folder.join(FILES)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(cannot);
            }
            _ => {}
        }
        fs::create_dir_all(folder.join(FILES)).with_context(cannot)?;
        // Without the hashes, the versions are read again.
        let digests = fs::read(folder.join(DIGESTS)).ok();
        let digests = digests.and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { remote, runtime, _temporary: temporary, folder, files: BTreeMap::new(), digests, stop })
    }

    /// The folder of the tree.
    pub(super) fn folder(&self) -> PathBuf {
        self.folder.join(FILES)
    }

    pub(super) fn address(&self) -> &str {
        self.remote.address()
    }

    /// Replaces paths in the mirror by addresses in the bucket.
    pub(super) fn with_addresses(&self, text: &str) -> String {
        text.replace(&*self.folder().to_string_lossy(), self.address())
    }

    /// Lists the bucket, and changes the tree accordingly.
    pub(super) fn refresh(&mut self) -> Result<()> {
        let listed = self.runtime.block_on(self.remote.list(FILES_MAX));
        let listed = shown(listed.map_err(|error| problem(&error))?);
        let gone: Vec<String> =
            self.files.keys().filter(|path| !listed.contains_key(*path)).cloned().collect();
        for path in gone {
            self.remove(&path)?;
        }
        for (path, file) in listed {
            // A file that changes meanwhile is in the next list.
            if self.files.get(&path) != Some(&file) && self.write(&file)? {
                self.files.insert(path, file);
            }
        }
        self.digests.retain(|version, _| has_files(&self.files, version));
        Ok(())
    }

    /// Removes a file and the folders that are empty then.
    fn remove(&mut self, path: &str) -> Result<()> {
        let top = self.folder();
        let local = top.join(path);
        match fs::remove_file(&local) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", local.display()));
            }
            _ => {}
        }
        let folders = local.ancestors().skip(1).take_while(|folder| *folder != top);
        for folder in folders {
            if fs::remove_dir(folder).is_err() {
                break;
            }
        }
        self.files.remove(path);
        Ok(())
    }

    /// Writes a listed file: whole if it is a small file of a model's folder. Returns false if such a
    /// file has changed since it was listed.
    fn write(&self, file: &RemoteFile) -> Result<bool> {
        let local = self.folder().join(&file.path);
        if let Some(parent) = local.parent() {
            fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        }
        let is_small = file.path.matches('/').count() == 1 && file.bytes <= CONFIG_BYTES_MAX as u64;
        if is_small {
            return match self.read(file, &local)? {
                Err(RemoteError::Changed(_)) => Ok(false),
                read => Ok(read.map(|()| true).map_err(|error| problem(&error))?),
            };
        }
        write_placeholder(&local, file.bytes).with_context(|| format!("cannot write {}", local.display()))?;
        Ok(true)
    }

    fn download(&self, file: &RemoteFile, to: &Path) -> Result<()> {
        Ok(self.read(file, to)?.map_err(|error| problem(&error))?)
    }

    /// Reads a file of the bucket; the outer errors are those of the local file.
    fn read(&self, file: &RemoteFile, to: &Path) -> Result<Result<(), RemoteError>> {
        let cannot = || format!("cannot write {}", to.display());
        let temporary = NamedTempFile::new_in(&self.folder).with_context(cannot)?;
        let mut writer = BufWriter::new(temporary);
        let read = self.remote.read(file, &mut writer, || self.stop.load(Ordering::Relaxed));
        if let Err(error) = self.runtime.block_on(read) {
            return Ok(Err(error));
        }
        let written = writer.into_inner().map_err(std::io::IntoInnerError::into_error);
        written.with_context(cannot)?.persist(to).with_context(cannot)?;
        Ok(Ok(()))
    }

    /// The state of the files of a model.
    pub(super) fn state(&self, model: &str) -> FilesState {
        let mut hasher = DefaultHasher::new();
        let mut newest = None;
        for file in below(&self.files, model) {
            (&file.path, &file.tag).hash(&mut hasher);
            newest = newest.max(Some(file.modified));
        }
        FilesState { fingerprint: hasher.finish(), newest }
    }

    /// Reads the files of a version.
    pub(super) fn fetch(&self, model: &str, version: u32) -> Result<VersionFiles> {
        let mut fetched = VersionFiles { files: Vec::new() };
        for file in below(&self.files, &format!("{model}/{version}")) {
            let local = self.folder().join(&file.path);
            fetched.files.push((local.clone(), file.bytes));
            self.download(file, &local)?;
        }
        Ok(fetched)
    }

    /// The hash of a version whose files were read before.
    pub(super) fn digest(&self, model: &str, version: u32) -> Option<ContentHash> {
        let known = self.digests.get(&format!("{model}/{version}"))?;
        (known.files == self.files_hash(model, version)).then_some(known.digest)
    }

    /// Remembers the hash of a version, also for the next start.
    pub(super) fn remember(&mut self, model: &str, version: u32, digest: ContentHash) {
        let digest = VersionDigest { files: self.files_hash(model, version), digest };
        self.digests.insert(format!("{model}/{version}"), digest);
        let Ok(json) = serde_json::to_vec(&self.digests) else { return };
        // Without the file, the next start reads the versions again.
        let _ = write_whole(&self.folder.join(DIGESTS), &json);
    }

    fn files_hash(&self, model: &str, version: u32) -> ContentHash {
        let folder = format!("{model}/{version}");
        let files = below(&self.files, &folder);
        let lines: String = files.map(|file| format!("{}\n{}\n", file.path, file.tag)).collect();
        ContentHash::from_content(lines.as_bytes())
    }
}

/// Opens `s3://BUCKET[/PREFIX]`.
pub(super) fn open(address: &str) -> Result<RemoteFolder> {
    RemoteFolder::open(address).map_err(|error| {
        let problem = Problem::usage(format!("{address} cannot be opened")).because(error);
        problem
            .hint(
                "use s3://BUCKET/PREFIX; set AWS_ENDPOINT, AWS_REGION and the credentials in the environment",
            )
            .into()
    })
}

/// Files with a name and no contents: their size does not take space.
fn write_placeholder(path: &Path, bytes: u64) -> std::io::Result<()> {
    File::create(path)?.set_len(bytes)
}

fn problem(error: &RemoteError) -> Problem {
    // What failed may succeed at the next look.
    let problem = Problem::new(error.to_string()).exit(Exit::Unreachable);
    match error {
        RemoteError::Store(_, source) => problem
            .because(anyhow::Error::msg(source.to_string()))
            .hint("check the address, and AWS_ENDPOINT, AWS_REGION and the credentials in the environment"),
        _ => problem,
    }
}

/// The files that a repository may use, by path. Leaves out hidden and deeply nested files, and objects
/// that stand for a folder.
fn shown(listed: Vec<RemoteFile>) -> BTreeMap<String, RemoteFile> {
    let is_shown = |file: &RemoteFile| {
        let parts = || file.path.split('/');
        parts().all(|part| !part.starts_with('.')) && parts().count() <= DEPTH_MAX + 1
    };
    let mut files: BTreeMap<String, RemoteFile> =
        listed.into_iter().filter(is_shown).map(|file| (file.path.clone(), file)).collect();
    let folders: Vec<String> = files.keys().filter(|path| has_files(&files, path)).cloned().collect();
    for folder in folders {
        files.remove(&folder);
    }
    files
}

/// The files in a folder and its subfolders.
fn below<'a>(
    files: &'a BTreeMap<String, RemoteFile>,
    folder: &str,
) -> impl Iterator<Item = &'a RemoteFile> + use<'a> {
    let prefix = format!("{folder}/");
    let from = files.range(prefix.clone()..);
    from.take_while(move |(path, _)| path.starts_with(&prefix)).map(|(_, file)| file)
}

fn has_files(files: &BTreeMap<String, RemoteFile>, folder: &str) -> bool {
    below(files, folder).next().is_some()
}
