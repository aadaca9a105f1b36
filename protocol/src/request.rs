//! A request: what the JSON says, and which of the bytes behind it belong to which input.

use crate::elements::Elements;
use crate::wire::{Head, InputHead, OutputHead, Parameters};
use std::collections::HashSet;
use std::ops::Range;
use weir_types::{ElementType, Shape, ShapeError};

/// The most inputs of one request.
pub const INPUTS_MAX: usize = 1_024;
/// The most outputs that one request may name.
pub const OUTPUTS_MAX: usize = 1_024;
/// The most JSON of one request: several times as much as what it stands for. Larger tensors are for the binary form.
pub const JSON_BYTES_MAX: usize = 64 << 20;

/// An inference request, described. Borrows the body's text.
#[derive(Debug, Clone, PartialEq)]
pub struct Request<'a> {
    /// To be repeated in the answer.
    pub id: Option<String>,
    /// What goes for all of it.
    pub parameters: Parameters,
    /// The inputs, in the order given, each name once.
    pub inputs: Vec<Input<'a>>,
    /// The outputs wanted, in the order wanted; none for all.
    pub outputs: Option<Vec<Output>>,
}

/// One input. Whether its data fits its type and shape is for whoever makes a tensor of it to check.
#[derive(Debug, Clone, PartialEq)]
pub struct Input<'a> {
    /// Which.
    pub name: String,
    /// The type of its elements.
    pub datatype: ElementType,
    /// Its dimensions.
    pub shape: Shape,
    /// Its elements.
    pub data: Data<'a>,
}

/// Where the elements of an input are.
#[derive(Debug, Clone, PartialEq)]
pub enum Data<'a> {
    /// In this part of the body, as they are in memory.
    Binary(Range<usize>),
    /// In the JSON.
    Json(Elements<'a>),
    /// With the server.
    Region(Region),
}

/// Bytes that the server keeps under a name, in the place of data in a request or an answer: what the protocol's extension calls a region of
/// shared memory. Here it is a named object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Which.
    pub name: String,
    /// Where in it the data begins.
    pub offset: u64,
    /// How long the data is; none for all that is there.
    pub bytes: Option<u64>,
}

/// One output that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Which.
    pub name: String,
    /// Whether it is to come as binary; none for what [`Parameters::binary_data_output`] says.
    pub binary: Option<bool>,
    /// Give so many of its largest elements, with their places, instead of the tensor; 0 for the tensor.
    pub classes: u32,
    /// Keep it there instead of giving it.
    pub region: Option<Region>,
}

impl Output {
    /// Itself, if it makes sense.
    pub fn check(self) -> Result<Self, RequestError> {
        match &self.region {
            Some(region) if region.offset > 0 => Err(RequestError::PartOfRegion(self.name)),
            Some(_) if self.classes > 0 => Err(RequestError::ClassesInRegion(self.name)),
            _ => Ok(self),
        }
    }
}

/// Why a body is no inference request.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The header says that there is more JSON than there are bytes.
    #[error(
        "the body has {body_bytes} bytes, and Inference-Header-Content-Length says that {json_bytes} of them are JSON"
    )]
    HeaderPastEnd {
        /// What the header says.
        json_bytes: usize,
        /// What there is.
        body_bytes: usize,
    },
    /// There is too much JSON.
    #[error("the JSON has {0} bytes; at most {JSON_BYTES_MAX} are read: send large tensors as binary")]
    JsonTooLarge(usize),
    /// The JSON cannot be read.
    #[error("the body is not an inference request: {0}")]
    Json(#[from] serde_json::Error),
    /// An input is wrong in itself.
    #[error("input {name:?}: {why}")]
    Input {
        /// Which.
        name: String,
        /// In which way.
        why: InputError,
    },
    /// An output is to be kept in a part of what is replaced as a whole.
    #[error("output {0:?}: an object is replaced as a whole; leave shared_memory_offset out")]
    PartOfRegion(String),
    /// Nobody would see the classes.
    #[error("output {0:?} has both shared_memory_region and classification; leave one out")]
    ClassesInRegion(String),
    /// An output is wanted twice.
    #[error("output {0:?} is wanted twice")]
    OutputTwice(String),
    /// More binary data than the inputs account for.
    #[error("{0} bytes are left over behind the binary data of the inputs")]
    BytesLeft(usize),
}

/// Why an input is none.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// Its dimensions are too many or too large.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// It was there before.
    #[error("it is given twice")]
    Twice,
    /// It has no elements.
    #[error("it has neither `data` nor the parameters binary_data_size or shared_memory_region")]
    NoData,
    /// It has its elements twice.
    #[error("it has more than one of `data`, binary_data_size and shared_memory_region; leave one")]
    BothForms,
    /// It is binary in a request that says it has none.
    #[error(
        "it is binary, and the header Inference-Header-Content-Length, which says where the JSON ends, is missing"
    )]
    NoHeader,
    /// It is longer than what is left of the body.
    #[error("binary_data_size is {wanted_bytes}, and {left_bytes} bytes of the body are left")]
    PastEnd {
        /// What it says.
        wanted_bytes: u64,
        /// What there is.
        left_bytes: usize,
    },
}

impl<'a> Request<'a> {
    /// Read a body whose first `json_bytes` are JSON and whose rest is the data of binary inputs; none where all of it is JSON.
    pub fn parse(body: &'a [u8], json_bytes: Option<usize>) -> Result<Self, RequestError> {
        let end = json_bytes.unwrap_or(body.len());
        let past_end = || RequestError::HeaderPastEnd { json_bytes: end, body_bytes: body.len() };
        let json = body.get(..end).ok_or_else(past_end)?;
        if end > JSON_BYTES_MAX {
            return Err(RequestError::JsonTooLarge(end));
        }
        let Head { id, parameters, inputs, outputs } = serde_json::from_slice(json)?;
        let mut binary = Binary { next: json_bytes, end: body.len() };
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

/// Deals out what is behind the JSON, in the order of the inputs.
struct Binary {
    /// Where the next input starts; none where there is nothing but JSON.
    next: Option<usize>,
    end: usize,
}

impl Binary {
    fn describe<'a>(&mut self, input: InputHead<'a>) -> Result<Input<'a>, RequestError> {
        let InputHead { name, datatype, shape, parameters, data } = input;
        let region = parameters.shared_memory_region.map(|name| Region {
            name,
            offset: parameters.shared_memory_offset,
            bytes: parameters.shared_memory_byte_size,
        });
        let data = match (data, parameters.binary_data_size, region) {
            (Some(text), None, None) => Ok(Data::Json(Elements::new(datatype, text))),
            (None, Some(bytes), None) => self.take(bytes).map(Data::Binary),
            (None, None, Some(region)) => Ok(Data::Region(region)),
            (None, None, None) => Err(InputError::NoData),
            _ => Err(InputError::BothForms),
        };
        let described = data.and_then(|data| Ok((Shape::new(&shape)?, data)));
        match described {
            Ok((shape, data)) => Ok(Input { name, datatype, shape, data }),
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

fn output(head: OutputHead) -> Result<Output, RequestError> {
    let OutputHead { name, parameters } = head;
    let (offset, bytes) = (parameters.shared_memory_offset, parameters.shared_memory_byte_size);
    let region = parameters.shared_memory_region.map(|name| Region { name, offset, bytes });
    Output { name, binary: parameters.binary_data, classes: parameters.classification, region }.check()
}

#[cfg(test)]
mod tests;
