//! Metering of device usage per consumer, through the cache, the device threads and the fake
//! backend.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

mod support;

use futures::future::join_all;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use support::{MIB, id};
use tempfile::TempDir;
use weir_device::{Arena, Device};
use weir_inference::{
    CacheConfig, FakeBackend, InferenceError, Meter, ModelCache, ModelKey, ModelSource, ObservedRun, Pin,
    Preparer, Profiles, RunObserver, RunRequest, Tensor, Used,
};
use weir_types::{Batching, BatchingMode, ElementType, Profile, Shape};

const DEVICE: Device = Device::Fake { ordinal: 1 };

/// A device with one run slot.
struct Fixture {
    arena: Arena,
    backend: Arc<FakeBackend>,
    cache: ModelCache,
    folder: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let arena = Arena::new(MIB);
        let backend = Arc::new(FakeBackend::accelerator(1, "fast", arena.clone()));
        let config = CacheConfig { capacity_bytes: 10_000, slots: 1, run_queue_len_max: 100 };
        let cache = ModelCache::start(config, backend.clone(), arena.clone(), Profiles::default()).unwrap();
        Self { arena, backend, cache, folder: tempfile::tempdir().unwrap() }
    }

    /// A model of 1,000 bytes from FP32[?, 1] to FP32[?, 1]; `on_fast` declares its costs on the
    /// device.
    async fn source(&self, name: &str, mode: BatchingMode, on_fast: Value) -> Arc<ModelSource> {
        let port = |name| json!({"name": name, "datatype": "FP32", "shape": [null, 1]});
        let signature = json!({"inputs": [port("x")], "outputs": [port("y")]});
        let model = json!({"resident_bytes": 1_000, "on": {"fast": on_fast}, "signature": signature});
        let file = self.folder.path().join(format!("{name}.json"));
        std::fs::write(&file, model.to_string()).unwrap();
        Arc::new(ModelSource {
            key: ModelKey { id: id(name), generation: 1 },
            prepared: Arc::new(
                self.backend
                    .prepare(&file, weir_types::Precision::default(), self.folder.path())
                    .await
                    .unwrap(),
            ),
            blobs: self.folder.path().to_owned(),
            slots: None,
            batching: Batching { mode, ..Batching::default() },
            meter: Meter::default(),
        })
    }

    fn request(&self, items: u32, meter: Option<&Meter>) -> RunRequest {
        let shape = Shape::new(&[items, 1]).unwrap();
        let data = self.arena.copy_of(&vec![0; 4 * items as usize]).unwrap();
        let input = Tensor::new(ElementType::Fp32, shape, data).unwrap();
        RunRequest { inputs: vec![("x".into(), input)], meter: meter.cloned(), ..RunRequest::default() }
    }

    /// Usage of a model's meter up to now.
    fn metered(&self, source: &ModelSource) -> Used {
        self.cache.meter_memory();
        used(&source.meter)
    }
}

fn used(meter: &Meter) -> Used {
    match meter.used()[..] {
        [] => Used::default(),
        [(DEVICE, used)] => used,
        ref other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn run_is_charged_to_its_meter_and_batch_is_divided_by_items() {
    let stage = Fixture::new();
    let times_ms = [(1, 5_u64), (2, 6), (4, 7), (8, 8)];
    let by_items: BTreeMap<String, u64> =
        times_ms.iter().map(|(items, ms)| (items.to_string(), *ms)).collect();
    let source = stage.source("m", BatchingMode::On, json!({"run_time_ms": by_items})).await;
    // A known profile in which batching pays.
    let mut profile = Profile::default();
    for (items, ms) in times_ms {
        let time = profile.run_time_ns.entry(items).or_default();
        (0..100).for_each(|_| time.add(ms * 1_000_000));
    }
    stage.cache.profiles().set(source.key.clone(), profile);
    let pin = stage.cache.acquire(&source, &[]).await.unwrap();
    let [large, small] = [(); 2].map(|()| Meter::default());
    pin.run(stage.request(1, None)).await.unwrap();
    let alone = used(&source.meter);
    assert_eq!(alone.runs, 1);
    assert!(alone.run_time_ns >= 5_000_000, "{alone:?}");

    // Both are queued before either can run.
    let blocker = stage.source("blocker", BatchingMode::Off, json!({"run_time_ms": {"1": 3_600_000}})).await;
    let blocker: Pin = stage.cache.acquire(&blocker, &[]).await.unwrap();
    let blocking = blocker.run(stage.request(1, None));
    let together =
        [(6, &large), (2, &small)].map(|(items, meter)| pin.run(stage.request(items, Some(meter))));
    drop(blocking);
    let executions = join_all(together).await.into_iter().filter_map(|run| run.unwrap().execution);
    assert_eq!(executions.map(|execution| execution.items).collect::<Vec<_>>(), [8]);
    let large = used(&large);
    let small = used(&small);
    assert_eq!((large.runs, small.runs), (1, 1));
    assert!(large.run_time_ns + small.run_time_ns >= 8_000_000, "{large:?} {small:?}");
    assert!(large.run_time_ns.abs_diff(3 * small.run_time_ns) <= 3, "{large:?} {small:?}");
    assert_eq!(used(&source.meter), alone, "others' runs are not the model's own");
}

#[tokio::test]
async fn stopped_run_is_charged_for_its_time() {
    let stage = Fixture::new();
    let source = stage.source("m", BatchingMode::Off, json!({"run_time_ms": {"1": 3_600_000}})).await;
    let pin = stage.cache.acquire(&source, &[]).await.unwrap();
    let began = Instant::now();
    let meter = Meter::default();
    let deadline = Some(began + Duration::from_millis(200));
    let ended = pin.run(RunRequest { deadline, ..stage.request(1, Some(&meter)) }).await;
    let elapsed_ns = began.elapsed().as_nanos();
    assert!(matches!(ended, Err(InferenceError::DeadlineExceeded)), "{ended:?}");
    let Used { runs, run_time_ns, .. } = used(&meter);
    assert_eq!(runs, 1);
    assert!(run_time_ns > 0 && u128::from(run_time_ns) <= elapsed_ns, "{run_time_ns} of {elapsed_ns}");
}

/// Sends every observation.
#[derive(Debug)]
struct Sent(Sender<&'static str>);

impl RunObserver for Sent {
    fn started(&self) {
        self.0.send("started").unwrap();
    }

    fn ended(&self, _: &ObservedRun) {
        self.0.send("ended").unwrap();
    }

    fn over(&self) {
        self.0.send("over").unwrap();
    }
}

#[tokio::test]
async fn observer_learns_when_nothing_of_a_request_is_left_on_the_device() {
    const PATIENCE: Duration = Duration::from_secs(30);
    let stage = Fixture::new();
    let (sent, observed) = channel();
    let meter = Meter::observed(&Meter::default(), Arc::new(Sent(sent)));
    let next = || observed.recv_timeout(PATIENCE).unwrap();
    let brief = stage.source("brief", BatchingMode::Off, json!({})).await;
    let brief = stage.cache.acquire(&brief, &[]).await.unwrap();
    brief.run(stage.request(1, Some(&meter))).await.unwrap();
    assert_eq!(observed.try_iter().collect::<Vec<_>>(), ["started", "ended", "over"], "before the answer");

    let long = stage.source("long", BatchingMode::Off, json!({"run_time_ms": {"1": 3_600_000}})).await;
    let long = stage.cache.acquire(&long, &[]).await.unwrap();
    let running = long.run(stage.request(1, Some(&meter)));
    assert_eq!(next(), "started");
    drop(brief.run(stage.request(1, Some(&meter))));
    assert_eq!(next(), "over", "a request that did not run");
    drop(running);
    assert_eq!([next(), next()], ["ended", "over"]);
}

#[tokio::test]
async fn memory_is_charged_from_load_to_unload() {
    let stage = Fixture::new();
    let source = stage.source("m", BatchingMode::Off, json!({"load_time_ms": 20})).await;
    let asked = Instant::now();
    let pin = stage.cache.acquire(&source, &[]).await.unwrap();
    let there = Instant::now();
    pin.run(stage.request(1, None)).await.unwrap();
    let least = 1_000 * there.elapsed().as_nanos();
    let loaded = stage.metered(&source);
    let most = 1_000 * (asked.elapsed().as_nanos() - 20_000_000);
    assert_eq!(loaded.loads, 1);
    assert!(loaded.load_time_ns >= 20_000_000, "{loaded:?}");
    assert!((least..=most).contains(&loaded.resident_byte_ns), "{loaded:?} is not in {least}..={most}");

    drop(pin);
    stage.cache.unload(&source.key).unwrap().await;
    let gone = stage.metered(&source);
    assert!(gone.resident_byte_ns > loaded.resident_byte_ns);
    assert_eq!(stage.metered(&source), gone, "what is not there is not charged");
    assert_eq!(gone.loads, 1);
}

#[tokio::test]
async fn lost_models_are_not_charged_even_if_pinned() {
    let stage = Fixture::new();
    let kept = stage.source("kept", BatchingMode::Off, json!({})).await;
    let breaks = stage.source("breaks", BatchingMode::Off, json!({"loses_device_ms": 0})).await;
    let pins =
        [stage.cache.acquire(&kept, &[]).await.unwrap(), stage.cache.acquire(&breaks, &[]).await.unwrap()];
    let meter = Meter::default();
    let ended = pins[1].run(stage.request(1, Some(&meter))).await;
    assert!(matches!(ended, Err(InferenceError::DeviceLostInUse(_))), "{ended:?}");
    assert_eq!(used(&meter).runs, 1, "one that failed was worked on all the same");
    let lost = stage.metered(&kept);
    assert!(lost.resident_byte_ns > 0);
    assert_eq!(stage.metered(&kept), lost);
}
