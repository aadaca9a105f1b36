//! Tensors as the JSON of the Open Inference Protocol, straight between text and the arena: no tree of values in between.

use serde::de::{DeserializeSeed, Error as _, SeqAccess, Visitor};
use serde::ser::{Error as _, SerializeSeq};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::fmt;
use weir_device::{Arena, BufferMut};
use weir_inference::Tensor;
use weir_types::{ElementType, Shape};

/// A tensor as it arrives. Its data is read once its type is known.
#[derive(Debug, Deserialize)]
pub(super) struct Incoming<'a> {
    pub(super) name: String,
    datatype: ElementType,
    shape: Vec<u32>,
    #[serde(borrow)]
    data: &'a RawValue,
}

impl Incoming<'_> {
    /// The tensor. Data is a flat or nested list; serde_json bounds the nesting.
    pub(super) fn read(&self, arena: &Arena) -> Result<Tensor, String> {
        let shape = Shape::new(&self.shape).map_err(|error| error.to_string())?;
        // An element takes two characters at least, so that this is never far more than what was sent.
        let bytes = self.datatype.size_bytes().map_or(0, |size| self.data.get().len().div_ceil(2) * size);
        let bytes = usize::try_from(shape.element_count()).map_or(bytes, |elements| {
            bytes.min(elements.saturating_mul(self.datatype.size_bytes().unwrap_or(0)))
        });
        let mut data = arena.with_capacity(bytes).map_err(|error| error.to_string())?;
        let elements = Elements { datatype: self.datatype, data: &mut data };
        elements
            .deserialize(&mut serde_json::Deserializer::from_str(self.data.get()))
            .map_err(|error| error.to_string())?;
        Tensor::new(self.datatype, shape, data.freeze()).map_err(|error| error.to_string())
    }
}

/// Appends one element, or a list of them, to `data`.
struct Elements<'a> {
    datatype: ElementType,
    data: &'a mut BufferMut,
}

impl Elements<'_> {
    fn put<E: serde::de::Error>(&mut self, bytes: &[u8]) -> Result<(), E> {
        self.data.extend_from_slice(bytes).map_err(E::custom)
    }

    fn wrong<E: serde::de::Error>(&self, what: impl fmt::Display) -> E {
        E::custom(format_args!("{what} is not {}", self.datatype))
    }

    fn integer<T, E: serde::de::Error>(&mut self, number: T) -> Result<(), E>
    where
        T: Copy + fmt::Display + TryInto<i128>,
    {
        let Ok(wide) = number.try_into() else { return Err(self.wrong(number)) };
        macro_rules! put {
            ($type:ty) => {
                match <$type>::try_from(wide) {
                    Ok(number) => self.put(&number.to_le_bytes()),
                    Err(_) => Err(self.wrong(number)),
                }
            };
        }
        match self.datatype {
            ElementType::Uint8 => put!(u8),
            ElementType::Uint16 => put!(u16),
            ElementType::Uint32 => put!(u32),
            ElementType::Uint64 => put!(u64),
            ElementType::Int8 => put!(i8),
            ElementType::Int16 => put!(i16),
            ElementType::Int32 => put!(i32),
            ElementType::Int64 => put!(i64),
            #[expect(clippy::cast_precision_loss, reason = "what JSON calls a number is a float here")]
            ElementType::Fp32 | ElementType::Fp64 => self.float(wide as f64),
            _ => Err(self.wrong(number)),
        }
    }

    fn float<E: serde::de::Error>(&mut self, number: f64) -> Result<(), E> {
        match self.datatype {
            #[expect(clippy::cast_possible_truncation, reason = "FP32 is what was asked for")]
            ElementType::Fp32 => self.put(&(number as f32).to_le_bytes()),
            ElementType::Fp64 => self.put(&number.to_le_bytes()),
            _ => Err(self.wrong(number)),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Elements<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if matches!(self.datatype, ElementType::Fp16 | ElementType::Bf16) {
            return Err(D::Error::custom(format_args!("{} has no JSON form", self.datatype)));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Elements<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} or a list of them", self.datatype)
    }

    fn visit_bool<E: serde::de::Error>(mut self, truth: bool) -> Result<(), E> {
        match self.datatype {
            ElementType::Bool => self.put(&[u8::from(truth)]),
            _ => Err(self.wrong(truth)),
        }
    }

    fn visit_u64<E: serde::de::Error>(mut self, number: u64) -> Result<(), E> {
        self.integer(number)
    }

    fn visit_i64<E: serde::de::Error>(mut self, number: i64) -> Result<(), E> {
        self.integer(number)
    }

    fn visit_f64<E: serde::de::Error>(mut self, number: f64) -> Result<(), E> {
        self.float(number)
    }

    fn visit_str<E: serde::de::Error>(mut self, text: &str) -> Result<(), E> {
        if self.datatype != ElementType::Bytes {
            return Err(self.wrong(format_args!("{text:?}")));
        }
        let length = u32::try_from(text.len()).map_err(E::custom)?;
        self.put(&length.to_le_bytes())?;
        self.put(text.as_bytes())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Elements { datatype, data } = self;
        while items.next_element_seed(Elements { datatype, data: &mut *data })?.is_some() {}
        Ok(())
    }
}

/// A tensor as it goes out, with its data in one flat list.
#[derive(Serialize)]
pub(super) struct Outgoing<'a> {
    name: &'a str,
    datatype: ElementType,
    shape: &'a [u32],
    data: Data<'a>,
}

impl<'a> Outgoing<'a> {
    pub(super) fn of(name: &'a str, tensor: &'a Tensor) -> Self {
        let shape = tensor.shape().dimensions();
        Self { name, datatype: tensor.element_type(), shape, data: Data(tensor) }
    }
}

struct Data<'a>(&'a Tensor);

impl Serialize for Data<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let data: &[u8] = self.0.data();
        macro_rules! numbers {
            // JSON has no infinities and no NaN: serde_json writes null for them.
            ($type:ty) => {
                serializer.collect_seq(data.as_chunks().0.iter().map(|bytes| <$type>::from_le_bytes(*bytes)))
            };
        }
        match self.0.element_type() {
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
            other @ (ElementType::Fp16 | ElementType::Bf16) => Err(S::Error::custom(format_args!(
                "the function's output is {other}, which has no JSON form"
            ))),
        }
    }
}

/// The elements of a checked `BYTES` tensor.
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

    fn read(input: &Value) -> Result<Tensor, String> {
        let text = input.to_string();
        serde_json::from_str::<Incoming<'_>>(&text).unwrap().read(&Arena::new(1 << 20))
    }

    #[test]
    fn tensors_survive_the_way_through_json() {
        for (datatype, shape, data) in [
            ("FP32", json!([2, 2]), json!([[1.5, -2.0], [0.0, 3.0]])),
            ("FP64", json!([1]), json!([0.1])),
            ("INT64", json!([2]), json!([i64::MIN, i64::MAX])),
            ("UINT64", json!([1]), json!([u64::MAX])),
            ("UINT8", json!([3]), json!([0, 1, 255])),
            ("BOOL", json!([2]), json!([true, false])),
            ("BYTES", json!([2]), json!(["", "ä"])),
        ] {
            let tensor =
                read(&json!({"data": data, "name": "x", "datatype": datatype, "shape": shape})).unwrap();
            let output = serde_json::to_value(Outgoing::of("x", &tensor)).unwrap();
            let flat = if datatype == "FP32" { json!([1.5, -2.0, 0.0, 3.0]) } else { data };
            assert_eq!(output, json!({"name": "x", "datatype": datatype, "shape": shape, "data": flat}));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (datatype, shape, data) in [
            ("UINT8", json!([1]), json!([256])),
            ("INT8", json!([1]), json!([-129])),
            ("INT32", json!([1]), json!([1.5])),
            ("BOOL", json!([1]), json!([1])),
            ("FP16", json!([1]), json!([1])),
            ("FP32", json!([1]), json!(["1"])),
            ("BYTES", json!([1]), json!([1])),
            ("FP32", json!([2]), json!([1])),
            ("FP32", json!([1]), json!([1, 2])),
            ("FP32", json!([1]), json!([null])),
            ("FP32", json!([1]), json!({})),
            ("FP32", json!([u32::MAX, u32::MAX]), json!([1])),
        ] {
            let input = json!({"name": "x", "datatype": datatype, "shape": shape, "data": data});
            assert!(read(&input).is_err(), "{datatype} {shape} took {data}");
        }
    }

    #[test]
    fn infinities_are_null() {
        let arena = Arena::new(1 << 20);
        let data = arena.copy_of(&f32::INFINITY.to_le_bytes()).unwrap();
        let tensor = Tensor::new(ElementType::Fp32, Shape::new(&[1]).unwrap(), data).unwrap();
        let output = serde_json::to_value(Outgoing::of("x", &tensor)).unwrap();
        assert_eq!(output["data"], json!([null]));
    }
}
