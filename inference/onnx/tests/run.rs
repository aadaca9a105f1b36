//! Runs of real models through the cache, the device threads and ONNX Runtime.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot be set up has failed"
)]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Cpu, floats, own_model, shared_model};
use weir_inference::{
    Completion, ErrorKind, InferenceError, ModelKey, ModelSource, Pin, Prepared, RunRequest, Tensor,
};
use weir_types::{ElementType, Platform};

/// Far longer than any machine takes, so that only a hang fails.
const LONG: Duration = Duration::from_secs(60);

fn request(inputs: &[(&str, &Tensor)]) -> RunRequest {
    let inputs = inputs.iter().map(|(name, tensor)| ((*name).to_owned(), (*tensor).clone())).collect();
    RunRequest { inputs, ..RunRequest::default() }
}

async fn run(pin: &Pin, inputs: &[(&str, &Tensor)]) -> Result<Vec<(String, Tensor)>, InferenceError> {
    let completion = tokio::time::timeout(LONG, pin.run(request(inputs))).await.expect("the run hangs");
    completion.map(|Completion { outputs, .. }| outputs)
}

fn output<'a>(outputs: &'a [(String, Tensor)], name: &str) -> &'a Tensor {
    &outputs.iter().find(|(other, _)| other == name).unwrap_or_else(|| panic!("no output {name}")).1
}

#[tokio::test]
async fn matmul_is_correct_for_any_batch_size() {
    let cpu = Cpu::new();
    let cache = cpu.cache(1);
    let pin =
        cache.acquire(&cpu.source("matmul", &shared_model("good/matmul.onnx")).await, &[]).await.unwrap();
    for batch in [1_u32, 2, 7] {
        let x: Vec<f32> = (0..batch * 4).map(|n| n as f32).collect();
        let outputs = run(&pin, &[("x", &cpu.tensor(&[batch, 4], &x))]).await.unwrap();
        let expected: Vec<f32> = x
            .chunks(4)
            .flat_map(|row| {
                (0..3).map(|column| row.iter().zip(0..).map(|(x, k)| x * (k * 3 + column) as f32).sum())
            })
            .collect();
        let y = output(&outputs, "y");
        assert_eq!((y.shape().dimensions(), floats(y)), (&[batch, 3][..], expected));
    }
    // An empty batch works as well.
    let outputs = run(&pin, &[("x", &cpu.tensor::<f32>(&[0, 4], &[]))]).await.unwrap();
    assert_eq!(output(&outputs, "y").shape().dimensions(), [0, 3]);
    let profile = cache.profiles().get(pin.key());
    assert_eq!(profile.run_time_ns.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 7]);
    // The system decides whether the file is in memory.
    assert_eq!(profile.load_time_ns.values().map(|mean| mean.count).sum::<u64>(), 1);
}

#[tokio::test]
async fn every_element_type_round_trips() {
    let cpu = Cpu::new();
    let cache = cpu.cache(1);
    let strings = b"\x05\0\0\0a\0b\xff\xfe\0\0\0\0\x04\0\0\0\xf0\x9f\x8c\x8a";
    for (model, names) in [
        (
            "identity",
            &[
                "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "fp16",
                "fp32", "fp64", "bytes",
            ][..],
        ),
        ("identity_bf16", &["bf16"]),
    ] {
        let pin = cache
            .acquire(
                &cpu.source(&model.replace('_', "-"), &shared_model(&format!("good/{model}.onnx"))).await,
                &[],
            )
            .await
            .unwrap();
        let inputs: Vec<(String, Tensor)> = names
            .iter()
            .map(|name| {
                let element_type = pin
                    .signature()
                    .inputs
                    .iter()
                    .find(|port| port.name == format!("x_{name}"))
                    .unwrap()
                    .datatype;
                let bytes: Vec<u8> = match element_type {
                    ElementType::Bool => vec![1, 0, 1],
                    ElementType::Bytes => strings.to_vec(),
                    other => (1..=3 * other.size_bytes().unwrap() as u8).collect(),
                };
                (format!("x_{name}"), cpu.raw(element_type, &[3], &bytes))
            })
            .collect();
        let given: Vec<_> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let outputs = run(&pin, &given).await.unwrap();
        for (name, tensor) in &inputs {
            assert_eq!(output(&outputs, &name.replace('x', "y")), tensor, "{name}");
        }
    }
}

#[tokio::test]
async fn branches_use_their_own_weights_even_under_one_name() {
    let cpu = Cpu::new();
    let cache = cpu.cache(1);
    for model in ["branches", "same_names"] {
        let source = cpu.source(&model.replace('_', "-"), &own_model(&format!("{model}.onnx"))).await;
        assert_eq!(
            source.prepared.variants[0].weights.is_empty(),
            model == "same_names",
            "weights told apart by name are kept beside"
        );
        let pin = cache.acquire(&source, &[]).await.unwrap();
        let x = cpu.tensor(&[1, 32], &[1.5_f32; 32]);
        for (condition, factor) in [(1, 2.0), (0, 3.0)] {
            let condition = cpu.raw(ElementType::Bool, &[], &[condition]);
            let outputs = run(&pin, &[("condition", &condition), ("x", &x)]).await.unwrap();
            assert_eq!(floats(output(&outputs, "y")), vec![1.5 * factor; 32], "{model}");
        }
    }
}

#[tokio::test]
async fn passed_through_outputs_are_correct() {
    let cpu = Cpu::new();
    let cache = cpu.cache(1);
    let pin =
        cache.acquire(&cpu.source("passthrough", &own_model("passthrough.onnx")).await, &[]).await.unwrap();
    let outputs = run(&pin, &[("x", &cpu.tensor(&[2], &[1.0_f32, 2.0]))]).await.unwrap();
    assert_eq!(
        (floats(output(&outputs, "x")), floats(output(&outputs, "twice"))),
        (vec![1.0, 2.0], vec![2.0, 4.0])
    );

    let pin = cache.acquire(&cpu.source("constant", &own_model("constant.onnx")).await, &[]).await.unwrap();
    let outputs = run(&pin, &[("x", &cpu.tensor(&[4], &[1.0_f32; 4]))]).await.unwrap();
    assert_eq!(floats(output(&outputs, "always")), [0.0, 2.0, 4.0, 6.0]);
    assert_eq!(floats(output(&outputs, "sum")), [1.0, 2.0, 3.0, 4.0]);

    let pin =
        cache.acquire(&cpu.source("default", &own_model("default_input.onnx")).await, &[]).await.unwrap();
    let outputs = run(&pin, &[("x", &cpu.tensor(&[1], &[1.0_f32]))]).await.unwrap();
    assert_eq!(floats(output(&outputs, "y")), [101.0]);
}

#[tokio::test]
async fn optimised_forms_keep_the_answer_on_any_processor() {
    let cpu = Cpu::new();
    let cache = cpu.cache(1);
    let here = cpu.source("here", &own_model("old.onnx")).await;
    let bound: Vec<bool> =
        here.prepared.variants_for(Platform::Cpu).map(|form| form.only_on.is_some()).collect();
    if cfg!(target_arch = "x86_64") {
        assert_eq!(bound, [true, false]);
    }
    let key = ModelKey { id: support::id("elsewhere"), ..here.key.clone() };
    let mut elsewhere = ModelSource { key, ..ModelSource::clone(&here) };
    let mut prepared = Prepared::clone(&here.prepared);
    prepared.variants[0].only_on = Some("another processor".to_owned());
    elsewhere.prepared = Arc::new(prepared);

    let x: Vec<f32> = (0..192).map(|n| n as f32 / 192.0).collect();
    let x = cpu.tensor(&[1, 3, 8, 8], &x);
    let expected = std::fs::read(own_model("old_y.bin")).unwrap();
    let expected = expected.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    for source in [here, Arc::new(elsewhere)] {
        let pin = cache.acquire(&source, &[]).await.unwrap();
        let outputs = run(&pin, &[("x", &x)]).await.unwrap();
        let found = floats(output(&outputs, "y"));
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected.clone()) {
            assert!((found - expected).abs() < 1e-4, "{found} is not {expected}");
        }
    }
}

#[tokio::test]
async fn wrongly_declared_output_shapes_still_work() {
    let cpu = Cpu::new();
    let cache = cpu.cache(1);
    let pin = cache.acquire(&cpu.source("wrong", &own_model("wrong_shapes.onnx")).await, &[]).await.unwrap();
    let x = cpu.tensor(&[2], &[1.0_f32, 2.0]);
    for repeats in [1_i64, 3, 1] {
        let outputs = run(&pin, &[("x", &x), ("repeats", &cpu.tensor(&[1], &[repeats]))]).await.unwrap();
        assert_eq!(floats(output(&outputs, "y")), [1.0, 2.0].repeat(repeats as usize));
    }
}

#[tokio::test]
async fn unaligned_inputs_are_accepted() {
    let cpu = Cpu::new();
    let cache = cpu.cache(1);
    let pin = cache.acquire(&cpu.source("add", &shared_model("good/add.onnx")).await, &[]).await.unwrap();
    let a = cpu.tensor(&[2, 3], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let mut padded = vec![0_u8];
    padded.extend_from_slice(a.data());
    let moved = cpu.arena.copy_of(&padded).unwrap().slice(1..);
    assert_ne!(moved.as_ptr() as usize % 4, 0);
    let moved = Tensor::new(ElementType::Fp32, a.shape().clone(), moved).unwrap();
    let outputs = run(&pin, &[("a", &a), ("b", &moved)]).await.unwrap();
    assert_eq!(floats(output(&outputs, "sum")), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
}

#[tokio::test]
async fn only_requested_outputs_are_returned_in_requested_order() {
    let cpu = Cpu::new();
    let cache = cpu.cache(1);
    let pin =
        cache.acquire(&cpu.source("divide", &shared_model("good/divide.onnx")).await, &[]).await.unwrap();
    let dividend = cpu.tensor(&[2], &[7.0_f32, 9.0]);
    let divisor = cpu.tensor(&[2], &[2.0_f32, 4.0]);
    for (wanted, names) in [
        (None, &["quotient", "remainder"][..]),
        (Some(vec!["remainder".to_owned(), "quotient".to_owned()]), &["remainder", "quotient"]),
        (Some(vec!["remainder".to_owned()]), &["remainder"]),
    ] {
        let request =
            RunRequest { outputs: wanted, ..request(&[("dividend", &dividend), ("divisor", &divisor)]) };
        let outputs = pin.run(request).await.unwrap().outputs;
        assert_eq!(outputs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), names);
        assert_eq!(floats(output(&outputs, "remainder")), [1.0, 1.0]);
    }
}

#[tokio::test]
async fn input_error_found_by_the_run_is_invalid_argument() {
    let cpu = Cpu::new();
    let cache = cpu.cache(1);
    let pin = cache.acquire(&cpu.source("gather", &own_model("gather.onnx")).await, &[]).await.unwrap();
    let error = run(&pin, &[("index", &cpu.tensor(&[1], &[7_i64]))]).await.unwrap_err();
    assert!(matches!(error, InferenceError::Refused(_)), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let outputs = run(&pin, &[("index", &cpu.tensor(&[1], &[2_i64]))]).await.unwrap();
    assert_eq!(floats(output(&outputs, "row")), [30.0]);
}

#[tokio::test]
async fn run_stops_at_deadline_and_session_stays_usable() {
    let cpu = Cpu::new();
    let cache = cpu.cache(1);
    let pin = cache.acquire(&cpu.source("slow", &shared_model("good/slow.onnx")).await, &[]).await.unwrap();
    let forever = cpu.tensor(&[], &[i64::MAX]);
    let deadline = Some(Instant::now() + Duration::from_millis(50));
    let late = pin.run(RunRequest { deadline, ..request(&[("steps", &forever)]) });
    // This request waits for the first run until its own deadline has passed, and fails without a
    // run.
    let waiting = pin.run(RunRequest { deadline, ..request(&[("steps", &forever)]) });
    let (late, waiting) =
        tokio::time::timeout(LONG, async { tokio::join!(late, waiting) }).await.expect("the run goes on");
    assert!(matches!(late, Err(InferenceError::DeadlineExceeded)), "{late:?}");
    assert!(matches!(waiting, Err(InferenceError::DeadlineExceeded)), "{waiting:?}");
    assert!(run(&pin, &[("steps", &cpu.tensor(&[], &[3_i64]))]).await.is_ok());
}

#[tokio::test]
async fn dropping_or_cancelling_a_run_frees_its_slot() {
    let cpu = Cpu::new();
    let cache = cpu.cache(1);
    let pin = cache.acquire(&cpu.source("slow", &shared_model("good/slow.onnx")).await, &[]).await.unwrap();
    let forever = cpu.tensor(&[], &[i64::MAX]);
    let brief = cpu.tensor(&[], &[3_i64]);
    drop(pin.run(request(&[("steps", &forever)])));
    assert!(run(&pin, &[("steps", &brief)]).await.is_ok());
    let cancelled = pin.run(request(&[("steps", &forever)]));
    cancelled.cancel();
    let outcome = tokio::time::timeout(LONG, cancelled).await.expect("the run goes on");
    assert!(matches!(outcome, Err(InferenceError::Cancelled)), "{outcome:?}");
    assert!(run(&pin, &[("steps", &brief)]).await.is_ok());
    // The queue forgets withdrawn jobs.
    assert_eq!(cache.queue_len(), 0);
}

#[tokio::test]
async fn runs_are_concurrent_up_to_the_slot_count() {
    let cpu = Cpu::new();
    let cache = cpu.cache(2);
    let pin = cache.acquire(&cpu.source("slow", &shared_model("good/slow.onnx")).await, &[]).await.unwrap();
    let forever = cpu.tensor(&[], &[i64::MAX]);
    let endless = pin.run(request(&[("steps", &forever)]));
    // With the first slot occupied permanently, this run can only finish in the second.
    assert!(run(&pin, &[("steps", &cpu.tensor(&[], &[3_i64]))]).await.is_ok());
    drop(endless);
}

#[tokio::test]
async fn unload_frees_model_and_missing_files_fail_the_next_load() {
    let cpu = Cpu::new();
    let cache = cpu.cache(1);
    let source = cpu.source("slow", &shared_model("good/slow.onnx")).await;
    let pin = cache.acquire(&source, &[]).await.unwrap();
    let brief = cpu.tensor(&[], &[3_i64]);
    let outputs = run(&pin, &[("steps", &brief)]).await.unwrap();
    drop(pin);
    cache.unload(&source.key).unwrap().await;
    assert_eq!((cache.used_bytes(), cache.resident()), (0, Vec::new()));
    assert_eq!(output(&outputs, "last").data().len(), 32 * 32 * 4, "outputs are the caller's");

    std::fs::remove_file(cpu.blobs().join(source.prepared.variants[0].weights[0].hash.to_string())).unwrap();
    let error = cache.acquire(&source, &[]).await.unwrap_err();
    assert!(matches!(&error, InferenceError::Load { .. }), "{error:?}");
    assert_eq!(cache.used_bytes(), 0);
}
