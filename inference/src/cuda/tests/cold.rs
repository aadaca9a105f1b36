//! Runs that begin before the model's weights are there.

use super::networks::{MINILM, tolerance};
use super::{
    DIGITS, MEMORY_BYTES_MAX, Setup, assert_close, expected, expected_of_all, read, run, run_all, values,
};
use crate::backend::Model;
use crate::cuda::model::{CudaModel, ModelFiles};
use crate::error::{ErrorKind, InferenceError};
use crate::interrupt::{Interrupt, Reason};
use crate::request::Job;
use crate::tensor::Tensor;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_fake_cuda::Fake;
use weir_kernels::Precision;
use weir_types::Platform;

/// Far longer than any machine takes, so that only a hang fails.
const LONG: Duration = Duration::from_secs(120);
/// Of MiniLM's copies of a mebibyte or more, those that bring the table of its words, and no layer.
const LOADS_OF_WORDS: u64 = 24;
/// The same with some layers.
const LOADS_OF_EARLY_LAYERS: u64 = 30;

/// What MiniLM is asked.
fn words(setup: &Setup) -> Vec<Tensor> {
    let ids = |at: usize| 100 + (at as i64 * 37) % 20_000;
    let signature = weir_graph::Model::read(read(MINILM)).unwrap().signature().clone();
    let input = |port: &weir_types::Port| {
        let is_ids = port.name == "input_ids";
        setup.integers(&[1, 7], |at| if is_ids { ids(at) } else { 1 })
    };
    signature.inputs.iter().map(input).collect()
}

/// Wait until the device has done so many kernels.
fn wait_for_kernels(fake: &Fake, count: u64) {
    let began = Instant::now();
    while fake.count("computed") < count {
        assert!(began.elapsed() < LONG, "{} kernels have run", fake.count("computed"));
        std::thread::yield_now();
    }
}

#[test]
fn early_layers_run_before_the_last_weights_are_there() {
    let setup = Setup::new(7);
    let inputs = words(&setup);
    setup.fake.hold_loads_after(LOADS_OF_EARLY_LAYERS);
    let model = setup.begin_load("minilm", read(MINILM));
    let (mut session, mut later) = (model.session(1).unwrap(), model.session(1).unwrap());
    let (found, expected) = std::thread::scope(|scope| {
        let cold = scope.spawn(|| run_all(&mut *session, &inputs).unwrap().remove(0));
        wait_for_kernels(&setup.fake, 10);
        // Long enough for later layers to run, too, if nothing kept them.
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
fn cold_runs_are_right_in_whatever_order_streams_are_drained() {
    let precisions = [Precision::Fp32, Precision::Tf32, Precision::Fp16];
    for (seed, precision) in (1..10).zip(precisions.into_iter().cycle()) {
        let setup = Setup::with(Fake::new(seed), MEMORY_BYTES_MAX, precision);
        let input = setup.floats(&[2, 1, 8, 8], |at| (at * 5 % 17) as f32 / 17.0);
        let model = setup.begin_load("digits", read(DIGITS));
        // Several at once: one of them has what is needed once be made, and the others wait for that.
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
fn a_device_that_faults_meanwhile_is_told_to_the_run_and_to_who_waits_for_the_model() {
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

/// Wrong bytes are worse than none: they would be answers.
#[test]
fn weights_that_are_not_what_was_pushed_never_answer_and_are_gone_when_they_are_right_again() {
    let setup = Setup::new(6);
    let input = setup.floats(&[1, 1, 8, 8], |at| (at * 5 % 17) as f32 / 17.0);
    let source = setup.source("digits", read(DIGITS));
    let files = ModelFiles::of(&source).unwrap();
    let load = || CudaModel::load(Arc::clone(&setup.gpu), &files);
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
fn a_cold_run_that_nobody_wants_any_more_gives_the_device_nothing_more() {
    let setup = Setup::new(4);
    let inputs = words(&setup);
    setup.fake.hold_loads_after(LOADS_OF_WORDS);
    let model = setup.begin_load("minilm", read(MINILM));
    let mut session = model.session(1).unwrap();
    let interrupt = Interrupt::default();
    std::thread::scope(|scope| {
        let job = Job { inputs: inputs.clone(), outputs: vec![0] };
        let (session, stop) = (&mut session, &interrupt);
        let cold = scope.spawn(move || session.run(&job, stop));
        wait_for_kernels(&setup.fake, 1);
        interrupt.fire(Reason::Cancelled);
        setup.fake.let_loads_go();
        if let Err(error) = cold.join().unwrap() {
            assert_eq!(error.kind(), ErrorKind::Cancelled);
        }
    });
    let found = run_all(&mut *session, &inputs).unwrap().remove(0);
    assert_close(&values(&found), &expected_of_all(read(MINILM), &inputs), 1e-5);
}

#[test]
fn a_model_that_is_let_go_before_it_is_there_leaves_nothing() {
    let setup = Setup::new(5);
    setup.fake.hold_loads_after(2);
    let model = setup.begin_load("minilm", read(MINILM));
    drop(model);
    setup.fake.let_loads_go();
    // It can be had again at once, and the driver looks for what is left.
    let model = setup.load("minilm", read(MINILM));
    run_all(&mut *model.session(1).unwrap(), &words(&setup)).unwrap();
}
