//! Run settings of a model (concurrent runs and threads per run): changes while it is served, and
//! measurements in the meantime.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{MIB, id};
use tempfile::TempDir;
use weir_device::Arena;
use weir_inference::{
    CacheConfig, FakeBackend, InferenceError, ModelCache, ModelKey, ModelSource, Pin, Preparer, Profiles,
    RunRequest, RunSetting,
};
use weir_types::{Batching, Measured};

/// Far longer than any machine takes, so that only a hang fails.
const LONG: Duration = Duration::from_secs(60);
/// Time of a run with one thread; with more threads, a run takes no time.
const ALONE: Duration = Duration::from_millis(200);

const SLOTS: usize = 3;

struct Fixture {
    cache: ModelCache,
    backend: Arc<FakeBackend>,
    folder: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let arena = Arena::new(MIB);
        let backend = Arc::new(FakeBackend::new(arena.clone()));
        let config = CacheConfig { capacity_bytes: 100, slots: SLOTS, run_queue_len_max: 1_000 };
        let cache = ModelCache::start(config, backend.clone(), arena, Profiles::default()).unwrap();
        Self { cache, backend, folder: tempfile::tempdir().unwrap() }
    }

    async fn model(&self, run_time: Duration) -> Pin {
        let file = self.folder.path().join("model.json");
        let json = format!(
            r#"{{ "resident_bytes": 10, "session_bytes": 3, "run_time_ms": {{ "1": {} }}, "time_by_threads": {{ "2": 0.0 }},
                  "signature": {{ "inputs": [], "outputs": [] }} }}"#,
            run_time.as_millis()
        );
        std::fs::write(&file, json).unwrap();
        let prepared = Arc::new(
            self.backend.prepare(&file, weir_types::Precision::default(), self.folder.path()).await.unwrap(),
        );
        let key = ModelKey { id: id("m"), generation: 1 };
        let blobs = self.folder.path().to_owned();
        let source = ModelSource {
            key,
            prepared,
            blobs,
            slots: None,
            batching: Batching::default(),
            meter: weir_inference::Meter::default(),
        };
        self.cache.acquire(&Arc::new(source), &[]).await.unwrap()
    }

    async fn set(&self, pin: &Pin, threads: u32, sessions: usize) {
        let applied = self.cache.set_run_setting(pin.key(), RunSetting { threads, sessions }).unwrap();
        tokio::time::timeout(LONG, applied).await.unwrap().unwrap();
    }

    fn setting(&self, pin: &Pin) -> (u32, usize, usize) {
        let (RunSetting { threads, sessions }, made) = self.cache.run_setting(pin.key()).unwrap();
        (threads, sessions, made)
    }

    /// Waits until the loader thread has done its queued work.
    async fn settled(&self, pin: &Pin) {
        let (threads, sessions, _) = self.setting(pin);
        self.set(pin, threads, sessions).await;
    }
}

async fn run(pin: &Pin) -> Result<Duration, InferenceError> {
    let run = pin.run(RunRequest::default());
    tokio::time::timeout(LONG, run).await.unwrap().map(|completion| completion.run_time)
}

async fn eventually(what: &str, check: impl Fn() -> bool) {
    let began = Instant::now();
    while !check() {
        assert!(began.elapsed() < LONG, "{what} did not happen");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_continue_through_a_change_and_later_runs_use_new_threads() {
    let stage = Fixture::new();
    let pin = stage.model(ALONE).await;
    assert_eq!(stage.setting(&pin), (1, SLOTS, 1));
    assert!(run(&pin).await.unwrap() >= ALONE);
    let under_way = [pin.run(RunRequest::default()), pin.run(RunRequest::default())];
    // The second run has created another session.
    eventually("a second session", || stage.setting(&pin).2 == 2).await;
    let other = pin.clone();
    let always = tokio::spawn(async move {
        let mut runs = 0;
        while runs < 200 {
            run(&other).await.unwrap();
            runs += 1;
        }
    });
    stage.set(&pin, 2, 2).await;
    assert!(run(&pin).await.unwrap() < ALONE, "it had one thread");
    for sessions in [1, 3, 2] {
        stage.set(&pin, 2, sessions).await;
    }
    for run in under_way {
        assert!(tokio::time::timeout(LONG, run).await.unwrap().unwrap().run_time >= ALONE);
    }
    always.await.unwrap();
    // Limited to the device's maximum.
    stage.set(&pin, 1_000, 1_000).await;
    let (threads, sessions, _) = stage.setting(&pin);
    assert_eq!((threads, sessions), (stage.cache.threads_max(), SLOTS));
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_runs_follow_the_session_setting() {
    let stage = Fixture::new();
    let pin = stage.model(LONG * 60).await;
    stage.set(&pin, 1, 1).await;
    let runs: Vec<_> = (0..3).map(|_| pin.run(RunRequest::default())).collect();
    eventually("the first run", || stage.cache.queue_len() == 2).await;
    stage.set(&pin, 1, 2).await;
    eventually("the second run", || stage.cache.queue_len() == 1).await;
    stage.set(&pin, 1, 3).await;
    eventually("the third run", || stage.cache.queue_len() == 0).await;
    drop(runs);
}

#[tokio::test(flavor = "multi_thread")]
async fn surplus_sessions_end_only_after_the_idle_time() {
    let stage = Fixture::new();
    let pin = stage.model(ALONE).await;
    let key = pin.key().clone();
    stage.set(&pin, 2, 3).await;
    assert_eq!(stage.setting(&pin), (2, 3, 4), "three beside the old one");
    stage.cache.retire_sessions(&key, LONG);
    stage.settled(&pin).await;
    assert_eq!(stage.setting(&pin), (2, 3, 4));
    stage.cache.retire_sessions(&key, Duration::ZERO);
    stage.settled(&pin).await;
    assert_eq!(stage.setting(&pin), (2, 3, 3));
    stage.set(&pin, 2, 1).await;
    assert_eq!(stage.setting(&pin), (2, 1, 3), "kept for a change back");
    stage.cache.retire_sessions(&key, Duration::ZERO);
    stage.settled(&pin).await;
    assert_eq!(stage.setting(&pin), (2, 1, 1));
    // After an unload, the model starts with the default setting.
    drop(stage.cache.unload(&key));
    drop(pin);
    eventually("the unloading", || stage.cache.run_setting(&key).is_none() && stage.cache.used_bytes() == 0)
        .await;
    assert!(stage.cache.set_run_setting(&key, RunSetting { threads: 1, sessions: 1 }).is_none());
    let again = stage.model(ALONE).await;
    assert_eq!(stage.setting(&again), (1, SLOTS, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn probe_uses_separate_sessions_and_does_not_change_the_profile() {
    let stage = Fixture::new();
    let pin = stage.model(ALONE).await;
    let key = pin.key().clone();
    let before = stage.setting(&pin);
    let probe = pin.probe(2);
    let ran = tokio::time::timeout(LONG, probe.run(RunRequest::default())).await.unwrap().unwrap();
    assert!(ran.run_time < ALONE, "it had one thread");
    assert_eq!((stage.setting(&pin), pin.session_bytes()), (before, 3));
    assert!(stage.cache.profiles().get(&key).run_time_ns.is_empty());

    let measured = Measured {
        threads: 2,
        batch: 1,
        concurrency: 1,
        runs: 1,
        latency_p50_ns: 1,
        latency_p95_ns: 1,
        throughput_per_s: 1.0,
        memory_bytes: 1,
    };
    drop(stage.cache.profiles().take_changed());
    pin.set_measured(vec![measured]);
    let changed = stage.cache.profiles().take_changed();
    assert_eq!(changed.len(), 1);
    assert_eq!(*changed[0].1.measured, [measured]);
    run(&pin).await.unwrap();
    assert_eq!(*stage.cache.profiles().get(&key).measured, [measured], "kept beside what runs take");

    // The probe keeps the model resident until it is dropped.
    let gone = stage.cache.unload(&key).unwrap();
    drop(pin);
    tokio::time::timeout(LONG, probe.run(RunRequest::default())).await.unwrap().unwrap();
    drop(probe);
    tokio::time::timeout(LONG, gone).await.unwrap();
    assert_eq!(stage.cache.used_bytes(), 0);
}
