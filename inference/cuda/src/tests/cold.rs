//! Tests of cold runs, which start before the model's weights have arrived.

use super::networks::{MINILM, tolerance};
use super::{
    DIGITS, MEMORY_BYTES_MAX, Setup, assert_close, expected, expected_of_all, read, run, run_all, values,
};
use crate::model::{CudaModel, ModelFiles};
use std::time::{Duration, Instant};
use weir_fake_cuda::Fake;
use weir_inference::{ErrorKind, InferenceError, Interrupt, Job, Model, StopReason, Tensor};
use weir_kernels::Precision;
use weir_types::Platform;

/// Timeout that only a hang can reach.
const LONG: Duration = Duration::from_secs(120);
/// Number of MiniLM's copies of at least 1 MiB that transfer the word table, without any layer.
const LOADS_OF_WORDS: u64 = 24;
/// Number of copies that transfer the word table and some layers.
const LOADS_OF_EARLY_LAYERS: u64 = 30;

/// Inputs for MiniLM.
fn words(setup: &Setup) -> Vec<Tensor> {
    let ids = |at: usize| 100 + (at as i64 * 37) % 20_000;
    let signature = weir_graph::OnnxModel::read(read(MINILM)).unwrap().signature().clone();
    let input = |port: &weir_types::Port| {
        let is_ids = port.name == "input_ids";
        setup.integers(&[1, 7], |at| if is_ids { ids(at) } else { 1 })
    };
    signature.inputs.iter().map(input).collect()
}

/// Waits until the device has executed `count` kernels.
fn wait_for_kernels(fake: &Fake, count: u64) {
    let began = Instant::now();
    while fake.count("computed") < count {
        assert!(began.elapsed() < LONG, "{} kernels have run", fake.count("computed"));
        std::thread::yield_now();
    }
}

#[test]
fn early_layers_run_before_last_weights_arrive() {
    let setup = Setup::new(7);
    let inputs = words(&setup);
    setup.fake.hold_loads_after(LOADS_OF_EARLY_LAYERS);
    let model = setup.begin_load("minilm", read(MINILM));
    let mut session = model.session(1).unwrap();
    let mut later = model.session(1).unwrap();
    let (found, expected) = std::thread::scope(|scope| {
        let cold = scope.spawn(|| run_all(&mut *session, &inputs).unwrap().remove(0));
        wait_for_kernels(&setup.fake, 10);
        // Computing the reference takes long enough for later layers to run as well, unless they
        // wait for weights.
        let expected = expected_of_all(read(MINILM), &inputs);
        assert!(model.is_arriving() && !cold.is_finished(), "the last weights are not there");
        setup.fake.let_loads_go();
        (cold.join().unwrap(), expected)
    });
    model.arrive().unwrap();
    assert_eq!(setup.fake.count("graph_launches"), 0, "what waits for weights is not captured");
    assert_close(&values(&found), &expected, 1e-5);
    for _ in 0..3 {
        assert!(run_all(&mut *later, &inputs).unwrap()[0] == found, "a warm run is the same to the bit");
    }
    assert!(setup.fake.count("graph_launches") >= 1, "warm runs are captured");
}

#[test]
fn cold_runs_are_correct_in_any_stream_order() {
    let precisions = [Precision::Fp32, Precision::Tf32, Precision::Fp16];
    for (seed, precision) in (1..10).zip(precisions.into_iter().cycle()) {
        let setup = Setup::with(Fake::new(seed), MEMORY_BYTES_MAX, precision);
        let input = setup.floats(&[2, 1, 8, 8], |at| (at * 5 % 17) as f32 / 17.0);
        let model = setup.begin_load("digits", read(DIGITS));
        // With several concurrent runs, one run enqueues the prologue and the others wait for it.
        let found = std::thread::scope(|scope| {
            let run = || run(&mut *model.session(1).unwrap(), &input).unwrap().remove(0);
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        model.arrive().unwrap();
        let warm = run(&mut *model.session(1).unwrap(), &input).unwrap().remove(0);
        assert!(found.iter().all(|cold| *cold == warm), "seed {seed}");
        assert_close(&values(&warm), &expected(read(DIGITS), &input), tolerance(precision));
    }
}

#[test]
fn fault_during_load_fails_the_run_and_the_load() {
    let setup = Setup::new(3);
    let inputs = words(&setup);
    setup.fake.hold_loads_after(LOADS_OF_EARLY_LAYERS);
    let model = setup.begin_load("minilm", read(MINILM));
    setup.fake.fail_launch(2);
    let error = run_all(&mut *model.session(1).unwrap(), &inputs).unwrap_err();
    assert!(matches!(error, InferenceError::DeviceLost(_)), "{error}");
    let error = model.arrive().unwrap_err();
    assert!(matches!(error, InferenceError::DeviceLost(_)), "{error}");
}

/// Answers computed from wrong bytes are worse than no answers.
#[test]
fn corrupt_weights_never_answer_and_valid_ones_reload() {
    let setup = Setup::new(6);
    let input = setup.floats(&[1, 1, 8, 8], |at| (at * 5 % 17) as f32 / 17.0);
    let source = setup.source("digits", read(DIGITS));
    let files = ModelFiles::for_source(&source).unwrap();
    let load = || CudaModel::load(setup.gpu.clone(), &files);
    let graph = source.prepared.variants_for(Platform::Cuda).next().unwrap().skeleton;
    let paths: Vec<_> =
        std::fs::read_dir(setup.blobs.path()).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(paths.len() >= 2, "the graph and a weight: {paths:?}");
    for path in paths {
        let right = std::fs::read(&path).unwrap();
        let wrong: Vec<u8> = right.iter().map(|byte| byte ^ 0x40).collect();
        std::fs::write(&path, wrong).unwrap();
        setup.gpu.trim();
        let told = |error: InferenceError| {
            let text = error.to_string();
            assert!(matches!(error, InferenceError::Load { .. }), "{error:?}");
            assert!(text.contains("push the model again"), "{text}");
        };
        if path.ends_with(graph.to_string()) {
            told(load().map(drop).unwrap_err());
        } else {
            let model = load().unwrap();
            let mut session = model.session(1).unwrap();
            told(run(&mut *session, &input).unwrap_err());
            told(model.arrive().unwrap_err());
            told(run(&mut *session, &input).unwrap_err());
        }
        std::fs::write(&path, right).unwrap();
        let model = load().unwrap();
        model.arrive().unwrap();
        let found = run(&mut *model.session(1).unwrap(), &input).unwrap().remove(0);
        assert_close(&values(&found), &expected(read(DIGITS), &input), 1e-5);
    }
}

#[test]
fn cancelled_cold_run_enqueues_no_further_launches() {
    let setup = Setup::new(4);
    let inputs = words(&setup);
    setup.fake.hold_loads_after(LOADS_OF_WORDS);
    let model = setup.begin_load("minilm", read(MINILM));
    let mut session = model.session(1).unwrap();
    let interrupt = Interrupt::default();
    std::thread::scope(|scope| {
        let job = Job { inputs: inputs.clone(), outputs: vec![0] };
        let session = &mut session;
        let stop = &interrupt;
        let cold = scope.spawn(move || session.run(&job, stop));
        wait_for_kernels(&setup.fake, 1);
        interrupt.fire(StopReason::Cancelled);
        setup.fake.let_loads_go();
        if let Err(error) = cold.join().unwrap() {
            assert_eq!(error.kind(), ErrorKind::Cancelled);
        }
    });
    let found = run_all(&mut *session, &inputs).unwrap().remove(0);
    assert_close(&values(&found), &expected_of_all(read(MINILM), &inputs), 1e-5);
}

#[test]
fn model_dropped_during_load_leaks_nothing() {
    let setup = Setup::new(5);
    setup.fake.hold_loads_after(2);
    let model = setup.begin_load("minilm", read(MINILM));
    drop(model);
    setup.fake.let_loads_go();
    // The model can be loaded again immediately. The fake driver checks for leaks.
    let model = setup.load("minilm", read(MINILM));
    run_all(&mut *model.session(1).unwrap(), &words(&setup)).unwrap();
}
