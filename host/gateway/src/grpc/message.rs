//! Conversion of inference requests and responses from and to messages.

use super::super::error::ApiError;
use super::super::v2::{Answered, CallLimits, InferenceContent, RequestInput, Unresolved, classify};
use crate::NodeState;
use bytes::Bytes;
use std::collections::HashMap;
use std::time::Instant;
use weir_call::body::BodyLimit;
use weir_grpc::infer_parameter::ParameterChoice;
use weir_grpc::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use weir_grpc::model_infer_response::InferOutputTensor;
use weir_grpc::{InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse};
use weir_inference::Tensor;
use weir_protocol::{Parameters, Region, RequestedOutput};
use weir_types::{ElementType, ErrorCode, Shape};

/// Divisor for the work on raw data, relative to elements: most raw data is not inspected.
const RAW_WEIGHT: usize = 16;

/// Parses a message, on a blocking thread if the message is large.
pub(super) async fn read(
    node: &NodeState,
    message: ModelInferRequest,
    limit: BodyLimit,
) -> Result<Unresolved, ApiError> {
    let raw_bytes: usize = message.raw_input_contents.iter().map(Bytes::len).sum();
    if raw_bytes as u64 > limit.bytes_max {
        return Err(limit.too_large().into());
    }
    node.json(raw_bytes / RAW_WEIGHT, move || asked(message)).await
}

pub(super) fn asked(message: ModelInferRequest) -> Result<Unresolved, ApiError> {
    let started = Instant::now();
    let ModelInferRequest { id, parameters, inputs, outputs, raw_input_contents, .. } = message;
    let parameters = Parameters {
        binary_data_output: true,
        priority: number(&parameters, "priority")?,
        timeout: number(&parameters, "timeout")?,
    };
    let mut raw = raw_input_contents.into_iter();
    let mut given: Vec<(String, RequestInput)> = Vec::with_capacity(inputs.len());
    for described in inputs {
        let name = described.name.clone();
        let wrong = |why: String| invalid(format!("input {name:?}: {why}"));
        if given.iter().any(|(given, _)| *given == name) {
            return Err(wrong("it is given twice".to_owned()));
        }
        let region = region(&described.parameters)?;
        let input = input(described, region, &mut raw).map_err(wrong)?;
        given.push((name, input));
    }
    if raw.next().is_some() {
        return Err(invalid("there are more raw_input_contents than inputs without contents".to_owned()));
    }
    let outputs = outputs.into_iter().map(output).collect::<Result<Vec<_>, _>>()?;
    let asked = InferenceContent {
        id: Some(id).filter(|id| !id.is_empty()),
        parameters,
        inputs: Vec::new(),
        outputs: Some(outputs).filter(|outputs| !outputs.is_empty()),
        time: started.elapsed(),
    };
    Ok(Unresolved { asked, inputs: given })
}

fn input(
    input: InferInputTensor,
    region: Option<Region>,
    raw: &mut impl Iterator<Item = Bytes>,
) -> Result<RequestInput, String> {
    let known = ElementType::ALL.iter().find(|known| known.as_str() == input.datatype);
    let datatype = *known.ok_or_else(|| format!("there is no datatype {:?}", input.datatype))?;
    let dimension =
        |size: &i64| u32::try_from(*size).map_err(|_| format!("{size} is no size of a dimension"));
    let shape = input.shape.iter().map(dimension).collect::<Result<Vec<_>, _>>()?;
    let shape = Shape::new(&shape).map_err(|error| error.to_string())?;
    let data = match (input.contents, region) {
        (Some(contents), None) => elements(datatype, contents)?.into(),
        (None, None) => {
            raw.next().ok_or("it has neither contents, raw_input_contents nor a shared_memory_region")?
        }
        (None, Some(region)) => return Ok(RequestInput::Kept { datatype, shape, region }),
        (Some(_), Some(_)) => {
            return Err("it has both contents and a shared_memory_region; leave one out".to_owned());
        }
    };
    Tensor::new(datatype, shape, data.into()).map(RequestInput::Here).map_err(|error| error.to_string())
}

/// Returns the named object that takes the place of data, if any.
fn region(parameters: &HashMap<String, InferParameter>) -> Result<Option<Region>, ApiError> {
    let given = parameters.get("shared_memory_region").and_then(|given| given.parameter_choice.as_ref());
    let name = match given {
        None => return Ok(None),
        Some(ParameterChoice::StringParam(name)) => name.clone(),
        Some(_) => return Err(invalid("the parameter shared_memory_region is not a name".to_owned())),
    };
    let has_bytes = parameters.contains_key("shared_memory_byte_size");
    let bytes = has_bytes.then(|| number(parameters, "shared_memory_byte_size")).transpose()?;
    Ok(Some(Region { name, offset: number(parameters, "shared_memory_offset")?, bytes }))
}

/// Returns the elements of a tensor, from the list for its type.
fn elements(datatype: ElementType, contents: InferTensorContents) -> Result<Vec<u8>, String> {
    macro_rules! narrow {
        ($list:expr, $type:ty) => {{
            let narrow =
                |number| <$type>::try_from(number).map_err(|_| format!("{number} is not {datatype}"));
            let bytes = $list.into_iter().map(|number| Ok(narrow(number)?.to_le_bytes()));
            bytes.collect::<Result<Vec<_>, String>>()?.concat()
        }};
    }
    Ok(match datatype {
        ElementType::Bool => contents.bool_contents.into_iter().map(u8::from).collect(),
        ElementType::Uint8 => narrow!(contents.uint_contents, u8),
        ElementType::Uint16 => narrow!(contents.uint_contents, u16),
        ElementType::Uint32 => narrow!(contents.uint_contents, u32),
        ElementType::Uint64 => narrow!(contents.uint64_contents, u64),
        ElementType::Int8 => narrow!(contents.int_contents, i8),
        ElementType::Int16 => narrow!(contents.int_contents, i16),
        ElementType::Int32 => narrow!(contents.int_contents, i32),
        ElementType::Int64 => narrow!(contents.int64_contents, i64),
        ElementType::Fp32 => contents.fp32_contents.into_iter().flat_map(f32::to_le_bytes).collect(),
        ElementType::Fp64 => contents.fp64_contents.into_iter().flat_map(f64::to_le_bytes).collect(),
        ElementType::Bytes => {
            let mut bytes = Vec::new();
            for text in contents.bytes_contents {
                let length = u32::try_from(text.len()).map_err(|error| error.to_string())?;
                bytes.extend_from_slice(&length.to_le_bytes());
                bytes.extend_from_slice(&text);
            }
            bytes
        }
        ElementType::Fp16 | ElementType::Bf16 => {
            return Err(format!("{datatype} has no contents: send it as raw_input_contents"));
        }
    })
}

fn output(wanted: InferRequestedOutputTensor) -> Result<RequestedOutput, ApiError> {
    let InferRequestedOutputTensor { name, parameters } = wanted;
    let classes = number(&parameters, "classification")?;
    let region = region(&parameters)?;
    Ok(RequestedOutput { name, binary: Some(true), classes, region }.check()?)
}

/// Returns a parameter that is a number from 0 up; 0 if it is missing.
fn number<T: TryFrom<i64> + TryFrom<u64> + Default>(
    parameters: &HashMap<String, InferParameter>,
    name: &str,
) -> Result<T, ApiError> {
    let given = parameters.get(name).and_then(|parameter| parameter.parameter_choice.as_ref());
    let number = match given {
        None => return Ok(T::default()),
        Some(ParameterChoice::Int64Param(number)) => T::try_from(*number).ok(),
        Some(ParameterChoice::Uint64Param(number)) => T::try_from(*number).ok(),
        Some(_) => None,
    };
    number.ok_or_else(|| invalid(format!("the parameter {name} is not a number from 0 up")))
}

/// Builds the response message. Outputs are raw, as clients expect.
pub(super) fn write(answered: Answered, limits: &CallLimits) -> Result<ModelInferResponse, ApiError> {
    let Answered { model_name, model_version, asked, completion, labels, .. } = answered;
    let mut outputs = Vec::new();
    let mut raw_output_contents = Vec::new();
    let mut bytes_left = usize::try_from(limits.answer_bytes_max).unwrap_or(usize::MAX);
    let too_large = || {
        let CallLimits { answer_bytes_max, answer_limit, .. } = limits;
        let text = format!("the answer has more than {answer_bytes_max} bytes ({answer_limit})");
        ApiError::new(ErrorCode::ResponseTooLarge, text)
    };
    for (name, tensor) in completion.outputs {
        let wanted = asked.outputs.iter().flatten().find(|output| output.name == name);
        let classes = wanted.map_or(0, |output| output.classes);
        let mut output = InferOutputTensor { name, ..InferOutputTensor::default() };
        if let Some(region) = wanted.and_then(|output| output.region.as_ref()) {
            output.parameters = kept(region, &tensor);
            output.datatype = tensor.element_type().to_string();
            output.shape = shape(&tensor);
            outputs.push(output);
            continue;
        }
        let tensor = match classes {
            0 => tensor,
            count => {
                let labels = labels.get(&output.name);
                classify(&output.name, &tensor, labels, count, bytes_left)?.ok_or_else(too_large)?
            }
        };
        bytes_left = bytes_left.checked_sub(tensor.data().len()).ok_or_else(too_large)?;
        output.datatype = tensor.element_type().to_string();
        output.shape = shape(&tensor);
        outputs.push(output);
        raw_output_contents.push(tensor.into_data().into());
    }
    let id = asked.id.unwrap_or_default();
    Ok(ModelInferResponse {
        model_name,
        model_version,
        id,
        outputs,
        raw_output_contents,
        ..Default::default()
    })
}

fn shape(tensor: &Tensor) -> Vec<i64> {
    tensor.shape().dimensions().iter().map(|size| i64::from(*size)).collect()
}

/// Returns the parameters of an output that was stored as an object.
fn kept(region: &Region, tensor: &Tensor) -> HashMap<String, InferParameter> {
    let bytes = i64::try_from(tensor.data().len()).unwrap_or(i64::MAX);
    let parameters = [
        ("shared_memory_region", ParameterChoice::StringParam(region.name.clone())),
        ("shared_memory_byte_size", ParameterChoice::Int64Param(bytes)),
    ];
    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    parameters.into_iter().map(|(name, choice)| (name.to_owned(), parameter(choice))).collect()
}

fn invalid(text: String) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, text)
}
