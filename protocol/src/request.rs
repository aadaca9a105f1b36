//! Inference requests: the JSON header, and the assignment of the binary data to inputs.

use crate::elements::Elements;
use crate::wire::{InputHead, JsonHead, OutputHead, Parameters};
use std::collections::HashSet;
use std::ops::Range;
use weir_types::{ElementType, JsonObject, Shape, ShapeError};

/// Largest number of inputs of a request.
pub const INPUTS_MAX: usize = 1_024;
/// Largest number of outputs that a request may name.
pub const OUTPUTS_MAX: usize = 1_024;
/// Largest JSON part of a request. JSON is several times as large as the data it encodes; larger
/// tensors should use the binary form.
pub const JSON_BYTES_MAX: usize = 64 << 20;

/// A parsed inference request. Borrows the text of the body.
#[derive(Debug, Clone, PartialEq)]
pub struct InferenceRequest<'a> {
    /// Request ID, repeated in the response.
    pub id: Option<String>,
    /// Parameters of the whole request.
    pub parameters: Parameters,
    /// Inputs in the given order, with unique names.
    pub inputs: Vec<InferenceInput<'a>>,
    /// Requested outputs in order; `None`: all outputs.
    pub outputs: Option<Vec<RequestedOutput>>,
}

/// One input. The parser does not check the data against type and shape; the creator of the tensor
/// does.
#[derive(Debug, Clone, PartialEq)]
pub struct InferenceInput<'a> {
    /// Name of the input.
    pub name: String,
    /// Element type.
    pub datatype: ElementType,
    /// Dimensions.
    pub shape: Shape,
    /// Elements.
    pub data: InputData<'a>,
}

/// Location of an input's elements.
#[derive(Debug, Clone, PartialEq)]
pub enum InputData<'a> {
    /// Raw elements in this range of the body.
    Binary(Range<usize>),
    /// Elements in the JSON.
    Json(Elements<'a>),
    /// Data stored on the server.
    Region(Region),
}

/// Reference to data stored on the server, used in place of inline data in a request or response.
/// The protocol's extension calls it a shared-memory region; Weir uses named objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Name of the object.
    pub name: String,
    /// Offset of the data within the object.
    pub offset: u64,
    /// Length of the data; `None`: up to the end of the object.
    pub bytes: Option<u64>,
}

/// One requested output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedOutput {
    /// Name of the output.
    pub name: String,
    /// Whether to send the output as binary; `None`: as set by [`Parameters::binary_data_output`].
    pub binary: Option<bool>,
    /// Number of largest elements to send, with their indices, instead of the tensor; 0 for the
    /// tensor.
    pub classes: u32,
    /// Named object that receives the output instead of the response.
    pub region: Option<Region>,
}

impl RequestedOutput {
    /// Returns the output if its parameters are consistent.
    pub fn check(self) -> Result<Self, RequestError> {
        match &self.region {
            Some(region) if region.offset > 0 => Err(RequestError::PartOfRegion(self.name)),
            Some(_) if self.classes > 0 => Err(RequestError::ClassesInRegion(self.name)),
            _ => Ok(self),
        }
    }
}

/// Reason why a body is not an inference request.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The header gives a JSON length greater than the length of the body.
    #[error(
        "the body has {body_bytes} bytes, and Inference-Header-Content-Length says that {json_bytes} of them are JSON"
    )]
    HeaderPastEnd {
        /// JSON length in the header.
        json_bytes: usize,
        /// Length of the body.
        body_bytes: usize,
    },
    /// The JSON part is too large.
    #[error("the JSON has {0} bytes; at most {JSON_BYTES_MAX} are read: send large tensors as binary")]
    JsonTooLarge(usize),
    /// The JSON cannot be parsed.
    #[error("the body is not an inference request: {0}")]
    Json(#[from] serde_json::Error),
    /// An input is invalid.
    #[error("input {name:?}: {why}")]
    Input {
        /// Name of the input.
        name: String,
        /// Reason.
        why: InputError,
    },
    /// An output names an offset within an object, but writing replaces the whole object.
    #[error("output {0:?}: an object is replaced as a whole; leave shared_memory_offset out")]
    PartOfRegion(String),
    /// An output asks for classes in an object, which has no place for classes.
    #[error("output {0:?} has both shared_memory_region and classification; leave one out")]
    ClassesInRegion(String),
    /// An output is requested twice.
    #[error("output {0:?} is wanted twice")]
    OutputTwice(String),
    /// The body has more binary data than the inputs declare.
    #[error("{0} bytes are left over after the binary data of the inputs")]
    BytesLeft(usize),
}

/// Reason why an input is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The input has too many dimensions, or dimensions that are too large.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The input is a duplicate.
    #[error("it is given twice")]
    Twice,
    /// The input has no elements.
    #[error("it has neither `data` nor the parameters binary_data_size or shared_memory_region")]
    NoData,
    /// The input has several sources of elements.
    #[error("it has more than one of `data`, binary_data_size and shared_memory_region; leave one")]
    BothForms,
    /// The input is binary, but the request has no `Inference-Header-Content-Length` header.
    #[error(
        "it is binary, and the header Inference-Header-Content-Length, which says where the JSON ends, is missing"
    )]
    NoHeader,
    /// The declared length exceeds the rest of the body.
    #[error("binary_data_size is {wanted_bytes}, and {left_bytes} bytes of the body are left")]
    PastEnd {
        /// Declared length.
        wanted_bytes: u64,
        /// Length of the rest of the body.
        left_bytes: usize,
    },
}

impl<'a> InferenceRequest<'a> {
    /// Parses a body whose first `json_bytes` bytes are JSON, followed by the data of binary
    /// inputs. With `None`, the whole body is JSON.
    pub fn parse(body: &'a [u8], json_bytes: Option<usize>) -> Result<Self, RequestError> {
        let end = json_bytes.unwrap_or(body.len());
        let past_end = || RequestError::HeaderPastEnd { json_bytes: end, body_bytes: body.len() };
        let json = body.get(..end).ok_or_else(past_end)?;
        if end > JSON_BYTES_MAX {
            return Err(RequestError::JsonTooLarge(end));
        }
        let JsonObject(head) = serde_json::from_slice(json)?;
        let JsonHead { id, parameters, inputs, outputs } = head;
        let mut binary = Binary { json, next: json_bytes, end: body.len() };
        let mut names = HashSet::new();
        let repeated = inputs.iter().find(|input| !names.insert(&*input.name));
        if let Some(InputHead { name, .. }) = repeated {
            return Err(RequestError::Input { name: name.clone(), why: InputError::Twice });
        }
        let inputs = inputs.into_iter().map(|input| binary.describe(input)).collect::<Result<_, _>>()?;
        match binary.left() {
            0 => {}
            left => return Err(RequestError::BytesLeft(left)),
        }
        let outputs: Option<Vec<_>> =
            outputs.map(|outputs| outputs.into_iter().map(output).collect::<Result<_, _>>()).transpose()?;
        let mut names = HashSet::new();
        if let Some(twice) = outputs.iter().flatten().find(|output| !names.insert(&*output.name)) {
            return Err(RequestError::OutputTwice(twice.name.clone()));
        }
        Ok(Self { id, parameters, inputs, outputs })
    }
}

/// Assigns the binary data after the JSON to inputs, in order.
struct Binary<'a> {
    /// The JSON before the data.
    json: &'a [u8],
    /// Start of the next input's data; `None` if the body is only JSON.
    next: Option<usize>,
    end: usize,
}

impl<'a> Binary<'a> {
    fn describe(&mut self, input: InputHead<'a>) -> Result<InferenceInput<'a>, RequestError> {
        let InputHead { name, datatype, shape, parameters, data } = input;
        let region = parameters.shared_memory_region.map(|name| Region {
            name,
            offset: parameters.shared_memory_offset,
            bytes: parameters.shared_memory_byte_size,
        });
        let data = match (data, parameters.binary_data_size, region) {
            (Some(text), None, None) => Ok(InputData::Json(Elements::new(datatype, text, self.json))),
            (None, Some(bytes), None) => self.take(bytes).map(InputData::Binary),
            (None, None, Some(region)) => Ok(InputData::Region(region)),
            (None, None, None) => Err(InputError::NoData),
            _ => Err(InputError::BothForms),
        };
        let described = data.and_then(|data| Ok((Shape::new(&shape)?, data)));
        match described {
            Ok((shape, data)) => Ok(InferenceInput { name, datatype, shape, data }),
            Err(why) => Err(RequestError::Input { name, why }),
        }
    }

    fn take(&mut self, bytes: u64) -> Result<Range<usize>, InputError> {
        let start = self.next.ok_or(InputError::NoHeader)?;
        let past_end = InputError::PastEnd { wanted_bytes: bytes, left_bytes: self.left() };
        let Some(bytes) = usize::try_from(bytes).ok().filter(|bytes| *bytes <= self.left()) else {
            return Err(past_end);
        };
        self.next = Some(start + bytes);
        Ok(start..start + bytes)
    }

    fn left(&self) -> usize {
        self.next.map_or(0, |next| self.end - next)
    }
}

fn output(head: OutputHead) -> Result<RequestedOutput, RequestError> {
    let OutputHead { name, parameters } = head;
    let offset = parameters.shared_memory_offset;
    let bytes = parameters.shared_memory_byte_size;
    let region = parameters.shared_memory_region.map(|name| Region { name, offset, bytes });
    RequestedOutput { name, binary: parameters.binary_data, classes: parameters.classification, region }
        .check()
}

#[cfg(test)]
mod tests;
