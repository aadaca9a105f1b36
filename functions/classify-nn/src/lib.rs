//! Runs a model with `wasi:nn` alone, like a component built for another host: its bindings cover
//! only that interface and nothing of Weir. The path selects the operation, the query names the
//! model, and the body is the tensor.

mod bindings {
    wit_bindgen::generate!({ path: "../../wit", world: "wasi:nn/ml", generate_all });
}

use bindings::wasi::nn::errors::Error as NnError;
use bindings::wasi::nn::graph::{ExecutionTarget, Graph, GraphEncoding, load, load_by_name};
use bindings::wasi::nn::inference::GraphExecutionContext;
use bindings::wasi::nn::tensor::{Tensor, TensorType};
use std::cell::Cell;
use wstd::http::{Body, Error, Request, Response, StatusCode};

thread_local! {
    static CONTEXT: Cell<Option<GraphExecutionContext>> = const { Cell::new(None) };
}

/// An error of the interface, whose code and text become the response.
struct Failed(NnError);

impl From<NnError> for Failed {
    fn from(error: NnError) -> Self {
        Self(error)
    }
}

#[wstd::http_server]
async fn main(mut request: Request<Body>) -> Result<Response<Body>, Error> {
    let body = request.body_mut().contents().await?.to_vec();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let parameter = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).unwrap_or_default()
    };
    let done = match request.uri().path() {
        "/classify" => {
            let dimensions = parameter("shape").split(',').filter_map(|size| size.parse().ok()).collect();
            let given =
                Given { dimensions, element_type: parameter("type"), input: parameter("input"), data: body };
            classify(load_by_name(&parameter("model")).map_err(Failed), given)
        }
        // The body starts with the model, whose size is the parameter `bytes`.
        "/load" => {
            let (model, data) = body.split_at(parameter("bytes").parse().unwrap_or_default());
            let builders = vec![model.to_vec(); parameter("times").parse().unwrap_or(1)];
            let graph = load(&builders, encoding(&parameter("encoding")), target(&parameter("target")));
            let dimensions = parameter("shape").split(',').filter_map(|size| size.parse().ok()).collect();
            let given = Given {
                dimensions,
                element_type: parameter("type"),
                input: parameter("input"),
                data: data.to_vec(),
            };
            classify(graph.map_err(Failed), given)
        }
        // Uses the model that the first call of the instance loaded.
        "/again" => {
            let context = CONTEXT.take().map_or_else(
                || load_by_name(&parameter("model")).and_then(|graph| graph.init_execution_context()),
                Ok,
            );
            context.map_err(Failed).and_then(|context| {
                let outputs = context
                    .compute(vec![(parameter("input"), Tensor::new(&[1, 1, 8, 8], TensorType::Fp32, &body))]);
                CONTEXT.set(Some(context));
                Ok(outputs?.iter().flat_map(|(_, output)| output.data()).collect())
            })
        }
        "/types" => every_type(&parameter("model")),
        path => {
            let text = format!("nothing is called {path}\n");
            return Ok(Response::builder().status(StatusCode::NOT_FOUND).body(text.into())?);
        }
    };
    Ok(match done {
        Ok(outputs) => Response::new(outputs.into()),
        Err(Failed(error)) => Response::builder()
            .status(StatusCode::IM_A_TEAPOT)
            .body(format!("{:?}: {}\n", error.code(), error.data()).into())?,
    })
}

/// Input of the model.
struct Given {
    dimensions: Vec<u32>,
    element_type: String,
    input: String,
    data: Vec<u8>,
}

/// The bytes of all outputs, concatenated.
fn classify(graph: Result<Graph, Failed>, given: Given) -> Result<Vec<u8>, Failed> {
    let context = graph?.init_execution_context()?;
    let input = Tensor::new(&given.dimensions, element_type(&given.element_type), &given.data);
    let outputs = context.compute(vec![(given.input, input)])?;
    Ok(outputs.iter().flat_map(|(_, output)| output.data()).collect())
}

/// Runs a tensor of each type, with two elements each, through a model that returns its input.
/// Reports the returned types and shapes, and whether the bytes are unchanged.
fn every_type(model: &str) -> Result<Vec<u8>, Failed> {
    let context = load_by_name(model)?.init_execution_context()?;
    let types =
        [("fp16", 2), ("fp32", 4), ("fp64", 8), ("bf16", 2), ("uint8", 1), ("int32", 4), ("int64", 8)];
    let data = |size: u8| (0..2 * size).map(|byte| byte + 1).collect::<Vec<_>>();
    let inputs =
        types.map(|(name, size)| (format!("x_{name}"), Tensor::new(&[2], element_type(name), &data(size))));
    let outputs = context.compute(inputs.into_iter().collect())?;
    let mut said = String::new();
    for (name, output) in outputs {
        let size = types.iter().find(|(of, _)| name == format!("y_{of}")).map_or(0, |(_, size)| *size);
        let same = output.data() == data(size);
        said.push_str(&format!("{name} {:?} {:?} {same}\n", output.ty(), output.dimensions()));
    }
    Ok(said.into_bytes())
}

fn element_type(name: &str) -> TensorType {
    match name {
        "fp16" => TensorType::Fp16,
        "fp64" => TensorType::Fp64,
        "bf16" => TensorType::Bf16,
        "uint8" => TensorType::U8,
        "int32" => TensorType::I32,
        "int64" => TensorType::I64,
        _ => TensorType::Fp32,
    }
}

fn encoding(name: &str) -> GraphEncoding {
    match name {
        "openvino" => GraphEncoding::Openvino,
        "ggml" => GraphEncoding::Ggml,
        "autodetect" => GraphEncoding::Autodetect,
        _ => GraphEncoding::Onnx,
    }
}

fn target(name: &str) -> ExecutionTarget {
    match name {
        "gpu" => ExecutionTarget::Gpu,
        "tpu" => ExecutionTarget::Tpu,
        _ => ExecutionTarget::Cpu,
    }
}
