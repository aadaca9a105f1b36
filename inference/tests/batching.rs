//! Batching of waiting requests, through the cache, the device threads and the fake backend.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot be set up has failed"
)]

mod support;

use futures::future::join_all;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{MIB, floats, id};
use tempfile::TempDir;
use weir_device::Arena;
use weir_inference::{
    CacheConfig, Completion, Execution, FakeBackend, InferenceError, ModelCache, ModelKey, ModelSource,
    PendingRun, Pin, Preparer, Profiles, RunRequest, Tensor,
};
use weir_types::{Batching, BatchingMode, ElementType, Profile, Shape};

/// Far longer than any machine takes, so that only a hang fails.
const LONG: Duration = Duration::from_secs(60);

type RunOutcome = Result<Completion, InferenceError>;

/// Fake models on a device with one run slot, and a model that keeps it busy.
struct Fixture {
    arena: Arena,
    backend: Arc<dyn Preparer>,
    cache: ModelCache,
    folder: TempDir,
}

impl Fixture {
    fn fake(slots: usize) -> Self {
        let arena = Arena::new(64 * MIB);
        let backend = Arc::new(FakeBackend::new(arena.clone()));
        let config = CacheConfig { capacity_bytes: MIB, slots, run_queue_len_max: 1_000 };
        let cache = ModelCache::start(config, backend.clone(), arena.clone(), Profiles::default()).unwrap();
        Self { arena, backend, cache, folder: tempfile::tempdir().unwrap() }
    }

    /// A fake model from `x` FP32[?, 2] to `y` of the same type, with these run times in
    /// milliseconds by number of items.
    async fn curve(&self, name: &str, times_ms: &[(u32, f64)], batching: Batching) -> Pin {
        let times: Vec<String> =
            times_ms.iter().map(|(items, time)| format!("\"{items}\": {time}")).collect();
        let ports =
            |name: &str| format!(r#"[{{ "name": "{name}", "datatype": "FP32", "shape": [null, 2] }}]"#);
        let json = format!(
            r#"{{ "run_time_ms": {{ {} }}, "resident_bytes": 1, "signature": {{ "inputs": {}, "outputs": {} }} }}"#,
            times.join(", "),
            ports("x"),
            ports("y")
        );
        let file = self.folder.path().join(format!("{name}.json"));
        std::fs::write(&file, json).unwrap();
        self.pin(name, &file, batching, times_ms).await
    }

    async fn pin(&self, name: &str, file: &Path, batching: Batching, times_ms: &[(u32, f64)]) -> Pin {
        let blobs = self.folder.path();
        let prepared =
            Arc::new(self.backend.prepare(file, weir_types::Precision::default(), blobs).await.unwrap());
        let key = ModelKey { id: id(name), generation: 1 };
        let source = ModelSource {
            key: key.clone(),
            prepared,
            blobs: blobs.to_owned(),
            slots: None,
            batching,
            meter: weir_inference::Meter::default(),
        };
        let mut profile = Profile::default();
        for (items, time_ms) in times_ms {
            let time = profile.run_time_ns.entry(*items).or_default();
            // So many samples that the machine's real times change the mean little.
            (0..100).for_each(|_| time.add((time_ms * 1e6) as u64));
        }
        self.cache.profiles().set(key, profile);
        self.cache.acquire(&Arc::new(source), &[]).await.unwrap()
    }

    /// Occupies the slot until it is dropped.
    async fn blocker(&self) -> PendingRun {
        let endless = [(1, 3_600_000.0)];
        let pin = self.curve("blocker", &endless, off()).await;
        let run = pin.run(request(&[("x", self.row(0.0))]));
        // Until it has begun, more urgent requests would run first.
        while self.cache.queue_len() > 0 {
            tokio::task::yield_now().await;
        }
        run
    }

    fn row(&self, value: f32) -> Tensor {
        self.floats(&[1, 2], &[value, -value])
    }

    fn floats(&self, dimensions: &[u32], values: &[f32]) -> Tensor {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let data = self.arena.copy_of(&bytes).unwrap();
        Tensor::new(ElementType::Fp32, Shape::new(dimensions).unwrap(), data).unwrap()
    }

    /// Queues all `requests` before the first of them can run, and waits for their outcomes.
    async fn run_all(&self, pin: &Pin, requests: Vec<RunRequest>) -> Vec<RunOutcome> {
        let blocker = self.blocker().await;
        let runs: Vec<PendingRun> = requests.into_iter().map(|request| pin.run(request)).collect();
        drop(blocker);
        within(join_all(runs)).await
    }
}

fn request(inputs: &[(&str, Tensor)]) -> RunRequest {
    let inputs = inputs.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect();
    RunRequest { inputs, ..RunRequest::default() }
}

fn on() -> Batching {
    Batching { mode: BatchingMode::On, ..Batching::default() }
}

fn off() -> Batching {
    Batching { mode: BatchingMode::Off, ..Batching::default() }
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(LONG, future).await.expect("it hangs")
}

/// The items of each run, in the order of the requests that carry the run.
fn executions(outcomes: &[RunOutcome]) -> Vec<u32> {
    let completions = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok());
    completions.filter_map(|completion| completion.execution).map(|Execution { items, .. }| items).collect()
}

fn output<'a>(outcome: &'a RunOutcome, name: &str) -> &'a Tensor {
    let outputs = &outcome.as_ref().unwrap().outputs;
    &outputs.iter().find(|(other, _)| other == name).unwrap_or_else(|| panic!("no output {name}")).1
}

/// A run of eight takes about as long as a run of one.
const FLAT: &[(u32, f64)] = &[(1, 2.0), (2, 2.1), (4, 2.2), (8, 2.4), (32, 4.0)];

#[tokio::test]
async fn waiting_requests_batch_and_each_gets_its_own_outputs() {
    let stage = Fixture::fake(1);
    let pin = stage.curve("flat", FLAT, on()).await;
    let sizes = [1_u32, 3, 1, 2, 1];
    let inputs: Vec<Tensor> = sizes
        .iter()
        .zip(1_u8..)
        .map(|(items, n)| stage.floats(&[*items, 2], &vec![f32::from(n); *items as usize * 2]))
        .collect();
    let requests = inputs.iter().map(|input| request(&[("x", input.clone())])).collect();
    let outcomes = stage.run_all(&pin, requests).await;
    assert_eq!(executions(&outcomes), [8]);
    for (input, outcome) in inputs.iter().zip(&outcomes) {
        assert_eq!(output(outcome, "y"), input);
    }
    let address = |outcome: &RunOutcome| output(outcome, "y").data().as_ptr() as usize;
    assert_eq!(address(&outcomes[1]) - address(&outcomes[0]), 8, "outputs are not parts of one");
    assert_eq!(stage.cache.profiles().get(pin.key()).run_time_ns[&8].count, 101);
}

#[tokio::test]
async fn batching_respects_costs_mode_and_size_settings() {
    let stage = Fixture::fake(1);
    // Each item costs a fifth more in a batch than alone.
    let dear: Vec<(u32, f64)> = [(1, 5.0), (2, 12.0), (4, 24.0), (8, 48.0), (16, 96.0), (32, 192.0)].to_vec();
    let requests = || (0..8).map(|n| request(&[("x", stage.row(n as f32))])).collect();
    let pin = stage.curve("dear", &dear, on()).await;
    assert_eq!(executions(&stage.run_all(&pin, requests()).await), [1; 8]);
    let pin = stage.curve("off", FLAT, off()).await;
    assert_eq!(executions(&stage.run_all(&pin, requests()).await), [1; 8]);
    let pin = stage.curve("small", FLAT, Batching { size_max: Some(3), ..on() }).await;
    assert_eq!(executions(&stage.run_all(&pin, requests()).await), [3, 3, 2]);
    let pin = stage.curve("preferred", FLAT, Batching { preferred_sizes: vec![4, 6], ..on() }).await;
    assert_eq!(executions(&stage.run_all(&pin, requests()).await), [6, 2]);
}

#[tokio::test]
async fn batch_does_not_delay_urgent_or_differently_shaped_requests() {
    let stage = Fixture::fake(1);
    let pin = stage.curve("flat", FLAT, on()).await;
    let other = stage.curve("other", FLAT, off()).await;
    let blocker = stage.blocker().await;
    let with_priority = |priority, value| RunRequest { priority, ..request(&[("x", stage.row(value))]) };
    let leader = pin.run(with_priority(1, 1.0));
    let patient = pin.run(with_priority(100, 2.0));
    let between = other.run(with_priority(50, 3.0));
    drop(blocker);
    let outcomes = within(join_all([leader, patient, between])).await;
    assert_eq!(
        executions(&outcomes),
        [1, 1, 1],
        "one joined who is less urgent than what another model is to run"
    );
    let waited = |outcome: &RunOutcome| outcome.as_ref().unwrap().queue_time;
    assert!(waited(&outcomes[2]) < waited(&outcomes[1]));
}

#[tokio::test]
async fn batch_size_respects_tightest_deadline() {
    let stage = Fixture::fake(1);
    let steep = [(1, 20.0), (2, 22.0), (8, 1_500.0), (32, 3_000.0)];
    let pin = stage.curve("steep", &steep, on()).await;
    let deadline = Some(Instant::now() + Duration::from_millis(700));
    let mut requests: Vec<RunRequest> = (0..2).map(|n| request(&[("x", stage.row(n as f32))])).collect();
    requests.iter_mut().for_each(|request| request.deadline = deadline);
    requests.extend((0..6).map(|n| request(&[("x", stage.row(n as f32))])));
    let outcomes = stage.run_all(&pin, requests).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

#[tokio::test]
async fn cancelled_or_late_member_is_answered_at_once_without_affecting_others() {
    let stage = Fixture::fake(1);
    let pin = stage.curve("slow", &[(1, 3_000.0), (2, 3_000.0), (4, 3_000.0), (32, 3_000.0)], on()).await;
    let blocker = stage.blocker().await;
    let runs: Vec<PendingRun> = (0..4).map(|n| pin.run(request(&[("x", stage.row(n as f32))]))).collect();
    drop(blocker);
    let mut runs = runs.into_iter();
    let (first, cancelled, dropped, last) =
        (runs.next().unwrap(), runs.next().unwrap(), runs.next().unwrap(), runs.next().unwrap());
    within(async {
        while stage.cache.queue_len() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let began = Instant::now();
    cancelled.cancel();
    drop(dropped);
    let outcome = within(cancelled).await;
    assert!(matches!(outcome, Err(InferenceError::Cancelled)), "{outcome:?}");
    assert!(began.elapsed() < Duration::from_secs(2), "it waited for the others");
    let outcomes = [within(first).await, within(last).await];
    assert_eq!(floats(output(&outcomes[1], "y")), [3.0, -3.0]);
    assert_eq!(executions(&outcomes), [4]);
}

#[tokio::test]
async fn batch_without_waiting_callers_is_stopped() {
    let stage = Fixture::fake(1);
    let endless = 3_600_000.0;
    let pin = stage.curve("endless", &[(1, endless), (2, endless), (32, endless)], on()).await;
    let blocker = stage.blocker().await;
    let runs: Vec<PendingRun> = (0..2).map(|n| pin.run(request(&[("x", stage.row(n as f32))]))).collect();
    drop(blocker);
    within(async {
        while stage.cache.queue_len() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    drop(runs);
    // The slot is free again.
    let brief = stage.curve("brief", &[(1, 0.0)], on()).await;
    assert!(within(brief.run(request(&[("x", stage.row(1.0))]))).await.is_ok());
}
