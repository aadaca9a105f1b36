//! Device loss: a lost device loses its models and runs, affects no other device, and is usable
//! again after its recovery.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

mod support;

use std::sync::Arc;
use std::time::Duration;
use support::{MIB, id};
use tempfile::TempDir;
use weir_device::Arena;
use weir_inference::{
    CacheConfig, ErrorKind, FakeBackend, Health, InferenceError, ModelCache, ModelKey, ModelSource, Pin,
    Preparer, Profiles, RunRequest, RunSetting,
};
use weir_types::{Batching, ErrorCode};

/// Far longer than any machine takes, so that only a hang fails.
const LONG: Duration = Duration::from_secs(60);

/// A device that a run of the model `breaks` loses, and that recovers at the first attempt.
struct Fixture {
    cache: ModelCache,
    backend: Arc<FakeBackend>,
    folder: TempDir,
}

impl Fixture {
    fn new(slots: usize) -> Self {
        let arena = Arena::new(MIB);
        let backend = Arc::new(FakeBackend::accelerator(1, "fast", arena.clone()));
        let config = CacheConfig { capacity_bytes: 100, slots, run_queue_len_max: 10 };
        let cache = ModelCache::start(config, backend.clone(), arena, Profiles::default()).unwrap();
        Self { cache, backend, folder: tempfile::tempdir().unwrap() }
    }

    async fn source(&self, name: &str, on_fast: &str) -> Arc<ModelSource> {
        self.source_of(name, 10, on_fast).await
    }

    async fn source_of(&self, name: &str, resident_bytes: u64, on_fast: &str) -> Arc<ModelSource> {
        let file = self.folder.path().join(format!("{name}.json"));
        let json = format!(
            r#"{{ "resident_bytes": {resident_bytes}, "on": {{ "fast": {on_fast} }}, "signature": {{ "inputs": [], "outputs": [] }} }}"#
        );
        std::fs::write(&file, json).unwrap();
        let prepared = Arc::new(
            self.backend.prepare(&file, weir_types::Precision::default(), self.folder.path()).await.unwrap(),
        );
        let key = ModelKey { id: id(name), generation: 1 };
        let blobs = self.folder.path().to_owned();
        Arc::new(ModelSource {
            key,
            prepared,
            blobs,
            slots: None,
            batching: Batching::default(),
            meter: weir_inference::Meter::default(),
        })
    }

    async fn acquire(&self, source: &Arc<ModelSource>) -> Result<Pin, InferenceError> {
        tokio::time::timeout(LONG, self.cache.acquire(source, &[])).await.unwrap()
    }

    /// Resident models, in the order in which they were loaded or last used.
    fn there(&self) -> Vec<String> {
        self.cache.resident().into_iter().map(|model| model.id.name.to_string()).collect()
    }

    /// Waits until this many models are resident.
    async fn are_there(&self, count: usize) {
        let mut loads = self.cache.loads();
        let all = loads.wait_for(|_| self.cache.resident().len() == count);
        tokio::time::timeout(LONG, all).await.unwrap().unwrap();
    }

    async fn is_up(&self) {
        let mut health = self.cache.health();
        let up = health.wait_for(|health| *health == Health::Up);
        tokio::time::timeout(LONG, up).await.unwrap().unwrap();
    }
}

async fn run(pin: &Pin) -> Result<(), InferenceError> {
    tokio::time::timeout(LONG, pin.run(RunRequest::default())).await.unwrap().map(|_| ())
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_device_loses_its_models_and_reloads_them() {
    let stage = Fixture::new(2);
    let endless = stage.source("endless", r#"{ "run_time_ms": { "1": 3600000 } }"#).await;
    let idle = stage.source("idle", "{}").await;
    let breaks = stage.source("breaks", r#"{ "loses_device_ms": 0 }"#).await;
    let (endless_pin, idle_pin) =
        (stage.acquire(&endless).await.unwrap(), stage.acquire(&idle).await.unwrap());
    let breaks_pin = stage.acquire(&breaks).await.unwrap();
    let running = endless_pin.run(RunRequest::default());
    let waiting = endless_pin.clone();
    let mut health = stage.cache.health();
    let culprit = run(&breaks_pin).await.unwrap_err();
    assert!(
        matches!(&culprit, InferenceError::DeviceLostInUse(why) if why.contains("fake model")),
        "{culprit}"
    );
    let bystander = tokio::time::timeout(LONG, running).await.unwrap().unwrap_err();
    assert!(matches!(bystander, InferenceError::DeviceLostInUse(_)), "{bystander}");
    assert!(health.has_changed().unwrap(), "nobody was told");
    health.mark_unchanged();
    stage.is_up().await;
    // Earlier pins do not refer to the reloaded models.
    for pin in [&waiting, &idle_pin, &breaks_pin] {
        assert!(matches!(run(pin).await, Err(InferenceError::DeviceLost(_))), "{pin:?}");
    }
    // The reload needs no call; a model that is still pinned from before is reloaded when that pin
    // drops.
    drop((endless_pin, waiting, breaks_pin));
    stage.are_there(2).await;
    assert!(!stage.cache.is_resident(&idle.key));
    drop(idle_pin);
    stage.are_there(3).await;
    let again = stage.acquire(&idle).await.unwrap();
    assert!(again.load_time().is_none(), "nobody had to wait for it");
    run(&again).await.unwrap();
    assert_eq!(stage.cache.used_bytes(), 30);
}

/// A run that ends its device each time must not be retried without end.
#[tokio::test(flavor = "multi_thread")]
async fn running_calls_of_lost_device_count_as_attempts_and_waiting_calls_do_not() {
    let stage = Fixture::new(2);
    let endless = stage.source("endless", r#"{ "run_time_ms": { "1": 3600000 } }"#).await;
    let breaks = stage.source("breaks", r#"{ "loses_device_ms": 3600000 }"#).await;
    let (endless_pin, breaks_pin) =
        (stage.acquire(&endless).await.unwrap(), stage.acquire(&breaks).await.unwrap());
    let running = endless_pin.run(RunRequest::default());
    let culprit = breaks_pin.run(RunRequest::default());
    let culprit = tokio::time::timeout(LONG, culprit).await.unwrap().unwrap_err();
    assert_eq!((culprit.code(), culprit.kind()), (ErrorCode::WorkerLost, ErrorKind::Unavailable));
    let bystander = tokio::time::timeout(LONG, running).await.unwrap().unwrap_err();
    assert_eq!(bystander.code(), ErrorCode::WorkerLost);
    // These two had not begun.
    assert_eq!(run(&endless_pin).await.unwrap_err().code(), ErrorCode::Unavailable);
    assert_eq!(stage.acquire(&endless).await.unwrap_err().code(), ErrorCode::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn acquire_can_wait_for_room_taken_by_reloads() {
    let stage = Fixture::new(2);
    let first = stage.source_of("first", 60, r#"{ "load_time_ms": 300, "loses_device_ms": 0 }"#).await;
    let second = stage.source_of("second", 60, "{}").await;
    let pin = stage.acquire(&first).await.unwrap();
    let mut loads = stage.cache.loads();
    loads.mark_unchanged();
    run(&pin).await.unwrap_err();
    drop(pin);
    stage.is_up().await;
    // Once the reload has begun.
    let refused = tokio::time::timeout(LONG, async {
        while !stage.cache.is_any_loading() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stage.acquire(&second).await.unwrap_err()
    });
    let refused = refused.await.unwrap();
    assert!(matches!(refused, InferenceError::NoRoom { .. }), "{refused}");
    assert!(stage.cache.is_any_loading());
    tokio::time::timeout(LONG, loads.changed()).await.unwrap().unwrap();
    assert!(!stage.cache.is_any_loading());
    let victims = [first.key.id.clone()];
    tokio::time::timeout(LONG, stage.cache.acquire(&second, &victims)).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn reload_restores_run_settings_and_skips_unloaded_models() {
    let stage = Fixture::new(4);
    let sized = stage.source("sized", "{}").await;
    let gone = stage.source("gone", "{}").await;
    let breaks = stage.source("breaks", r#"{ "loses_device_ms": 500 }"#).await;
    drop((stage.acquire(&sized).await.unwrap(), stage.acquire(&gone).await.unwrap()));
    let setting = RunSetting { threads: 2, sessions: 3 };
    stage.cache.set_run_setting(&sized.key, setting).unwrap().await.unwrap();
    run(&stage.acquire(&breaks).await.unwrap()).await.unwrap_err();
    drop(stage.cache.unload(&gone.key));
    stage.is_up().await;
    stage.are_there(2).await;
    assert_eq!(stage.there(), ["breaks", "sized"]);
    // The setting is restored after the load.
    drop(stage.acquire(&stage.source("later", "{}").await).await.unwrap());
    assert_eq!(stage.cache.run_setting(&sized.key).map(|(setting, _)| setting), Some(setting));
}

#[tokio::test(flavor = "multi_thread")]
async fn second_loss_during_reload_leaves_loading_to_calls() {
    let stage = Fixture::new(2);
    let slow = r#"{ "load_time_ms": 300 }"#;
    let mut first = Vec::new();
    for name in ["a", "b", "c"] {
        first.push(stage.source(name, slow).await);
        stage.acquire(&first[first.len() - 1]).await.unwrap();
    }
    let breaks = stage.source("breaks", r#"{ "loses_device_ms": 0 }"#).await;
    let pin = stage.acquire(&breaks).await.unwrap();
    // Used last, and so reloaded first.
    drop(stage.cache.pin(&first[2].key));
    run(&pin).await.unwrap_err();
    drop(pin);
    stage.is_up().await;
    // A call's load precedes the reloads, and its run loses the device again.
    let pin = stage.acquire(&breaks).await.unwrap();
    run(&pin).await.unwrap_err();
    drop(pin);
    stage.is_up().await;
    // Each load is queued after the loader's earlier work.
    for name in ["x", "y"] {
        drop(stage.acquire(&stage.source(name, "{}").await).await.unwrap());
    }
    assert_eq!(stage.there(), ["x", "y"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_device_refuses_models_without_affecting_other_devices() {
    let stage = Fixture::new(1);
    let other = Fixture::new(1);
    let breaks = stage.source("breaks", r#"{ "loses_device_ms": 3600000 }"#).await;
    let idle = stage.source("idle", "{}").await;
    let pin = stage.acquire(&breaks).await.unwrap();
    let others = other.source("idle", "{}").await;
    run(&pin).await.unwrap_err();
    assert!(matches!(*stage.cache.health().borrow(), Health::Lost(_)));
    assert!(matches!(stage.acquire(&idle).await, Err(InferenceError::DeviceLost(_))));
    assert!(stage.cache.pin(&breaks.key).is_none());
    run(&other.acquire(&others).await.unwrap()).await.unwrap();
    // The cache can also be dropped while its device is lost.
    drop((pin, stage));
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_model_is_distinct_from_failed_run() {
    let stage = Fixture::new(1);
    let never = stage.source("never", r#"{ "batch_max": 0 }"#).await;
    let refused = stage.acquire(&never).await.unwrap_err();
    assert!(matches!(refused, InferenceError::Unsupported(_)), "{refused}");
    assert_eq!(*stage.cache.health().borrow(), Health::Up);
}
