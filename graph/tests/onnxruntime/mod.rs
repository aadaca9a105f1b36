//! Expected results from ONNX Runtime, for tests of this crate and of the executor. It is the
//! library that nodes run models on the CPU with.

use ort::environment::Environment;
use ort::session::Session;
use ort::session::builder::GraphOptimizationLevel;
use ort::value::{DynTensor, Tensor as Value};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use weir_graph::reference::{ReferenceData, ReferenceTensor};

/// The model's first output for inputs in its order, computed operator by operator without graph
/// optimisation.
pub(crate) fn onnxruntime(file: &[u8], inputs: &[ReferenceTensor]) -> Vec<f32> {
    let builder = Session::builder(environment()).unwrap();
    let builder = builder.with_optimization_level(GraphOptimizationLevel::Disable).unwrap();
    let mut session = builder.with_intra_threads(1).unwrap().commit_from_memory(file).unwrap();
    assert_eq!(session.inputs().len(), inputs.len());
    let named = session.inputs().iter().zip(inputs);
    let inputs: Vec<(String, DynTensor)> =
        named.map(|(input, tensor)| (input.name().to_owned(), value(tensor))).collect();
    let outputs = session.run(inputs).unwrap();
    outputs[0].try_extract_tensor::<f32>().unwrap().1.to_vec()
}

fn value(tensor: &ReferenceTensor) -> DynTensor {
    let dims = tensor.tensor().dims().to_vec();
    match tensor.data() {
        ReferenceData::Floats(floats) => Value::from_array((dims, floats.to_vec())).unwrap().upcast(),
        ReferenceData::Integers(integers) => Value::from_array((dims, integers.to_vec())).unwrap().upcast(),
    }
}

/// The only environment that a process may have.
fn environment() -> &'static Environment {
    static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| {
        let set = std::env::var_os("WEIR_ONNXRUNTIME").map(PathBuf::from);
        let here = || {
            let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
            folders.map(|folder| folder.join(".weir/lib/libonnxruntime.so")).find(|path| path.is_file())
        };
        let library = set.or_else(here).unwrap_or_else(|| panic!("no ONNX Runtime: run `cargo xtask setup`"));
        ort::init_from(library).unwrap().with_telemetry(false).build().unwrap()
    })
}
