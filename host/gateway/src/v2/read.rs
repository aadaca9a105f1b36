//! Request bodies: received into the arena, decompressed, and split into tensors that share the
//! body's memory.

use super::super::error::ApiError;
use super::encoding::Encoding;
use super::regions::RequestInput;
use crate::NodeState;
use axum::body::Body;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use std::time::{Duration, Instant};
use weir_call::body::{BodyLimit, no_room, receive_behind};
use weir_call::headers::INFERENCE_HEADER_LENGTH;
use weir_device::{Arena, Buffer};
use weir_inference::Tensor;
use weir_protocol::{InferenceRequest, InputData, Parameters, RawInput, RequestError, RequestedOutput};
use weir_types::{ElementType, ErrorCode, Port, Shape};

/// Alignment of the data after the JSON, in bytes. Models can therefore use the first tensor, and
/// later tensors if the sizes allow it, without a copy.
const ALIGNMENT_BYTES: usize = 64;
/// Divisor for the work on binary data, relative to JSON: most binary data is not inspected.
const BINARY_WEIGHT: usize = 16;

/// Content of a request, in the form that models and functions take.
pub(crate) struct InferenceContent {
    pub(crate) id: Option<String>,
    pub(crate) parameters: Parameters,
    pub(crate) inputs: Vec<(String, Tensor)>,
    /// Requested outputs; none for all outputs.
    pub(crate) outputs: Option<Vec<RequestedOutput>>,
    /// Time that it took to read the request.
    pub(crate) time: Duration,
}

impl InferenceContent {
    /// Returns the names of the requested outputs.
    pub(super) fn wanted(&self) -> Option<Vec<String>> {
        Some(self.outputs.as_ref()?.iter().map(|output| output.name.clone()).collect())
    }

    /// Returns the deadline, which `timeout` can only shorten.
    pub(super) fn deadline(&self, arrived: Instant, latest: Instant) -> Instant {
        let timeout = Some(self.parameters.timeout).filter(|timeout| *timeout > 0);
        let asked = timeout.and_then(|timeout| arrived.checked_add(Duration::from_micros(timeout)));
        asked.map_or(latest, |asked| asked.min(latest))
    }

    /// Returns the priority, which takes precedence over the header's.
    pub(super) fn priority(&self, header: u32) -> u32 {
        if self.parameters.priority > 0 { self.parameters.priority } else { header }
    }
}

/// Content of a request whose inputs may be named objects that are not loaded yet.
pub(crate) struct Unresolved {
    pub(crate) asked: InferenceContent,
    pub(crate) inputs: Vec<(String, RequestInput)>,
}

/// Description of the body in the headers.
struct Wire {
    encoding: Option<Encoding>,
    /// Size of the JSON; none if the whole body is JSON.
    json_bytes: Option<usize>,
    length: Option<u64>,
}

impl Wire {
    fn from_headers(headers: &HeaderMap) -> Result<Self, ApiError> {
        Ok(Self {
            encoding: Encoding::from_headers(headers)?,
            json_bytes: number(headers, &INFERENCE_HEADER_LENGTH)?,
            length: number(headers, &CONTENT_LENGTH)?,
        })
    }

    /// Returns the number of bytes to leave free before the body, so that the data after the JSON
    /// is aligned.
    fn lead(&self) -> usize {
        self.json_bytes.map_or(0, |json| json.wrapping_neg() % ALIGNMENT_BYTES)
    }
}

/// Receives a body within `limit`, before and after decompression, into `arena`, and reads it.
/// `ports` are the inputs of a model that declares them.
pub(super) async fn read(
    (node, arena): (&NodeState, Arena),
    headers: &HeaderMap,
    body: Body,
    limit: BodyLimit,
    ports: Option<Vec<Port>>,
) -> Result<Unresolved, ApiError> {
    let wire = Wire::from_headers(headers)?;
    let lead = if wire.encoding.is_none() { wire.lead() } else { 0 };
    let body = receive_behind(lead, body, wire.length, &arena, limit).await?;
    let json_bytes = wire.json_bytes.unwrap_or(body.len()).min(body.len());
    let work_bytes = match wire.encoding {
        Some(_) => body.len(),
        None => json_bytes + (body.len() - json_bytes) / BINARY_WEIGHT,
    };
    let work = move || {
        let started = Instant::now();
        let body = match wire.encoding {
            Some(encoding) => encoding.decode(&body, wire.lead(), &arena, limit.bytes_max)?,
            None => body,
        };
        let mut read = match wire.json_bytes {
            Some(0) => raw(&body, ports.as_deref(), &arena)?,
            json_bytes => parse(&body, json_bytes, &arena)?,
        };
        read.asked.time = started.elapsed();
        Ok(read)
    };
    node.json(work_bytes, work).await
}

fn parse(body: &Buffer, json_bytes: Option<usize>, arena: &Arena) -> Result<Unresolved, ApiError> {
    let InferenceRequest { id, parameters, inputs, outputs } = InferenceRequest::parse(body, json_bytes)?;
    let read = |described: weir_protocol::InferenceInput<'_>| {
        let weir_protocol::InferenceInput { name, datatype, shape, data } = described;
        match input(datatype, shape, data, body, arena) {
            Ok(input) => Ok((name, input)),
            Err(why) => Err(invalid(format!("input {name:?}: {why}"))),
        }
    };
    let inputs = inputs.into_iter().map(read).collect::<Result<_, _>>()?;
    // An empty list requests all outputs.
    let outputs = outputs.filter(|outputs| !outputs.is_empty());
    let asked = InferenceContent { id, parameters, inputs: Vec::new(), outputs, time: Duration::ZERO };
    Ok(Unresolved { asked, inputs })
}

fn input(
    datatype: ElementType,
    shape: Shape,
    data: InputData<'_>,
    body: &Buffer,
    arena: &Arena,
) -> Result<RequestInput, String> {
    let data = match data {
        InputData::Region(region) => return Ok(RequestInput::Kept { datatype, shape, region }),
        InputData::Binary(range) => body.slice(range),
        InputData::Json(elements) => {
            let count = usize::try_from(shape.element_count()).unwrap_or(usize::MAX);
            let fitting = datatype.size_bytes().map_or(usize::MAX, |size| count.saturating_mul(size));
            let room = elements.bytes_max().min(fitting);
            let mut data = arena.with_capacity(room).map_err(|error| error.to_string())?;
            elements.decode(|bytes| data.extend_from_slice(bytes)).map_err(|error| error.to_string())?;
            if let Some(given) =
                datatype.size_bytes().map(|size| data.len() / size).filter(|given| *given != count)
            {
                return Err(format!("shape {shape} has {count} elements, and its data has {given}"));
            }
            data.freeze()
        }
    };
    Tensor::new(datatype, shape, data).map(RequestInput::Here).map_err(|error| error.to_string())
}

/// Reads a body that is the data of a model's only input, as declared by the model.
fn raw(body: &Buffer, ports: Option<&[Port]>, arena: &Arena) -> Result<Unresolved, ApiError> {
    let ports = ports
        .ok_or_else(|| invalid("a tensor function declares no inputs: send JSON with the data".to_owned()))?;
    let RawInput { name, datatype, shape, prefix } =
        RawInput::for_ports(ports, body.len()).map_err(|error| invalid(error.to_string()))?;
    let data = match prefix {
        None => body.clone(),
        Some(prefix) => {
            let mut data = arena.with_capacity(prefix.len() + body.len()).map_err(no_room)?;
            data.extend_from_slice(&prefix).and_then(|()| data.extend_from_slice(body)).map_err(no_room)?;
            data.freeze()
        }
    };
    let tensor = Tensor::new(datatype, shape, data).map_err(|error| invalid(error.to_string()))?;
    // A client that sends only data gets only data back.
    let parameters = Parameters { binary_data_output: true, ..Parameters::default() };
    let asked =
        InferenceContent { id: None, parameters, inputs: Vec::new(), outputs: None, time: Duration::ZERO };
    Ok(Unresolved { asked, inputs: vec![(name, RequestInput::Here(tensor))] })
}

fn invalid(text: String) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, text)
}

fn number<T: std::str::FromStr>(headers: &HeaderMap, name: &http::HeaderName) -> Result<Option<T>, ApiError> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| invalid(format!("{name} is not a number of bytes")))
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        let code = match &error {
            RequestError::JsonTooLarge(_) => ErrorCode::BodyTooLarge,
            _ => ErrorCode::InvalidRequest,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn binary_inputs_share_the_body_and_the_first_is_aligned() {
        let arena = Arena::new(1 << 20);
        let limit = BodyLimit { bytes_max: 1 << 20, setting: "limit" };
        for pad in 0..70 {
            let described = |name: &str| {
                let size = json!({"binary_data_size": 128});
                json!({"name": name, "datatype": "FP64", "shape": [16], "parameters": size})
            };
            let json = json!({"id": "x".repeat(pad), "inputs": [described("a"), described("b")]}).to_string();
            let wire = Wire { encoding: None, json_bytes: Some(json.len()), length: None };
            let whole = [json.as_bytes(), &[7; 256]].concat();
            let body = receive_behind(wire.lead(), Body::from(whole), None, &arena, limit).await.unwrap();
            let used_bytes = arena.used_bytes();
            let read = parse(&body, wire.json_bytes, &arena).unwrap();
            let starts = read.inputs.iter().map(|(_, input)| match input {
                RequestInput::Here(tensor) => tensor.data().as_ptr(),
                RequestInput::Kept { .. } => panic!("it is in the body"),
            });
            let expected = [body[json.len()..].as_ptr(), body[json.len() + 128..].as_ptr()];
            assert_eq!(starts.collect::<Vec<_>>(), expected, "they were copied");
            assert_eq!((expected[0] as usize % ALIGNMENT_BYTES, arena.used_bytes()), (0, used_bytes));
        }
    }

    #[test]
    fn request_timeout_and_priority_override_defaults() {
        let asked = |timeout, priority| InferenceContent {
            id: None,
            parameters: Parameters { binary_data_output: false, priority, timeout },
            inputs: Vec::new(),
            outputs: None,
            time: Duration::ZERO,
        };
        let arrived = Instant::now();
        let latest = arrived + Duration::from_secs(1);
        assert_eq!(asked(0, 0).deadline(arrived, latest), latest);
        assert_eq!(asked(500, 0).deadline(arrived, latest), arrived + Duration::from_micros(500));
        assert_eq!(asked(u64::MAX, 0).deadline(arrived, latest), latest);
        assert_eq!((asked(0, 0).priority(7), asked(0, 3).priority(7)), (7, 3));
    }
}
