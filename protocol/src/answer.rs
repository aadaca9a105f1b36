//! JSON of an inference response.

use serde::ser::{Error as _, SerializeSeq, SerializeStruct};
use serde::{Serialize, Serializer};
use weir_types::ElementType;

/// Inference response. Binary outputs follow the JSON, in order.
#[derive(Debug, Clone, Serialize)]
pub struct InferenceResponse<'a> {
    /// Name of the model in the request.
    pub model_name: &'a str,
    /// Version of the model that ran.
    pub model_version: &'a str,
    /// ID of the request, if it had one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a str>,
    /// Outputs.
    pub outputs: Vec<ResponseOutput<'a>>,
}

/// One output of a response.
#[derive(Debug, Clone)]
pub struct ResponseOutput<'a> {
    name: &'a str,
    datatype: ElementType,
    shape: &'a [u32],
    data: &'a [u8],
    form: Form<'a>,
}

/// Encoding of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form<'a> {
    /// A list in the JSON.
    Json,
    /// Bytes after the JSON.
    Binary,
    /// Omitted from the response: the server stores the output as the named object.
    Region(&'a str),
}

impl<'a> ResponseOutput<'a> {
    /// Creates an output. `data` must fit the type and shape.
    #[must_use]
    pub fn new(
        name: &'a str,
        datatype: ElementType,
        shape: &'a [u32],
        data: &'a [u8],
        form: Form<'a>,
    ) -> Self {
        Self { name, datatype, shape, data, form }
    }
}

impl Serialize for ResponseOutput<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut output = serializer.serialize_struct("output", 4)?;
        output.serialize_field("name", self.name)?;
        output.serialize_field("datatype", &self.datatype)?;
        output.serialize_field("shape", self.shape)?;
        match self.form {
            Form::Json => output.serialize_field("data", &List(self.datatype, self.data))?,
            Form::Binary => {
                output.serialize_field("parameters", &BinarySize { binary_data_size: self.data.len() })?;
            }
            Form::Region(shared_memory_region) => {
                let shared_memory_byte_size = self.data.len();
                let kept = OutputLayout { shared_memory_region, shared_memory_byte_size };
                output.serialize_field("parameters", &kept)?;
            }
        }
        output.end()
    }
}

#[derive(Serialize)]
struct BinarySize {
    binary_data_size: usize,
}

#[derive(Serialize)]
struct OutputLayout<'a> {
    shared_memory_region: &'a str,
    shared_memory_byte_size: usize,
}

/// Elements of a tensor, serialised as a flat list.
struct List<'a>(ElementType, &'a [u8]);

impl Serialize for List<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(datatype, data) = *self;
        macro_rules! numbers {
            // JSON has neither infinities nor NaN: serde_json writes null for them.
            ($type:ty) => {
                serializer.collect_seq(data.as_chunks().0.iter().map(|bytes| <$type>::from_le_bytes(*bytes)))
            };
        }
        match datatype {
            ElementType::Bool => serializer.collect_seq(data.iter().map(|&byte| byte != 0)),
            ElementType::Uint8 => serializer.collect_seq(data),
            ElementType::Uint16 => numbers!(u16),
            ElementType::Uint32 => numbers!(u32),
            ElementType::Uint64 => numbers!(u64),
            ElementType::Int8 => numbers!(i8),
            ElementType::Int16 => numbers!(i16),
            ElementType::Int32 => numbers!(i32),
            ElementType::Int64 => numbers!(i64),
            ElementType::Fp32 => numbers!(f32),
            ElementType::Fp64 => numbers!(f64),
            ElementType::Bytes => strings(data, serializer),
            halves @ (ElementType::Fp16 | ElementType::Bf16) => {
                Err(S::Error::custom(format_args!("{halves} has no JSON form: ask for it as binary")))
            }
        }
    }
}

/// Serialises the elements of a validated `BYTES` tensor.
fn strings<S: Serializer>(mut data: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    let mut strings = serializer.serialize_seq(None)?;
    while let Some((length, rest)) = data.split_first_chunk::<4>() {
        let (text, rest) = rest.split_at(rest.len().min(u32::from_le_bytes(*length) as usize));
        strings.serialize_element(&String::from_utf8_lossy(text))?;
        data = rest;
    }
    strings.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn given(datatype: ElementType, shape: &[u32], data: &[u8], form: Form<'_>) -> Value {
        serde_json::to_value(ResponseOutput::new("x", datatype, shape, data, form)).unwrap()
    }

    #[test]
    fn output_is_inline_binary_or_a_region() {
        assert_eq!(
            given(ElementType::Bool, &[2], &[1, 0], Form::Json),
            json!({"name": "x", "datatype": "BOOL", "shape": [2], "data": [true, false]})
        );
        assert_eq!(
            given(ElementType::Fp16, &[0], &[], Form::Binary),
            json!({"name": "x", "datatype": "FP16", "shape": [0], "parameters": {"binary_data_size": 0}})
        );
        assert_eq!(
            given(ElementType::Int8, &[2], &[1, 2], Form::Region("kept"))["parameters"],
            json!({"shared_memory_region": "kept", "shared_memory_byte_size": 2})
        );
        let strings = given(ElementType::Bytes, &[2], "\0\0\0\0\u{2}\0\0\0ä".as_bytes(), Form::Json);
        assert_eq!(strings["data"], json!(["", "ä"]));
    }

    #[test]
    fn infinities_serialise_as_null() {
        let output = given(ElementType::Fp32, &[1], &f32::INFINITY.to_le_bytes(), Form::Json);
        assert_eq!(output["data"], json!([null]));
    }

    #[test]
    fn half_precision_requires_binary_form() {
        for datatype in [ElementType::Fp16, ElementType::Bf16] {
            let error = serde_json::to_string(&ResponseOutput::new("x", datatype, &[1], &[0, 0], Form::Json))
                .unwrap_err();
            assert!(error.to_string().contains("as binary"), "{error}");
        }
    }
}
