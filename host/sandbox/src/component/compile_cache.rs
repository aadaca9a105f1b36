//! A cache of machine code, by function of a component.
//!
//! Components of one language contain the same interpreter or the same library, and an edit changes
//! few functions. With the cache, only functions that are in no earlier component are compiled.
//!
//! The cache is one file. The compiler process reads it and writes a new one; the node puts the hash
//! of the new file into the name, and compares the contents with it before the next compiler process
//! reads the file. Several nodes may share the folder: files are written once, and a newer one
//! replaces the others. Whatever goes wrong with the cache is logged, and the component is compiled
//! without it.
//!
//! A compiler process that a component has taken over could write any machine code into the cache.
//! Therefore, only a node with one tenant has a cache.

mod functions;
pub(super) use functions::CompiledFunctions;

use super::artefacts::FileState;
use super::compatibility_hash;
use super::compile::CacheTask;
use crate::engine::{Engines, Generation};
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tempfile::NamedTempFile;
use weir_storage::blobs::{STAGED_PREFIX, hash_file};

/// Caches of other builds of Weir that stay in the folder.
const OTHER_BUILDS_MAX: usize = 2;
/// The age at which an unfinished file is certainly abandoned: compiling takes less CPU time.
const ABANDONED_AFTER: Duration = Duration::from_secs(3_600);
/// Suffix of cache files.
const SUFFIX: &str = ".functions";

/// The cache in one folder.
#[derive(Debug)]
pub struct CompileCache {
    folder: PathBuf,
    /// Beginning of the names of this build's files.
    prefix: String,
    bytes_max: u64,
    /// The file that was verified last.
    verified: Mutex<Option<(PathBuf, FileState)>>,
}

impl CompileCache {
    /// Opens the cache in `folder`, which is created if necessary, for components that `engines`
    /// run. Blocks.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn open(folder: PathBuf, engines: &Engines, bytes_max: u64) -> io::Result<Self> {
        let build = [Generation::P2, Generation::P3].map(|it| compatibility_hash(engines.get(it)));
        Self::for_build(folder, &build.join("-"), bytes_max)
    }

    fn for_build(folder: PathBuf, build: &str, bytes_max: u64) -> io::Result<Self> {
        weir_storage::blobs::create_folder(&folder)?;
        let cache = Self { folder, prefix: format!("{build}-"), bytes_max, verified: Mutex::default() };
        cache.remove_where(|name, age| name.starts_with(STAGED_PREFIX) && age > ABANDONED_AFTER)?;
        Ok(cache)
    }

    /// A new file for the compiler process.
    fn stage(&self) -> io::Result<NamedTempFile> {
        tempfile::Builder::new().prefix(STAGED_PREFIX).tempfile_in(&self.folder)
    }

    /// The newest cache of this build whose contents match the hash in its name. Blocks.
    fn stored(&self) -> io::Result<Option<PathBuf>> {
        for (path, _) in self.newest_first(|name| name.starts_with(&self.prefix))? {
            match self.verify(&path) {
                Ok(true) => return Ok(Some(path)),
                Ok(false) => {
                    tracing::warn!(file = %path.display(), "the compile cache differs from what was stored: removing it");
                    remove(&path)?;
                }
                // Another node has replaced it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn verify(&self, path: &Path) -> io::Result<bool> {
        let mut file = File::open(path)?;
        let state = FileState::new(&file)?;
        let key = Some((path.to_owned(), state));
        if *self.verified.lock() == key {
            return Ok(true);
        }
        let is_intact = *path == self.path(&hash_file(&mut file)?.to_string());
        if is_intact {
            *self.verified.lock() = key;
        }
        Ok(is_intact)
    }

    /// Replaces earlier caches by the file that the compiler process has written. An empty file is
    /// ignored: the process has not updated the cache. Blocks.
    fn keep(&self, staged: NamedTempFile) -> io::Result<()> {
        let mut file = File::open(staged.path())?;
        let bytes = file.metadata()?.len();
        if bytes == 0 || bytes > self.bytes_max {
            return Ok(());
        }
        let path = self.path(&hash_file(&mut file)?.to_string());
        staged.persist(&path)?;
        *self.verified.lock() = Some((path.clone(), FileState::new(&file)?));
        for (older, _) in self.newest_first(|name| name.starts_with(&self.prefix))? {
            if older != path {
                remove(&older)?;
            }
        }
        let others = self.newest_first(|name| !name.starts_with(&self.prefix))?;
        others.iter().skip(OTHER_BUILDS_MAX).try_for_each(|(path, _)| remove(path))
    }

    /// The cache files whose names `is_wanted` accepts.
    fn newest_first(&self, is_wanted: impl Fn(&str) -> bool) -> io::Result<Vec<(PathBuf, SystemTime)>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| name.ends_with(SUFFIX)) else { continue };
            // Another node may have removed it.
            if is_wanted(name)
                && let Ok(modified) = entry.metadata().and_then(|about| about.modified())
            {
                found.push((entry.path(), modified));
            }
        }
        found.sort_by_key(|(_, modified)| std::cmp::Reverse(*modified));
        Ok(found)
    }

    fn remove_where(&self, is_unwanted: impl Fn(&str, Duration) -> bool) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            let age =
                entry.metadata().and_then(|about| about.modified()).ok().and_then(|it| it.elapsed().ok());
            if let (Some(name), Some(age)) = (entry.file_name().to_str(), age)
                && is_unwanted(name, age)
            {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }

    fn path(&self, hash: &str) -> PathBuf {
        self.folder.join(format!("{}{hash}{SUFFIX}", self.prefix))
    }
}

/// Removes a file that another node may have removed.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The files of the cache during one compilation.
pub(super) struct CachedCompilation {
    cache: Arc<CompileCache>,
    stored: Option<PathBuf>,
    updated: NamedTempFile,
}

/// Prepares the files of `cache` for a compilation. `None` without a cache, or if it is not usable.
pub(super) async fn begin(cache: Option<&Arc<CompileCache>>) -> Option<CachedCompilation> {
    let cache = cache?.clone();
    let files = tokio::task::spawn_blocking(move || {
        let stored = cache.stored()?;
        let updated = cache.stage()?;
        io::Result::Ok(CachedCompilation { cache, stored, updated })
    });
    let files = files.await.map_err(io::Error::other).flatten();
    files.inspect_err(|error| tracing::warn!(%error, "compiling without the compile cache")).ok()
}

impl CachedCompilation {
    /// The part of the child's task.
    pub(super) fn task(&self) -> CacheTask {
        CacheTask {
            stored: self.stored.clone(),
            updated: self.updated.path().to_owned(),
            bytes_max: self.cache.bytes_max,
        }
    }

    /// Stores the new cache that the child may have written.
    pub(super) async fn end(self) {
        let kept = tokio::task::spawn_blocking(move || self.cache.keep(self.updated));
        if let Err(error) = kept.await.map_err(io::Error::other).flatten() {
            tracing::warn!(%error, "storing the compile cache failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn keep(cache: &CompileCache, bytes: &[u8]) {
        let mut staged = cache.stage().unwrap();
        staged.write_all(bytes).unwrap();
        cache.keep(staged).unwrap();
    }

    fn files(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn newer_cache_replaces_the_older_one_also_for_another_node() {
        let folder = tempfile::tempdir().unwrap();
        let open = || CompileCache::for_build(folder.path().to_owned(), "build", 100).unwrap();
        let first = open();
        assert_eq!(first.stored().unwrap(), None);
        keep(&first, b"one");
        let second = open();
        keep(&second, b"two");
        let stored = first.stored().unwrap().unwrap();
        assert_eq!((std::fs::read(stored).unwrap().as_slice(), files(folder.path())), (&b"two"[..], 1));
    }

    #[test]
    fn changed_cache_is_removed_even_after_it_was_verified() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CompileCache::for_build(folder.path().to_owned(), "build", 100).unwrap();
        keep(&cache, b"machine code");
        let path = cache.stored().unwrap().unwrap();
        std::fs::write(&path, b"machine cods").unwrap();
        assert_eq!((cache.stored().unwrap(), path.exists()), (None, false));
    }

    #[test]
    fn empty_and_oversized_updates_keep_the_earlier_cache() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CompileCache::for_build(folder.path().to_owned(), "build", 100).unwrap();
        keep(&cache, b"machine code");
        keep(&cache, b"");
        keep(&cache, &[1; 101]);
        let stored = cache.stored().unwrap().unwrap();
        assert_eq!(
            (std::fs::read(stored).unwrap().as_slice(), files(folder.path())),
            (&b"machine code"[..], 1)
        );
    }

    #[test]
    fn caches_of_two_other_builds_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        for build in ["a", "b", "c", "d", "e"] {
            let cache = CompileCache::for_build(folder.path().to_owned(), build, 100).unwrap();
            keep(&cache, build.as_bytes());
            assert!(cache.stored().unwrap().is_some());
        }
        assert_eq!(files(folder.path()), 1 + OTHER_BUILDS_MAX);
    }
}
