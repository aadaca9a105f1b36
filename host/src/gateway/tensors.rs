//! Calling a tensor function over HTTP, in the JSON form of the Open Inference Protocol, version 2.
//!
//! `{"inputs": [{"name", "datatype", "shape", "data"}]}` goes in and the same with `outputs` comes out. Data is a flat or nested list.

use super::error::ApiError;
use crate::dispatch::Invocation;
use crate::instance::RequestBody;
use crate::node::NodeState;
use axum::Json;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};
use weir_device::Arena;
use weir_inference::Tensor;
use weir_types::{ElementType, ErrorCode, Shape};

/// The largest request: JSON is parsed in memory.
const JSON_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, Deserialize)]
struct InferRequest {
    #[serde(default)]
    id: Option<String>,
    inputs: Vec<JsonTensor>,
}

#[derive(Debug, Serialize)]
struct InferResponse {
    model_name: String,
    model_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    outputs: Vec<JsonTensor>,
}

#[derive(Debug, Serialize, Deserialize)]
struct JsonTensor {
    name: String,
    datatype: ElementType,
    shape: Vec<u32>,
    data: Value,
}

pub(super) async fn invoke(
    node: &NodeState,
    invocation: Invocation,
    method: &Method,
    body: RequestBody,
) -> Result<Response, ApiError> {
    if method != Method::POST {
        let text = "this is a tensor function: POST {\"inputs\": [{\"name\": ..., \"datatype\": \"FP32\", \"shape\": [1], \"data\": [0]}]}";
        return Err(ApiError::new(ErrorCode::MethodNotAllowed, text));
    }
    let json = match body {
        RequestBody::Whole(buffer) => Bytes::from(buffer),
        RequestBody::Stream(body) => super::body::small(body, JSON_BYTES_MAX).await?,
    };
    let request: InferRequest = serde_json::from_slice(&json)
        .map_err(|error| invalid(&format!("the body is not an inference request: {error}")))?;
    let inputs =
        request.inputs.into_iter().map(|input| Ok((input.name.clone(), tensor_of(&node.arena, input)?)));
    let inputs = inputs.collect::<Result<Vec<_>, ApiError>>()?;
    let id = invocation.deployment.id.clone();
    let outputs = node.dispatch.tensor(invocation, inputs).await?;
    let outputs =
        outputs.into_iter().map(|(name, tensor)| json_of(name, &tensor)).collect::<Result<_, _>>()?;
    let response = InferResponse {
        model_name: id.name.to_string(),
        model_version: id.version.to_string(),
        id: request.id,
        outputs,
    };
    Ok(Json(response).into_response())
}

fn invalid(text: &str) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, text)
}

fn tensor_of(arena: &Arena, input: JsonTensor) -> Result<Tensor, ApiError> {
    let JsonTensor { name, datatype, shape, data } = input;
    let wrong = |why: &dyn std::fmt::Display| invalid(&format!("input {name:?}: {why}"));
    let shape = Shape::new(&shape).map_err(|error| wrong(&error))?;
    let mut bytes = Vec::new();
    write(&data, datatype, &mut bytes).map_err(|why| wrong(&why))?;
    let buffer =
        arena.copy_of(&bytes).map_err(|error| ApiError::new(ErrorCode::Unavailable, error.to_string()))?;
    Tensor::new(datatype, shape, buffer).map_err(|error| wrong(&error))
}

/// Append `value`, an element or a list of lists of them, to `bytes`. serde_json bounds the nesting.
fn write(value: &Value, datatype: ElementType, bytes: &mut Vec<u8>) -> Result<(), String> {
    macro_rules! put {
        ($get:ident, $type:ty) => {{
            let number = value.$get().and_then(|number| <$type>::try_from(number).ok());
            bytes.extend_from_slice(
                &number.ok_or_else(|| format!("{value} is not {datatype}"))?.to_le_bytes(),
            );
        }};
    }
    match (value, datatype) {
        (Value::Array(items), _) => return items.iter().try_for_each(|item| write(item, datatype, bytes)),
        (Value::Bool(truth), ElementType::Bool) => bytes.push(u8::from(*truth)),
        (Value::String(text), ElementType::Bytes) => {
            let length = u32::try_from(text.len()).map_err(|error| error.to_string())?;
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
        (Value::Number(_), ElementType::Uint8) => put!(as_u64, u8),
        (Value::Number(_), ElementType::Uint16) => put!(as_u64, u16),
        (Value::Number(_), ElementType::Uint32) => put!(as_u64, u32),
        (Value::Number(_), ElementType::Uint64) => put!(as_u64, u64),
        (Value::Number(_), ElementType::Int8) => put!(as_i64, i8),
        (Value::Number(_), ElementType::Int16) => put!(as_i64, i16),
        (Value::Number(_), ElementType::Int32) => put!(as_i64, i32),
        (Value::Number(_), ElementType::Int64) => put!(as_i64, i64),
        #[expect(clippy::cast_possible_truncation, reason = "FP32 is what was asked for")]
        (Value::Number(number), ElementType::Fp32) => {
            bytes.extend_from_slice(&(number.as_f64().unwrap_or(f64::NAN) as f32).to_le_bytes());
        }
        (Value::Number(number), ElementType::Fp64) => {
            bytes.extend_from_slice(&number.as_f64().unwrap_or(f64::NAN).to_le_bytes());
        }
        (_, ElementType::Fp16 | ElementType::Bf16) => return Err(format!("{datatype} has no JSON form")),
        _ => return Err(format!("{value} is not {datatype}")),
    }
    Ok(())
}

fn json_of(name: String, tensor: &Tensor) -> Result<JsonTensor, ApiError> {
    let data: &[u8] = tensor.data();
    macro_rules! numbers {
        ($type:ty) => {
            data.as_chunks().0.iter().map(|bytes| Value::from(<$type>::from_le_bytes(*bytes))).collect()
        };
    }
    let data: Vec<Value> = match tensor.element_type() {
        ElementType::Bool => data.iter().map(|&byte| Value::from(byte != 0)).collect(),
        ElementType::Uint8 => numbers!(u8),
        ElementType::Uint16 => numbers!(u16),
        ElementType::Uint32 => numbers!(u32),
        ElementType::Uint64 => numbers!(u64),
        ElementType::Int8 => numbers!(i8),
        ElementType::Int16 => numbers!(i16),
        ElementType::Int32 => numbers!(i32),
        ElementType::Int64 => numbers!(i64),
        ElementType::Fp32 => {
            data.as_chunks().0.iter().map(|bytes| float(f32::from_le_bytes(*bytes).into())).collect()
        }
        ElementType::Fp64 => {
            data.as_chunks().0.iter().map(|bytes| float(f64::from_le_bytes(*bytes))).collect()
        }
        ElementType::Bytes => strings(data),
        ElementType::Fp16 | ElementType::Bf16 => {
            let text = format!("output {name:?} is {}, which has no JSON form", tensor.element_type());
            return Err(ApiError::new(ErrorCode::GuestError, text));
        }
    };
    let shape = tensor.shape().dimensions().to_vec();
    Ok(JsonTensor { name, datatype: tensor.element_type(), shape, data: Value::Array(data) })
}

/// JSON has no infinities and no NaN: they are null.
fn float(number: f64) -> Value {
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}

/// The elements of a checked `BYTES` tensor.
fn strings(mut data: &[u8]) -> Vec<Value> {
    let mut strings = Vec::new();
    while let Some((length, rest)) = data.split_first_chunk::<4>() {
        let (text, rest) = rest.split_at(rest.len().min(u32::from_le_bytes(*length) as usize));
        strings.push(Value::from(String::from_utf8_lossy(text)));
        data = rest;
    }
    strings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tensors_survive_the_way_through_json() {
        let arena = Arena::new(1 << 20);
        for (datatype, shape, data) in [
            (ElementType::Fp32, json!([2, 2]), json!([[1.5, -2.0], [0.0, 3.0]])),
            (ElementType::Int64, json!([2]), json!([i64::MIN, i64::MAX])),
            (ElementType::Uint8, json!([3]), json!([0, 1, 255])),
            (ElementType::Bool, json!([2]), json!([true, false])),
            (ElementType::Bytes, json!([2]), json!(["", "ä"])),
        ] {
            let input = serde_json::from_value(
                json!({"name": "x", "datatype": datatype, "shape": shape, "data": data}),
            )
            .unwrap();
            let output = json_of("x".into(), &tensor_of(&arena, input).unwrap()).unwrap();
            let flat = if datatype == ElementType::Fp32 { json!([1.5, -2.0, 0.0, 3.0]) } else { data };
            assert_eq!(output.data, flat);
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        let arena = Arena::new(1 << 20);
        for (datatype, data) in [
            ("UINT8", json!([256])),
            ("INT8", json!([-129])),
            ("INT32", json!([1.5])),
            ("BOOL", json!([1])),
            ("FP16", json!([1])),
        ] {
            let input = serde_json::from_value(
                json!({"name": "x", "datatype": datatype, "shape": [1], "data": data}),
            )
            .unwrap();
            assert!(tensor_of(&arena, input).is_err(), "{datatype} took {data}");
        }
    }
}
