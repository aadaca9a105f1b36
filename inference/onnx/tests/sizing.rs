//! Threads per run of a model: changes while the model is served.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

mod support;

use std::time::Duration;
use support::{Cpu, floats, shared_model};
use weir_inference::{RunRequest, RunSetting};

/// Far longer than any machine takes, so that only a hang fails.
const LONG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn onnx_runtime_outputs_do_not_depend_on_thread_count() {
    let cpu = Cpu::new();
    let cache = cpu.cache(1);
    let source = cpu.source("m", &shared_model("good/matmul.onnx")).await;
    let pin = cache.acquire(&source, &[]).await.unwrap();
    let input = cpu.tensor(&[2, 4], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let name = pin.signature().inputs[0].name.clone();
    let request = || RunRequest { inputs: vec![(name.clone(), input.clone())], ..RunRequest::default() };
    let run = async || {
        let completion = tokio::time::timeout(LONG, pin.run(request())).await.unwrap().unwrap();
        floats(&completion.outputs[0].1)
    };
    let alone = run().await;
    let threads = cache.threads_max();
    cache.set_run_setting(pin.key(), RunSetting { threads, sessions: 1 }).unwrap().await.unwrap();
    assert_eq!(run().await, alone);
    assert_eq!(
        cache.run_setting(pin.key()),
        Some((RunSetting { threads, sessions: 1 }, if threads > 1 { 2 } else { 1 }))
    );
}
