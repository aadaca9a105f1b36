//! Limit on the runs' memory for intermediate tensors. A separate program, because the limit is
//! shared by all runs of a process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

mod support;

use support::{Cpu, shared_model};
use weir_inference::{ErrorKind, InferenceError, Pin, RunRequest, Tensor};

async fn run(cpu: &Cpu, pin: &Pin, elements: i64) -> Result<Vec<(String, Tensor)>, InferenceError> {
    let inputs = vec![("shape".to_owned(), cpu.tensor(&[1], &[elements]))];
    Ok(pin.run(RunRequest { inputs, ..RunRequest::default() }).await?.outputs)
}

#[tokio::test]
async fn run_exceeding_memory_limit_fails_alone() {
    let cpu = Cpu::new();
    let cache = cpu.cache(1);
    let pin =
        cache.acquire(&cpu.source("expand", &shared_model("good/expand.onnx")).await, &[]).await.unwrap();
    for elements in [1_i64 << 30, 1 << 40] {
        let error = run(&cpu, &pin, elements).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error:?}");
    }
    // Each of these fits, but not together with the idle memory of the previous run.
    for elements in [3_i64, 15 << 20, 25 << 20, 15 << 20] {
        let outputs = run(&cpu, &pin, elements).await.unwrap();
        let out = outputs[0].1.data();
        assert_eq!((out.len() as i64, &out[..4]), (elements * 4, &1.0_f32.to_le_bytes()[..]));
    }
    // After a trim, the memory of one run can be measured as a difference.
    let probe = pin.probe(1);
    let before = probe.trimmed_run_memory_bytes().await.unwrap();
    let inputs = vec![("shape".to_owned(), cpu.tensor(&[1], &[15_i64 << 20]))];
    probe.run(RunRequest { inputs, ..RunRequest::default() }).await.unwrap();
    let taken = probe.run_memory_bytes().await.unwrap() - before;
    assert!((60 << 20..64 << 20).contains(&taken), "{taken} bytes beside {before}");
    assert!(probe.trimmed_run_memory_bytes().await.unwrap() <= before, "it was not given back");
}
