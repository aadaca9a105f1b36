//! Artefact files, verified before they are mapped.
//!
//! An artefact is machine code, so a changed byte can crash the node or change answers. After the
//! compiler process has ended, the node hashes the artefact and stores the hash in a file in the
//! same folder. Before a file is mapped, its contents are hashed and compared, once for each file
//! and start of the node. The hash file is durable before the artefact is renamed. After a crash,
//! an artefact therefore either matches its hash file or is compiled again.

use crate::sources::SourceTable;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use weir_storage::blobs::{STAGED_PREFIX, hash_file, persist};
use weir_types::ContentHash;

/// Limit of verified files that are remembered; beyond it, all are forgotten and verified again.
const VERIFIED_MAX: usize = 65_536;

/// Suffix of artefacts.
const ARTEFACT: &str = "cwasm";
/// Suffix of files with the hash of an artefact.
const HASH: &str = "sha256";

/// Suffix of tables of source locations.
const SOURCES: &str = "sources";

/// The artefacts in one folder, named by the digests of their components.
pub(super) struct Artefacts {
    folder: PathBuf,
    /// Files that have been verified, by component.
    verified: Mutex<HashMap<ContentHash, FileState>>,
}

/// State of a file at its verification. A change of the contents changes it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileState {
    device: u64,
    inode: u64,
    bytes: u64,
    modified_ns: (i64, i64),
}

impl FileState {
    pub(super) fn new(file: &File) -> io::Result<Self> {
        let about = file.metadata()?;
        Ok(Self {
            device: about.dev(),
            inode: about.ino(),
            bytes: about.len(),
            modified_ns: (about.mtime(), about.mtime_nsec()),
        })
    }
}

impl Artefacts {
    /// Opens `folder`, which is created if necessary, and removes unfinished files. Blocks.
    pub(super) fn open(folder: PathBuf) -> io::Result<Self> {
        weir_storage::blobs::create_folder(&folder)?;
        weir_storage::blobs::remove_staged(&folder)?;
        Ok(Self { folder, verified: Mutex::default() })
    }

    /// A new file for the compiler process to write an artefact to.
    pub(super) fn stage(&self) -> io::Result<NamedTempFile> {
        tempfile::Builder::new().prefix(STAGED_PREFIX).tempfile_in(&self.folder)
    }

    /// Stores the artefact of `component` with its hash and, if there is one, its table of source
    /// locations. Durable on return. Blocks.
    pub(super) fn keep(
        &self,
        component: ContentHash,
        staged: NamedTempFile,
        sources: Option<NamedTempFile>,
    ) -> io::Result<()> {
        if let Some(sources) = sources {
            persist(sources, &self.path(component, SOURCES))?;
        }
        let hash = hash_file(&mut File::open(staged.path())?)?;
        let mut hash_file = self.stage()?;
        hash_file.write_all(hash.to_string().as_bytes())?;
        self.verified.lock().remove(&component);
        persist(hash_file, &self.path(component, HASH))?;
        persist(staged, &self.path(component, ARTEFACT))
    }

    /// The path of the artefact of `component` if its contents are those that were stored. Removes
    /// an artefact that differs, with a warning. Blocks.
    pub(super) fn verified_path(&self, component: ContentHash) -> io::Result<Option<PathBuf>> {
        let path = self.path(component, ARTEFACT);
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let state = FileState::new(&file)?;
        if self.verified.lock().get(&component) == Some(&state) {
            return Ok(Some(path));
        }
        if self.read_hash(component)? != Some(hash_file(&mut file)?) {
            tracing::warn!(
                artefact = %path.display(),
                "an artefact differs from the one that was compiled: the component is compiled again"
            );
            std::fs::remove_file(&path)?;
            return Ok(None);
        }
        let mut verified = self.verified.lock();
        if verified.len() >= VERIFIED_MAX {
            verified.clear();
        }
        verified.insert(component, state);
        Ok(Some(path))
    }

    /// The table of source locations of `component`, if it has one. Blocks.
    pub(super) fn sources(&self, component: ContentHash) -> Option<SourceTable> {
        let path = self.path(component, SOURCES);
        path.exists().then(|| SourceTable::new(path))
    }

    /// The component of an artefact's file name; `None` for other files.
    pub(super) fn component_of(name: &str) -> Option<ContentHash> {
        name.strip_suffix(ARTEFACT)?.strip_suffix('.')?.parse().ok()
    }

    /// Removes the artefact of `component` with its hash and its source locations. Loaded code stays mapped. Blocks.
    pub(super) fn remove(&self, component: ContentHash) -> io::Result<()> {
        self.verified.lock().remove(&component);
        for suffix in [ARTEFACT, HASH, SOURCES] {
            match std::fs::remove_file(self.path(component, suffix)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, component: ContentHash, suffix: &str) -> PathBuf {
        self.folder.join(format!("{component}.{suffix}"))
    }

    /// The stored hash of an artefact. A hash that cannot be parsed equals none.
    fn read_hash(&self, component: ContentHash) -> io::Result<Option<ContentHash>> {
        match std::fs::read(self.path(component, HASH)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => Ok(String::from_utf8_lossy(&read?).parse().ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn component() -> ContentHash {
        ContentHash::from_content(b"component")
    }

    fn keep(artefacts: &Artefacts, bytes: &[u8]) {
        let mut staged = artefacts.stage().unwrap();
        staged.write_all(bytes).unwrap();
        artefacts.keep(component(), staged, None).unwrap();
    }

    #[test]
    fn changed_artefact_is_removed_and_intact_one_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let artefacts = Artefacts::open(folder.path().join("artefacts")).unwrap();
        assert!(artefacts.verified_path(component()).unwrap().is_none());
        let path = artefacts.path(component(), ARTEFACT);
        for is_verified_before in [false, true] {
            keep(&artefacts, b"machine code");
            if is_verified_before {
                assert!(artefacts.verified_path(component()).unwrap().is_some());
            }
            std::fs::write(&path, b"machine cods").unwrap();
            assert!(artefacts.verified_path(component()).unwrap().is_none(), "{is_verified_before}");
            assert!(!path.exists());
        }
        keep(&artefacts, b"machine code");
        std::fs::remove_file(artefacts.path(component(), HASH)).unwrap();
        assert!(artefacts.verified_path(component()).unwrap().is_none(), "it has no hash");
    }

    #[test]
    fn artefact_is_removed_with_its_hash_and_its_sources() {
        let folder = tempfile::tempdir().unwrap();
        let artefacts = Artefacts::open(folder.path().to_owned()).unwrap();
        keep(&artefacts, b"machine code");
        assert!(artefacts.sources(component()).is_none());
        let sources = artefacts.stage().unwrap();
        artefacts.keep(component(), artefacts.stage().unwrap(), Some(sources)).unwrap();
        assert!(artefacts.sources(component()).is_some());
        let names = || std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let found = names().find_map(|name| Artefacts::component_of(name.to_str().unwrap()));
        assert_eq!((found, names().count()), (Some(component()), 3));
        artefacts.remove(component()).unwrap();
        assert_eq!(names().count(), 0);
    }
}
