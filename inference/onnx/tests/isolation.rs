//! Models of the CPU in worker processes: hostile models end their worker, and nothing else.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot be set up has failed"
)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use support::{Cpu, floats, onnx, shared_model};
use weir_inference::{Backend, ErrorKind, InferenceError, ModelCache, ModelSource, Pin, RunRequest, Tensor};
use weir_types::{ErrorCode, Platform, TenantId};

/// Far longer than any machine takes, so that only a hang fails.
const LONG: Duration = Duration::from_secs(60);

async fn run(pin: &Pin, inputs: &[(&str, Tensor)]) -> Result<Vec<(String, Tensor)>, InferenceError> {
    let inputs = inputs.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect();
    let run = pin.run(RunRequest { inputs, ..RunRequest::default() });
    Ok(tokio::time::timeout(LONG, run).await.expect("the run hangs")?.outputs)
}

/// `z = operator(x, y)`, of int32 tensors.
struct Integers {
    cpu: Cpu,
    cache: ModelCache,
    source: Arc<ModelSource>,
    pin: Pin,
}

impl Integers {
    async fn new(operator: &str) -> Self {
        let cpu = Cpu::with_workers(LONG);
        let file = write(&cpu, operator);
        let cache = cpu.cache(2);
        let source = cpu.source("integers", &file).await;
        let pin = cache.acquire(&source, &[]).await.unwrap();
        Self { cpu, cache, source, pin }
    }

    async fn run(&self, x: i32, y: i32) -> Result<i32, InferenceError> {
        let inputs = [("x", self.cpu.tensor(&[1], &[x])), ("y", self.cpu.tensor(&[1], &[y]))];
        let outputs = run(&self.pin, &inputs).await?;
        Ok(i32::from_le_bytes(outputs[0].1.data()[..].try_into().unwrap()))
    }

    async fn runs_until(&self, expected: ErrorCode) -> InferenceError {
        let waiting = async {
            loop {
                match self.run(i32::MIN, -1).await {
                    Err(error) if error.code() == expected => return error,
                    // The next worker is not started at once.
                    Err(InferenceError::WorkerLost(_)) => tokio::task::yield_now().await,
                    other => panic!("{other:?}"),
                }
            }
        };
        tokio::time::timeout(LONG, waiting).await.expect("it never ends so")
    }
}

fn write(cpu: &Cpu, operator: &str) -> PathBuf {
    let file = cpu.blobs().join(format!("{operator}.onnx"));
    std::fs::write(&file, onnx::on_integers(operator)).unwrap();
    file
}

/// Folders of the running workers.
fn folders(cpu: &Cpu) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(cpu.blobs()).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_dir()).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn runs_in_a_worker_give_correct_results() {
    let cpu = Cpu::with_workers(LONG);
    let cache = cpu.cache(2);
    let source = cpu.source("matmul", &shared_model("good/matmul.onnx")).await;
    let pin = cache.acquire(&source, &[]).await.unwrap();
    for batch in [1_u32, 5, 2_000] {
        let x: Vec<f32> = (0..batch * 4).map(|n| (n % 100) as f32).collect();
        let outputs = run(&pin, &[("x", cpu.tensor(&[batch, 4], &x))]).await.unwrap();
        let expected: Vec<f32> = x
            .chunks(4)
            .flat_map(|row| {
                (0..3).map(|column| row.iter().zip(0..).map(|(x, k)| x * (k * 3 + column) as f32).sum())
            })
            .collect();
        assert_eq!(floats(&outputs[0].1), expected);
    }
    let refused = run(&pin, &[("x", cpu.tensor(&[1, 4], &[1_i32; 4]))]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    drop(pin);
    assert_eq!(folders(&cpu).len(), 1);
    cache.unload(&source.key).unwrap().await;
    assert_eq!(folders(&cpu), Vec::<PathBuf>::new(), "the worker ends with its last model");
}

/// The least integer divided by -1 overflows, which ends a process by SIGFPE.
#[tokio::test]
async fn integer_overflow_ends_the_worker_and_the_next_run_starts_another() {
    for operator in ["Div", "Mod"] {
        let integers = Integers::new(operator).await;
        assert!(integers.run(7, 2).await.is_ok());
        let error = integers.run(i32::MIN, -1).await.unwrap_err();
        assert_eq!((error.code(), error.kind()), (ErrorCode::WorkerLost, ErrorKind::Unavailable));
        assert!(error.to_string().contains("SIGFPE"), "{error}");
        assert_eq!(integers.run(-7, -1).await.unwrap(), if operator == "Div" { 7 } else { 0 });
        assert!(!integers.pin.is_lost(), "the device is not affected");
    }
}

#[tokio::test]
async fn model_that_ends_its_worker_twice_is_quarantined_until_released() {
    let integers = Integers::new("Div").await;
    let error = integers.runs_until(ErrorCode::ModelQuarantined).await;
    assert!(error.to_string().contains("weir models release integers --version 1"), "{error}");
    let backend = &integers.cpu.backend;
    assert!(backend.quarantine(&integers.source.key).is_some());
    assert!(matches!(integers.run(6, 3).await, Err(InferenceError::Quarantined { .. })));
    // Other models of the tenant run.
    let matmul = integers.cpu.source("matmul", &shared_model("good/matmul.onnx")).await;
    let pin = integers.cache.acquire(&matmul, &[]).await.unwrap();
    run(&pin, &[("x", integers.cpu.tensor(&[1, 4], &[1.0_f32; 4]))]).await.unwrap();
    assert!(backend.release(&integers.source.key));
    let waiting = async {
        while integers.run(6, 3).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, waiting).await.unwrap();
}

#[tokio::test]
async fn success_between_two_deaths_avoids_the_quarantine() {
    let integers = Integers::new("Div").await;
    for _ in 0..4 {
        assert!(matches!(integers.run(i32::MIN, -1).await, Err(InferenceError::WorkerLost(_))));
        assert_eq!(integers.run(6, 3).await.unwrap(), 2);
    }
    assert!(integers.cpu.backend.quarantine(&integers.source.key).is_none());
}

#[tokio::test]
async fn tenants_have_separate_workers_with_only_their_own_files() {
    let cpu = Cpu::with_workers(LONG);
    let cache = cpu.cache(2);
    let tenants = ["one", "two"].map(|name| TenantId::new(name).unwrap());
    let bad = cpu.source_of(tenants[0].clone(), "bad", &write(&cpu, "Div")).await;
    let good = cpu.source_of(tenants[1].clone(), "good", &shared_model("good/matmul.onnx")).await;
    let (bad_pin, good_pin) =
        (cache.acquire(&bad, &[]).await.unwrap(), cache.acquire(&good, &[]).await.unwrap());
    let found: Vec<_> = folders(&cpu).iter().map(|folder| names(folder)).collect();
    let expected = [&bad, &good].map(|source| {
        let mut names: Vec<_> =
            source.prepared.blobs_for(Platform::Cpu).map(|hash| hash.to_string()).collect();
        names.sort();
        names
    });
    assert!(found.len() == 2 && expected.iter().all(|names| found.contains(names)), "{found:?}");
    let long = good_pin.run(RunRequest {
        inputs: vec![("x".to_owned(), cpu.tensor(&[1, 4], &[1.0_f32; 4]))],
        ..RunRequest::default()
    });
    let inputs = [("x", cpu.tensor(&[1], &[i32::MIN])), ("y", cpu.tensor(&[1], &[-1]))];
    assert!(run(&bad_pin, &inputs).await.is_err());
    assert!(long.await.is_ok(), "the other tenant's run is not affected");
}

#[tokio::test]
async fn run_beyond_the_time_limit_ends_its_worker_and_is_blamed() {
    let cpu = Cpu::with_workers(Duration::from_millis(300));
    let cache = cpu.cache(2);
    let slow = cpu.source("slow", &shared_model("good/slow.onnx")).await;
    let pin = cache.acquire(&slow, &[]).await.unwrap();
    let error = run(&pin, &[("steps", cpu.tensor(&[], &[i64::MAX]))]).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::WorkerLost);
    assert!(error.to_string().contains("models.run_wall_ms_max"), "{error}");
    run(&pin, &[("steps", cpu.tensor(&[], &[3_i64]))]).await.unwrap();
}

#[tokio::test]
async fn cancelled_run_ends_and_the_worker_stays() {
    let cpu = Cpu::with_workers(LONG);
    let cache = cpu.cache(1);
    let slow = cpu.source("slow", &shared_model("good/slow.onnx")).await;
    let pin = cache.acquire(&slow, &[]).await.unwrap();
    let inputs = vec![("steps".to_owned(), cpu.tensor(&[], &[i64::MAX]))];
    let endless = pin.run(RunRequest { inputs, ..RunRequest::default() });
    endless.cancel();
    assert!(endless.await.is_err());
    let before = folders(&cpu);
    run(&pin, &[("steps", cpu.tensor(&[], &[3_i64]))]).await.unwrap();
    assert_eq!(folders(&cpu), before, "the worker was not replaced");
}

#[tokio::test]
async fn run_beyond_the_memory_limit_fails_and_the_worker_stays() {
    let cpu = Cpu::with_workers(LONG);
    let cache = cpu.cache(1);
    let expand = cpu.source("expand", &shared_model("good/expand.onnx")).await;
    let pin = cache.acquire(&expand, &[]).await.unwrap();
    let before = folders(&cpu);
    for elements in [1_i64 << 30, 1 << 40] {
        let error = run(&pin, &[("shape", cpu.tensor(&[1], &[elements]))]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error:?}");
    }
    assert_eq!(run(&pin, &[("shape", cpu.tensor(&[1], &[3_i64]))]).await.unwrap().len(), 1);
    assert_eq!(folders(&cpu), before);
}
