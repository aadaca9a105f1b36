//! Durability after a power cut, which discards unsynced writes. Killing a process cannot test it,
//! since the kernel keeps the writes of a killed process.

use super::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use redb::StorageBackend;
use std::io;

/// A simulated disk that records its last synced state.
#[derive(Debug, Clone, Default)]
struct Disk(Arc<Mutex<Bytes>>);

#[derive(Debug, Default)]
struct Bytes {
    now: Vec<u8>,
    kept: Vec<u8>,
    broken: bool,
    full: bool,
}

impl Disk {
    /// The disk after a power cut: the synced state, plus a random part of each later write.
    fn cut(&self, random: &mut StdRng) -> Self {
        let bytes = self.0.lock();
        let mut after = bytes.kept.clone();
        after.resize(bytes.now.len().max(after.len()), 0);
        for (at, block) in bytes.now.chunks(4_096).enumerate() {
            if random.random_bool(0.5) {
                after[at * 4_096..at * 4_096 + block.len()].copy_from_slice(block);
            }
        }
        Self(Arc::new(Mutex::new(Bytes { now: after.clone(), kept: after, ..Bytes::default() })))
    }

    async fn open(&self) -> RedbStore {
        let disk = self.clone();
        let opener = Opener::new(move |_| {
            let opened = redb::Database::builder().create_with_backend(disk.clone());
            opened.map_err(|error| failure(Path::new("disk"), "open", error.into()))
        });
        RedbStore::start(PathBuf::from("disk"), opener).await.unwrap()
    }

    /// Fails writes from now on, as a full disk does, or lets them succeed again.
    fn set_full(&self, full: bool) {
        self.0.lock().full = full;
    }

    fn check_room(&self) -> Result<(), io::Error> {
        if self.0.lock().full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.0.lock().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let offset = offset as usize;
        out.copy_from_slice(&self.0.lock().now[offset..offset + out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.check_room()?;
        self.0.lock().now.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        let mut bytes = self.0.lock();
        if bytes.broken {
            return Err(io::Error::other("the disk is broken"));
        }
        bytes.kept = bytes.now.clone();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.check_room()?;
        let offset = offset as usize;
        self.0.lock().now[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }
}

#[tokio::test]
async fn commits_survive_a_power_cut() {
    for seed in 0..40 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut disk = Disk::default();
        let mut committed = 0_u32;
        for _ in 0..5 {
            let store = disk.open().await;
            let found = value(&store, "counter").await.map_or(0, |count| count.parse::<u32>().unwrap());
            assert_eq!(found, committed, "seed {seed}");
            for _ in 0..random.random_range(1..8) {
                committed += 1;
                let filler = vec![0; random.random_range(0..20_000)];
                let write =
                    Transaction::new().put(key("counter"), committed.to_string()).put(key("filler"), filler);
                done(store.commit(write).await.unwrap());
            }
            disk = disk.cut(&mut random);
        }
    }
}

#[tokio::test]
async fn disk_failure_fails_writes_and_publishes_nothing() {
    let disk = Disk::default();
    let store = Arc::new(disk.open().await);
    put(&*store, "k", "before").await;
    let mut watch = store.watch(&Prefix::all(), None).await.unwrap();
    disk.0.lock().broken = true;
    let write = || store.commit(Transaction::new().put(key("k"), "lost"));
    let (one, other, lease) = tokio::join!(write(), write(), store.grant_lease(Duration::from_secs(9)));
    for error in [one.unwrap_err(), other.unwrap_err(), lease.unwrap_err()] {
        assert!(matches!(error, Error::Storage { .. }), "{error:?}");
    }
    disk.0.lock().broken = false;
    store.close().await;
    assert_eq!(watch.next().await, Err(WatchEnd::Closed), "a write that failed was told to a watch");
    let store = disk.open().await;
    // The disk may have kept the write although its sync failed.
    assert!(["before", "lost"].contains(&value(&store, "k").await.unwrap().as_str()));
    assert!(put(&store, "k", "after").await > Revision(1));
}

/// Waits until the store reports that writes succeed.
async fn wait_until_healthy(store: &RedbStore) {
    weir_tests::eventually("a successful write", async || store.health().failure.is_none().then_some(()))
        .await;
}

/// The file stayed unusable after one write on a full disk, until the node was started again.
#[tokio::test]
async fn writes_succeed_again_once_a_full_disk_has_space() {
    let disk = Disk::default();
    let store = disk.open().await;
    put(&store, "k", "before").await;
    let lease = store.grant_lease(Duration::from_secs(600)).await.unwrap();
    let mut watch = store.watch(&Prefix::all(), None).await.unwrap();
    disk.set_full(true);
    for _ in 0..3 {
        let error = store.commit(Transaction::new().put(key("k"), "lost")).await.unwrap_err();
        assert!(matches!(error, Error::DiskFull { .. }), "{error:?}");
        assert!(error.to_string().contains("full"), "{error}");
    }
    let health = store.health();
    assert!(
        matches!(health.failure, Some(Error::DiskFull { .. })) && health.failed_writes >= 3,
        "{health:?}"
    );
    disk.set_full(false);
    // Without a write of a client: clients do not write to a node that is not ready.
    wait_until_healthy(&store).await;
    assert_eq!(value(&store, "k").await.as_deref(), Some("before"));
    store.keep_alive(lease.id).await.unwrap();
    let revision = put(&store, "k", "after").await;
    assert_eq!(watch.next().await.unwrap().revision, revision);
}

/// A commit whose sync failed may be in the file that is opened again.
#[tokio::test]
async fn watch_does_not_miss_a_commit_that_was_reported_as_failed() {
    let disk = Disk::default();
    let store = disk.open().await;
    let before = put(&store, "k", "before").await;
    let mut watch = store.watch(&Prefix::all(), None).await.unwrap();
    disk.0.lock().broken = true;
    store.commit(Transaction::new().put(key("k"), "maybe")).await.unwrap_err();
    disk.0.lock().broken = false;
    wait_until_healthy(&store).await;
    let entry = store.get(&key("k")).await.unwrap().unwrap();
    let after = put(&store, "other", "x").await;
    if entry.modified_at == before {
        assert_eq!(watch.next().await.unwrap().revision, after);
    } else {
        assert_eq!(watch.next().await, Err(WatchEnd::Lagged));
    }
}
