//! Archives of a store in memory, read and restored.

use super::*;
use crate::format::RECORDS_BYTES;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use weir_datastore::{
    Commit, Datastore, Key, MemoryStore, Prefix, TRANSACTION_OPERATIONS_MAX, Transaction, VALUE_BYTES_MAX,
};
use weir_storage::blobs::Blobs;

struct Store {
    datastore: Arc<dyn Datastore>,
    blobs: Blobs,
    _folder: TempDir,
}

impl Store {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path().join("files"), None).unwrap();
        Self { datastore: Arc::new(MemoryStore::new()), blobs, _folder: folder }
    }

    fn folders(&self) -> Vec<BlobFolder> {
        vec![BlobFolder { name: "files", blobs: self.blobs.clone() }]
    }

    fn maker(&self) -> BackupMaker {
        BackupMaker::new(BackupSource {
            origin: BackupOrigin::Node,
            datastore: self.datastore.clone(),
            folders: self.folders(),
            transient: vec!["nodes/"],
        })
    }

    async fn put(&self, key: &str, value: impl Into<Bytes>) {
        let put = Transaction::new().put(Key::new(key).unwrap(), value);
        assert!(matches!(self.datastore.commit(put).await.unwrap(), Commit::Done(_)));
    }

    async fn keep(&self, contents: &[u8]) {
        let pieces = stream::iter([Ok::<_, std::io::Error>(Bytes::copy_from_slice(contents))]);
        let staged = self.blobs.stage(pieces, 1 << 20).await.unwrap();
        drop(self.blobs.keep(staged).await.unwrap());
    }

    async fn records(&self) -> Vec<(String, Bytes)> {
        let (entries, _) = self.datastore.read_all(&Prefix::all()).await.unwrap();
        entries.into_iter().map(|entry| (entry.key.as_str().to_owned(), entry.value)).collect()
    }
}

async fn archive_of(store: &Store) -> Vec<u8> {
    let backup = store.maker().begin().await.unwrap();
    backup.into_stream().map_ok(|piece| piece.to_vec()).try_concat().await.unwrap()
}

async fn restore_into(store: &Store, archive: &[u8]) -> Result<BackupSummary, RestoreError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(archive).unwrap();
    let target = RestoreTarget { folders: store.folders(), datastore: store.datastore.clone() };
    let runtime = tokio::runtime::Handle::current();
    let restoring = move || {
        let mut read = 0;
        let restored = restore(&mut file, &target, &runtime, |bytes| read = bytes);
        (restored, read, file.metadata().unwrap().len())
    };
    let (restored, read, bytes) = tokio::task::spawn_blocking(restoring).await.unwrap();
    // A tar file ends with two empty blocks of 512 bytes, which need not be read.
    assert!(restored.is_err() || bytes - read <= 1_024, "the progress ended at {read} of {bytes}");
    restored
}

/// Values of all sizes and kinds, over several files of records and several transactions.
#[tokio::test]
async fn restored_store_equals_the_saved_one() {
    let store = Store::new();
    for number in 0..3 * TRANSACTION_OPERATIONS_MAX {
        store.put(&format!("small/{number:04}"), format!("{{\"number\": \"{number}\\n\"}}")).await;
    }
    for number in 0..RECORDS_BYTES / VALUE_BYTES_MAX + 2 {
        store.put(&format!("large/{number}"), vec![0xff; VALUE_BYTES_MAX]).await;
        store.put(&format!("text/{number}"), "\u{1}".repeat(VALUE_BYTES_MAX)).await;
    }
    store.put("empty", "").await;
    store.keep(b"").await;
    store.keep(&[7; 512]).await;
    store.keep(&[8; 700_000]).await;
    let expected = store.records().await;
    // These are not of the backup.
    store.put("nodes/1", "running").await;
    store.put("identity", "of the folder").await;
    let lease = store.datastore.grant_lease(Duration::from_secs(60)).await.unwrap();
    let leased = Transaction::new().put_leased(Key::new("claim").unwrap(), "held", lease.id);
    store.datastore.commit(leased).await.unwrap();

    let archive = archive_of(&store).await;
    let other = Store::new();
    let summary = restore_into(&other, &archive).await.unwrap();
    assert_eq!((summary.records, summary.blobs, summary.blob_bytes), (expected.len() as u64, 3, 700_512));
    assert!(other.records().await == expected);
    assert_eq!(other.blobs.all().await.unwrap(), store.blobs.all().await.unwrap());
    for digest in other.blobs.all().await.unwrap() {
        assert_eq!(
            std::fs::read(other.blobs.path(digest)).unwrap(),
            std::fs::read(store.blobs.path(digest)).unwrap()
        );
    }
}

/// Wherever an archive is cut, it is not taken for a complete one, and no record is written.
#[tokio::test]
async fn cut_archives_are_incomplete() {
    let store = Store::new();
    store.put("a", "1").await;
    store.keep(b"a blob").await;
    let archive = archive_of(&store).await;
    for end in (0..archive.len() - 1_024).step_by(256) {
        let other = Store::new();
        let error = restore_into(&other, &archive[..end]).await.unwrap_err();
        let is_known = match &error {
            RestoreError::Read(ReadError::Incomplete) => true,
            // Not even the name of the first file is there.
            RestoreError::Read(ReadError::OtherFile) => end < 512,
            _ => false,
        };
        assert!(is_known, "cut at {end}: {error:?}");
        assert_eq!(other.records().await, []);
    }
}

/// A backup that its client abandons ends, and makes room for the next one.
#[tokio::test]
async fn dropped_backup_ends() {
    let store = Store::new();
    store.keep(&[7; 1 << 20]).await;
    let maker = store.maker();
    let mut first = Box::pin(maker.begin().await.unwrap().into_stream());
    first.next().await.unwrap().unwrap();
    assert!(matches!(maker.begin().await, Err(BackupError::Busy)));
    drop(first);
    while matches!(maker.begin().await, Err(BackupError::Busy)) {
        tokio::task::yield_now().await;
    }
}
