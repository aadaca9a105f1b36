//! The compiler process's side of the cache: the machine code of functions, in a file.
//!
//! The file has a magic number and the number of functions, then a table with the key and the length
//! of each function, then the code of each function, in the order of the table: those used most
//! recently come first. Keys are wasmtime's: hashes of a function in intermediate form, with the
//! settings of the compiler.

use super::super::compile::{CacheCounts, CacheTask};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use wasmtime::CacheStore;

const MAGIC: [u8; 8] = *b"weirfn1\n";
/// Bytes before the table: the magic number and the number of functions.
const HEAD_BYTES: u64 = 16;
/// Bytes of a function in the table: its key, and its length as a 32-bit number.
const ROW_BYTES: u64 = 36;
/// A new cache is written if the new functions have at least this part of the bytes of the cache:
/// after a small edit, compiling the changed functions again costs less than writing the cache.
const UPDATE_PART: u64 = 32;

type Key = [u8; 32];

/// Functions that were compiled earlier, and those that this process compiles.
#[derive(Debug)]
pub(in crate::component) struct CompiledFunctions {
    stored: Stored,
    bytes_max: u64,
    session: Mutex<Session>,
}

/// The functions of the file.
#[derive(Debug, Default)]
struct Stored {
    file: Option<File>,
    functions: HashMap<Key, Extent>,
    /// In the order of the file.
    keys: Vec<Key>,
    code_bytes: u64,
}

/// The part of the file with the code of a function.
#[derive(Debug, Clone, Copy)]
struct Extent {
    offset: u64,
    bytes: u32,
}

/// The functions that this process has used.
#[derive(Debug, Default)]
struct Session {
    compiled: HashMap<Key, Vec<u8>>,
    compiled_bytes: u64,
    /// Functions of the file.
    reused: HashSet<Key>,
    counts: CacheCounts,
}

impl CompiledFunctions {
    /// Opens the cache of a task. A file that cannot be read, or is none of a cache, equals none.
    pub(in crate::component) fn open(task: &CacheTask) -> Self {
        let stored = task.stored.as_deref().and_then(|path| Stored::read(path).ok()).unwrap_or_default();
        Self { stored, bytes_max: task.bytes_max, session: Mutex::default() }
    }

    /// The functions that were in the cache, and those that were not.
    pub(in crate::component) fn counts(&self) -> CacheCounts {
        self.session.lock().counts
    }

    /// Writes a new cache to `path`, unless it would hardly differ: the functions that this process
    /// has used, then the others, up to the limit.
    ///
    /// # Errors
    /// If a file cannot be read or written. The file at `path` is then empty.
    pub(in crate::component) fn update(&self, path: &Path) -> io::Result<()> {
        let session = self.session.lock();
        if session.compiled_bytes * UPDATE_PART < self.stored.code_bytes || session.compiled.is_empty() {
            return Ok(());
        }
        let file = File::create(path)?;
        let written = self.write(&session, BufWriter::new(&file));
        if written.is_err() {
            file.set_len(0)?;
        }
        written
    }

    fn write(&self, session: &Session, mut out: impl Write) -> io::Result<()> {
        let is_reused = |key: &&Key| session.reused.contains(*key);
        let others =
            self.stored.keys.iter().filter(|key| !is_reused(key) && !session.compiled.contains_key(*key));
        let used = session.compiled.keys().chain(self.stored.keys.iter().filter(is_reused));
        let mut room = self.bytes_max.saturating_sub(HEAD_BYTES);
        let mut keys = Vec::new();
        for key in used.chain(others) {
            let bytes = self.bytes(session, key);
            let Some(left) = room.checked_sub(ROW_BYTES + u64::from(bytes)) else { break };
            room = left;
            keys.push((key, bytes));
        }
        out.write_all(&MAGIC)?;
        out.write_all(&(keys.len() as u64).to_le_bytes())?;
        for (key, bytes) in &keys {
            out.write_all(*key)?;
            out.write_all(&bytes.to_le_bytes())?;
        }
        for (key, _) in keys {
            match session.compiled.get(key) {
                Some(code) => out.write_all(code)?,
                None => out.write_all(&self.stored.code(key)?)?,
            }
        }
        out.flush()
    }

    /// The length of a function's code. Longer code than a 32-bit number tells is never stored.
    fn bytes(&self, session: &Session, key: &Key) -> u32 {
        match session.compiled.get(key) {
            Some(code) => u32::try_from(code.len()).unwrap_or(u32::MAX),
            None => self.stored.functions.get(key).map_or(0, |extent| extent.bytes),
        }
    }
}

impl CacheStore for CompiledFunctions {
    fn get(&self, key: &[u8]) -> Option<Cow<'_, [u8]>> {
        let key: &Key = key.try_into().ok()?;
        // A component contains equal functions, too.
        let compiled = self.session.lock().compiled.get(key).cloned();
        let code = compiled.or_else(|| self.stored.code(key).ok());
        let mut session = self.session.lock();
        let Some(code) = code else {
            session.counts.misses += 1;
            return None;
        };
        session.counts.hits += 1;
        if self.stored.functions.contains_key(key) {
            session.reused.insert(*key);
        }
        Some(Cow::Owned(code))
    }

    fn insert(&self, key: &[u8], value: Vec<u8>) -> bool {
        let Ok(key) = Key::try_from(key) else { return false };
        let mut session = self.session.lock();
        let compiled_bytes = session.compiled_bytes + value.len() as u64;
        if compiled_bytes > self.bytes_max || u32::try_from(value.len()).is_err() {
            return false;
        }
        session.compiled_bytes = compiled_bytes;
        session.compiled.insert(key, value);
        true
    }
}

impl Stored {
    /// Reads the table of the file.
    fn read(path: &Path) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let file = File::open(path)?;
        let file_bytes = file.metadata()?.len();
        let mut table = BufReader::new(&file);
        let mut magic = [0; MAGIC.len()];
        let mut count = [0; 8];
        table.read_exact(&mut magic)?;
        table.read_exact(&mut count)?;
        let count = u64::from_le_bytes(count);
        if magic != MAGIC || count > file_bytes / ROW_BYTES {
            return Err(invalid());
        }
        let mut stored = Self::default();
        for _ in 0..count {
            let mut key = Key::default();
            let mut bytes = [0; 4];
            table.read_exact(&mut key)?;
            table.read_exact(&mut bytes)?;
            let bytes = u32::from_le_bytes(bytes);
            let offset = HEAD_BYTES + count * ROW_BYTES + stored.code_bytes;
            stored.functions.insert(key, Extent { offset, bytes });
            stored.keys.push(key);
            stored.code_bytes += u64::from(bytes);
        }
        if HEAD_BYTES + count * ROW_BYTES + stored.code_bytes != file_bytes {
            return Err(invalid());
        }
        drop(table);
        Ok(Self { file: Some(file), ..stored })
    }

    fn code(&self, key: &Key) -> io::Result<Vec<u8>> {
        let (Some(file), Some(extent)) = (&self.file, self.functions.get(key)) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let mut code = vec![0; extent.bytes as usize];
        file.read_exact_at(&mut code, extent.offset)?;
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::NamedTempFile;

    fn open(stored: Option<&NamedTempFile>, bytes_max: u64) -> CompiledFunctions {
        let stored = stored.map(|file| file.path().to_owned());
        CompiledFunctions::open(&CacheTask { stored, updated: "unused".into(), bytes_max })
    }

    fn updated(functions: &CompiledFunctions) -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        functions.update(file.path()).unwrap();
        file
    }

    fn has(functions: &CompiledFunctions, number: u8) -> bool {
        let code = functions.get(&[number; 32]);
        assert!(code.as_deref().is_none_or(|code| code == vec![number; 1_000]));
        code.is_some()
    }

    fn cache(numbers: impl IntoIterator<Item = u8>, bytes_max: u64) -> NamedTempFile {
        let functions = open(None, bytes_max);
        for number in numbers {
            assert!(!has(&functions, number));
            functions.insert(&[number; 32], vec![number; 1_000]);
            assert!(has(&functions, number), "used again by the same component");
        }
        updated(&functions)
    }

    #[test]
    fn functions_are_found_in_a_later_compilation() {
        let file = cache(0..100, 1 << 20);
        let later = open(Some(&file), 1 << 20);
        assert!((0..100).all(|number| has(&later, number)) && !has(&later, 100));
    }

    #[test]
    fn cache_is_written_again_only_for_more_than_a_small_edit() {
        let file = cache(0..100, 1 << 20);
        let edited = open(Some(&file), 1 << 20);
        assert!((0..100).all(|number| has(&edited, number)));
        edited.insert(&[100; 32], vec![100; 1_000]);
        assert_eq!(updated(&edited).as_file().metadata().unwrap().len(), 0);
        for number in 101..105 {
            edited.insert(&[number; 32], vec![number; 1_000]);
        }
        let both = open(Some(&updated(&edited)), 1 << 20);
        assert!((0..105).all(|number| has(&both, number)));
    }

    #[test]
    fn functions_used_least_recently_are_removed_beyond_the_limit() {
        let limit = HEAD_BYTES + 3 * (ROW_BYTES + 1_000) + 500;
        let file = cache(0..3, limit);
        let later = open(Some(&file), limit);
        assert!(has(&later, 1));
        later.insert(&[3; 32], vec![3; 1_000]);
        later.insert(&[4; 32], vec![4; 1_000]);
        let file = updated(&later);
        assert!(file.as_file().metadata().unwrap().len() <= limit);
        let last = open(Some(&file), limit);
        assert_eq!((0..5).filter(|number| has(&last, *number)).collect::<Vec<_>>(), [1, 3, 4]);
    }

    #[test]
    fn damaged_files_equal_none() {
        let file = cache(0..10, 1 << 20);
        let bytes = std::fs::read(file.path()).unwrap();
        let damaged = |bytes: &[u8]| {
            let file = NamedTempFile::new().unwrap();
            std::fs::write(file.path(), bytes).unwrap();
            (0..10).filter(|number| has(&open(Some(&file), 1 << 20), *number)).count()
        };
        assert_eq!(damaged(&bytes), 10);
        for end in [0, 7, 15, 100, bytes.len() - 1] {
            assert_eq!(damaged(&bytes[..end]), 0, "{end}");
        }
        let mut many = bytes.clone();
        many[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(damaged(&many), 0);
    }
}
