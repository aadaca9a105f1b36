//! Batching of waiting requests by ONNX Runtime.
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
use std::time::Duration;
use support::{Cpu, floats, id, own_model, shared_model};
use weir_inference::{
    Completion, Execution, InferenceError, ModelCache, ModelKey, ModelSource, PendingRun, Pin, RunRequest,
    Tensor,
};
use weir_types::{Batching, BatchingMode, Profile};

/// Far longer than any machine takes, so that only a hang fails.
const LONG: Duration = Duration::from_secs(60);

type RunOutcome = Result<Completion, InferenceError>;

/// Models on a device with one run slot, and a model that keeps it busy.
struct Fixture {
    cpu: Cpu,
    cache: ModelCache,
}

impl Fixture {
    fn new() -> Self {
        let cpu = Cpu::new();
        let cache = cpu.cache(1);
        Self { cpu, cache }
    }

    async fn pin(&self, name: &str, file: &Path, batching: Batching, times_ms: &[(u32, f64)]) -> Pin {
        let prepared = Arc::new(self.cpu.prepare(file).await.unwrap());
        let key = ModelKey { id: id(name), generation: 1 };
        let source = ModelSource {
            key: key.clone(),
            prepared,
            blobs: self.cpu.blobs().to_owned(),
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

    /// Queues all `requests` before the first of them can run, and waits for their outcomes.
    async fn run_all(&self, pin: &Pin, requests: Vec<RunRequest>) -> Vec<RunOutcome> {
        let blocker = self.blocker().await;
        let runs: Vec<PendingRun> = requests.into_iter().map(|request| pin.run(request)).collect();
        drop(blocker);
        within(join_all(runs)).await
    }

    /// Occupies the slot until it is dropped.
    async fn blocker(&self) -> PendingRun {
        let pin = self.pin("blocker", &shared_model("good/slow.onnx"), off(), &[]).await;
        let run = pin.run(request(&[("steps", self.cpu.tensor(&[], &[i64::MAX]))]));
        // Until it has begun, more urgent requests would run first.
        while self.cache.queue_len() > 0 {
            tokio::task::yield_now().await;
        }
        run
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

#[tokio::test]
async fn failing_request_does_not_fail_its_batch() {
    let stage = Fixture::new();
    let curve = [(1, 1.0), (2, 1.0), (4, 1.0), (32, 1.0)];
    let pin = stage.pin("gather", &own_model("gather.onnx"), on(), &curve).await;
    let indices = [0_i64, 2, 7, 1];
    let requests =
        indices.iter().map(|index| request(&[("index", stage.cpu.tensor(&[1], &[*index]))])).collect();
    let outcomes = stage.run_all(&pin, requests).await;
    assert!(matches!(outcomes[2], Err(InferenceError::Refused(_))), "{:?}", outcomes[2]);
    for (index, row) in [(0, 10.0), (1, 30.0), (3, 20.0)] {
        assert_eq!(floats(output(&outcomes[index], "row")), [row]);
    }
    assert_eq!(executions(&outcomes), [1, 1, 1]);
}

#[tokio::test]
async fn model_with_dependent_rows_is_not_batched() {
    let stage = Fixture::new();
    let curve = [(1, 1.0), (2, 1.0), (4, 1.0), (32, 1.0)];
    let rows: Vec<Vec<f32>> = (0..12).map(|n| (0..4).map(|k| (n * 4 + k) as f32).collect()).collect();
    for (model, is_independent) in [("centred", false), ("matmul", true)] {
        let file = if is_independent { shared_model("good/matmul.onnx") } else { own_model("centred.onnx") };
        let alone = stage.pin(&format!("{model}-alone"), &file, off(), &[]).await;
        let pin = stage.pin(model, &file, Batching::default(), &curve).await;
        let requests =
            || rows.iter().map(|row| request(&[("x", stage.cpu.tensor(&[1, 4], row))])).collect::<Vec<_>>();
        let outcomes = stage.run_all(&pin, requests()).await;
        let runs = executions(&outcomes).len();
        assert_eq!(runs < rows.len(), is_independent, "{model}: {runs} runs");
        for (outcome, request) in outcomes.iter().zip(requests()) {
            let expected = within(alone.run(request)).await;
            assert_eq!(floats(output(outcome, "y")), floats(output(&expected, "y")), "{model}");
        }
    }
}

#[tokio::test]
async fn texts_of_different_lengths_are_padded_under_their_mask() {
    let stage = Fixture::new();
    let curve = [(1, 1.0), (2, 1.0), (4, 1.0), (32, 1.0)];
    let lengths = [3_u32, 5, 1, 4];
    let text = |length: u32| {
        let ids: Vec<i64> = (1..=i64::from(length)).collect();
        let mask = vec![1_i64; length as usize];
        request(&[
            ("ids", stage.cpu.tensor(&[1, length], &ids)),
            ("attention_mask", stage.cpu.tensor(&[1, length], &mask)),
        ])
    };
    for mode in [BatchingMode::On, BatchingMode::Auto] {
        let batching = Batching { mode, ..Batching::default() };
        let pin =
            stage.pin(&format!("masked-{mode}"), &own_model("masked_mean.onnx"), batching, &curve).await;
        // Without the owner's guarantee, the first run includes a trial.
        let first = stage.run_all(&pin, lengths.map(text).to_vec()).await;
        let outcomes = stage.run_all(&pin, lengths.map(text).to_vec()).await;
        assert!(executions(&outcomes).len() < lengths.len(), "{:?}", executions(&outcomes));
        let padding = outcomes.iter().filter_map(|outcome| outcome.as_ref().unwrap().execution);
        assert!(padding.map(|execution| execution.padding_bytes).sum::<u64>() > 0);
        for (outcomes, length) in
            [&first, &outcomes].into_iter().flat_map(|outcomes| outcomes.iter().zip(lengths))
        {
            let each: Vec<f32> = (1..=length).map(|n| n as f32).collect();
            assert_eq!(output(outcomes, "each").shape().dimensions(), [1, length]);
            assert_eq!(floats(output(outcomes, "each")), each);
            assert_eq!(floats(output(outcomes, "mean")), [(length + 1) as f32 / 2.0]);
        }
    }
}
