//! Tests of compiled chains in the executor: the results must be bit-identical to the interpreter.

use super::networks::{MINILM, light};
use super::*;
use crate::bound::Bound;
use crate::chains::INSTRUCTIONS_MIN;
use crate::libraries::LibraryState;
use crate::prepared_run::in_slot;
use crate::program::{ProductTier, Program};
use crate::weights::Weights;
use weir_graph::Graph;
use weir_kernels::{Chain, Example};

/// Opens a device that compiles chains of at least `instructions_min` instructions.
fn with_compiler(fake: Fake, precision: Precision, path: PathBuf, instructions_min: usize) -> Setup {
    let compiler = CompilerConfig { path, instructions_min };
    Setup::with_libraries(fake, MEMORY_BYTES_MAX, precision, None, Some(compiler))
}

fn compiling(seed: u64) -> Setup {
    let fake = Fake::new(seed);
    let path = fake.nvrtc(12);
    with_compiler(fake, Precision::Fp32, path, INSTRUCTIONS_MIN)
}

impl Setup {
    fn launched(&self) -> u64 {
        self.fake.count(&format!("launches of {}", Chain::KERNEL))
    }

    fn compilations(&self) -> u64 {
        self.fake.count("nvrtcCompileProgram")
    }

    /// Binds the graphs, waits for the compiler, and returns the number of compiled steps of each
    /// graph.
    fn compile_all(&self, graphs: &[Graph]) -> Vec<usize> {
        let weights = Weights::none();
        let bound = graphs.iter().map(|graph| {
            let program =
                Program::from_graph(graph, Precision::Fp32, &self.gpu.target, ProductTier::Own).unwrap();
            Bound::new(&self.gpu, program, &weights, OWNER).unwrap()
        });
        let bound: Vec<_> = bound.collect();
        bound.iter().map(|bound| bound.wait_for_compiler(&self.gpu.chains)).collect()
    }
}

#[test]
fn chain_is_compiled_once_for_all_sizes_and_models() {
    let setup = compiling(1);
    let graphs: Vec<_> = [&[64][..], &[3, 5], &[4096], &[2, 7]]
        .iter()
        .map(|dims| Example::silu(dims).graph().unwrap())
        .collect();
    assert_eq!(setup.compile_all(&graphs), [1, 1, 1, 1]);
    assert_eq!(setup.compilations(), 2, "one for each of the loops");
}

#[test]
fn single_instruction_chain_is_interpreted() {
    let setup = compiling(1);
    let mut example = Example::silu(&[64]);
    example.op.program.instructions.truncate(3);
    assert_eq!(example.chain().unwrap().len(), 1);
    assert_eq!(setup.compile_all(&[example.graph().unwrap()]), [0]);
    assert_eq!(setup.compilations(), 0);
}

/// Runs a model until all its kernels are compiled and its runs are captured, and returns the
/// output of each run.
fn runs(setup: &Setup, name: &str, upload: Bytes, inputs: &[Tensor]) -> Vec<Vec<u8>> {
    let model = setup.load(name, upload);
    let mut session = model.session(1).unwrap();
    let mut outputs = Vec::new();
    // Runs until the graph has been launched twice.
    while setup.fake.count("graph_launches") < 2 {
        outputs.push(run_all(&mut *session, inputs).unwrap().remove(0).data().to_vec());
        assert!(outputs.len() < 10_000, "its runs are never captured");
    }
    outputs
}

fn minilm_inputs(setup: &Setup, upload: &Bytes) -> Vec<Tensor> {
    let signature = weir_graph::OnnxModel::read(upload.clone()).unwrap().signature().clone();
    let port = |port: &weir_types::Port| {
        let is_ids = port.name == "input_ids";
        setup.integers(&[2, 9], |at| if is_ids { 100 + (at as i64 * 37) % 20_000 } else { 1 })
    };
    signature.inputs.iter().map(port).collect()
}

#[test]
fn switch_to_compiled_chains_keeps_minilm_answers_identical() {
    let upload = read(MINILM);
    for precision in [Precision::Fp32, Precision::Fp16] {
        let own = Setup::with(Fake::new(2), MEMORY_BYTES_MAX, precision);
        let interpreted = runs(&own, "minilm", upload.clone(), &minilm_inputs(&own, &upload));
        let fake = Fake::new(3);
        let path = fake.nvrtc(13);
        let setup = with_compiler(fake, precision, path, 1);
        let outputs = runs(&setup, "minilm", upload.clone(), &minilm_inputs(&setup, &upload));
        assert!(setup.launched() > 0 && setup.compilations() > 0);
        assert!(setup.fake.count("launches of elementwise_packed") > 0, "the first run does not wait");
        assert!(outputs.iter().all(|output| *output == interpreted[0]), "{precision}");
    }
}

#[test]
fn compiled_normalisations_match_interpreter() {
    let upload = light("densenet121");
    let picture = |setup: &Setup| [setup.floats(&[1, 3, 224, 224], |at| (at % 251) as f32 / 251.0 - 0.5)];
    let own = Setup::new(2);
    let interpreted = runs(&own, "densenet", upload.clone(), &picture(&own));
    let setup = compiling(3);
    let outputs = runs(&setup, "densenet", upload, &picture(&setup));
    assert!(setup.launched() > 0);
    assert!(outputs.iter().all(|output| *output == interpreted[0]));
}

#[test]
fn captured_compiled_chain_matches_interpreter() {
    let setup = compiling(4);
    let graph = Example::silu(&[1000]).graph().unwrap();
    let program =
        || Program::from_graph(&graph, Precision::Fp32, &setup.gpu.target, ProductTier::Own).unwrap();
    let weights = Weights::none();
    let inputs: Vec<_> = graph
        .inputs
        .iter()
        .map(|port| {
            let elements = (0..1000).map(|at| (at as f32 - 500.0) / 77.0).collect();
            reference::ReferenceTensor::floats(graph.value(port.value).tensor.clone(), elements)
        })
        .collect();
    let mut interpreted = program();
    interpreted.interpret_chains();
    let interpreted = Bound::new(&setup.gpu, interpreted, &weights, OWNER).unwrap();
    let bound = Bound::new(&setup.gpu, program(), &weights, OWNER).unwrap();
    assert_eq!(
        (bound.wait_for_compiler(&setup.gpu.chains), interpreted.wait_for_compiler(&setup.gpu.chains)),
        (1, 0)
    );
    let both = [&interpreted, &bound].map(|bound| {
        in_slot(&setup.gpu, OWNER, bound, &weights, &inputs, |ready| Ok(ready.outputs_both_ways()?.0))
            .unwrap()
    });
    let expected = &both[0][0];
    for [launched, captured] in &both {
        assert!(launched == expected && captured == expected);
    }
    assert!(setup.launched() > 0);
}

/// Checks that the model's chains stay interpreted, with the same results, in spite of an unusable
/// compiler.
fn interpreted(setup: &Setup) {
    let upload = read(MINILM);
    let own = Setup::new(2);
    let expected = runs(&own, "minilm", upload.clone(), &minilm_inputs(&own, &upload));
    let outputs = runs(setup, "minilm", upload.clone(), &minilm_inputs(setup, &upload));
    assert!(outputs.iter().all(|output| *output == expected[0]));
    assert_eq!(setup.launched(), 0);
}

#[test]
fn uncompilable_chain_is_interpreted() {
    let setup = compiling(1);
    setup.fake.set("nvrtc_fails", 1);
    interpreted(&setup);
    assert!(setup.compilations() > 0);
    assert_eq!(*setup.gpu.chains.state(), LibraryState::Used("12.4".to_owned()));
}

#[test]
fn newer_device_than_compiler_gets_ptx_of_newest_known_target() {
    let fake = Fake::new(1);
    fake.set("nvrtc_newest", 86).set("sm", 90);
    let path = fake.nvrtc(12);
    let setup = with_compiler(fake, Precision::Fp32, path, INSTRUCTIONS_MIN);
    assert_eq!(setup.compile_all(&[Example::silu(&[64]).graph().unwrap()]), [1]);
}

#[test]
fn ptx_too_new_for_driver_leaves_chain_interpreted() {
    let fake = Fake::new(1);
    fake.set("nvrtc_newest", 86).set("driver_version", 12_040);
    let path = fake.nvrtc(13);
    let setup = with_compiler(fake, Precision::Fp32, path, INSTRUCTIONS_MIN);
    assert_eq!(setup.compile_all(&[Example::silu(&[64]).graph().unwrap()]), [0]);
}

#[test]
fn unusable_compiler_is_reported_and_chains_are_interpreted() {
    let unused = |fake: Fake, path: PathBuf| {
        let setup = with_compiler(fake, Precision::Fp32, path, INSTRUCTIONS_MIN);
        assert_eq!(setup.compile_all(&[Example::silu(&[64]).graph().unwrap()]), [0]);
        match setup.gpu.chains.state() {
            LibraryState::Unusable(why) => why.clone(),
            state => panic!("{state:?}"),
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libnvrtc.so.12");
    std::fs::write(&file, "not a library").unwrap();
    let why = unused(Fake::new(1), file);
    assert!(why.contains("libnvrtc.so.12 cannot be used"), "{why}");
    let fake = Fake::new(1);
    let path = fake.path().to_owned();
    let why = unused(fake, path);
    assert!(why.contains("it lacks nvrtcCreateProgram, nvrtcCompileProgram"), "{why}");
    let fake = Fake::new(1);
    fake.set("nvrtc_newest", 74);
    let path = fake.nvrtc(12);
    let why = unused(fake, path);
    assert!(why.contains("version 12.4 compiles for no device of compute capability 90"), "{why}");
}
