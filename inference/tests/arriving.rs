//! Models that run before all of their weights have arrived: completion of the load, and metering.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

mod support;

use std::sync::Arc;
use std::time::Duration;
use support::{MIB, id};
use tempfile::TempDir;
use weir_device::Arena;
use weir_inference::{
    CacheConfig, ErrorKind, FakeBackend, InferenceError, Meter, ModelCache, ModelKey, ModelSource, Pin,
    Preparer, Profiles, RunRequest,
};
use weir_types::Batching;

/// Far longer than any machine takes, so that only a hang fails.
const LONG: Duration = Duration::from_secs(60);
/// Time until all weights have arrived, after runs may begin.
const ARRIVES: Duration = Duration::from_millis(400);

struct Fixture {
    cache: ModelCache,
    source: Arc<ModelSource>,
    _folder: TempDir,
}

impl Fixture {
    /// With a model whose weights arrive after this time, or, below 0, never arrive.
    async fn new(arrive_time_ms: i64) -> Self {
        let arena = Arena::new(MIB);
        let folder = tempfile::tempdir().unwrap();
        let backend = Arc::new(FakeBackend::accelerator(1, "fast", arena.clone()));
        let file = folder.path().join("m.json");
        let json = format!(
            r#"{{ "resident_bytes": 10, "arrive_time_ms": {arrive_time_ms}, "run_time_ms": {{ "1": 1 }},
                  "signature": {{ "inputs": [], "outputs": [] }} }}"#
        );
        std::fs::write(&file, json).unwrap();
        let prepared = backend.prepare(&file, weir_types::Precision::default(), folder.path()).await.unwrap();
        let config = CacheConfig { capacity_bytes: 100, slots: 1, run_queue_len_max: 10 };
        let cache = ModelCache::start(config, backend, arena, Profiles::default()).unwrap();
        let source = ModelSource {
            key: ModelKey { id: id("m"), generation: 1 },
            prepared: Arc::new(prepared),
            blobs: folder.path().to_owned(),
            slots: None,
            batching: Batching::default(),
            meter: Meter::default(),
        };
        Self { cache, source: Arc::new(source), _folder: folder }
    }

    async fn acquire(&self) -> Pin {
        tokio::time::timeout(LONG, self.cache.acquire(&self.source, &[])).await.unwrap().unwrap()
    }

    /// Waits until the load has completed.
    async fn is_loaded(&self) {
        let mut loads = self.cache.loads();
        tokio::time::timeout(LONG, loads.wait_for(|loads| *loads > 0)).await.unwrap().unwrap();
    }
}

async fn run(pin: &Pin) -> Result<(), InferenceError> {
    tokio::time::timeout(LONG, pin.run(RunRequest::default())).await.unwrap().map(|_| ())
}

#[tokio::test(flavor = "multi_thread")]
async fn run_starts_before_load_completes_and_both_are_metered() {
    let stage = Fixture::new(i64::try_from(ARRIVES.as_millis()).unwrap()).await;
    let pin = stage.acquire().await;
    let there = stage.cache.resident();
    assert_eq!((there[0].load, stage.cache.used_bytes()), (None, 10), "its memory is taken");
    run(&pin).await.unwrap();
    stage.is_loaded().await;
    let load_time = stage.cache.resident()[0].load.unwrap().time;
    assert!(load_time >= ARRIVES && pin.load_time().unwrap() < load_time, "{load_time:?} {pin:?}");
    let profile = stage.cache.profiles().get(&stage.source.key);
    assert_eq!(profile.load_time_ns["memory"].count, 1);
    assert!(profile.load_time_ns["memory"].mean >= ARRIVES.as_nanos() as f64, "{profile:?}");
    assert!(profile.run_time_ns.is_empty(), "a cold run says nothing of others: {profile:?}");
    run(&pin).await.unwrap();
    assert_eq!(stage.cache.profiles().get(&stage.source.key).run_time_ns[&1].count, 1);
    let (_, used) = stage.source.meter.used()[0];
    assert!(used.loads == 1 && used.load_time_ns >= u64::try_from(ARRIVES.as_nanos()).unwrap(), "{used:?}");
    assert!(used.runs == 2 && used.run_time_ns < used.load_time_ns, "no time counts twice: {used:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_arrival_fails_runs_and_next_acquire_reloads() {
    let stage = Fixture::new(-50).await;
    for _ in 0..2 {
        let pin = stage.acquire().await;
        assert!(pin.load_time().is_some(), "it was loaded anew");
        let error = run(&pin).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        drop(pin);
        // The model is unloaded automatically; an acquire before that waits for the unload.
        let gone = stage.cache.unload(&stage.source.key);
        if let Some(gone) = gone {
            tokio::time::timeout(LONG, gone).await.unwrap();
        }
    }
    assert!(stage.cache.profiles().get(&stage.source.key).load_time_ns.is_empty());
    assert_eq!(stage.cache.used_bytes(), 0);
    let (_, used) = stage.source.meter.used()[0];
    assert_eq!(used.loads, 2, "what it took counts all the same");
}
