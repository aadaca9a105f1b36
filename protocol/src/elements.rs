//! Streaming decoder of JSON tensor elements: converts elements to bytes one at a time, without a
//! tree of JSON values.

use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;
use weir_types::ElementType;

/// Deepest nesting of lists.
pub const DEPTH_MAX: u8 = 100;

/// Flat or nested JSON list of elements, not yet parsed.
#[derive(Debug, Clone, Copy)]
pub struct Elements<'a> {
    datatype: ElementType,
    text: &'a RawValue,
}

impl<'a> Elements<'a> {
    /// Wraps the JSON list `text` of elements of type `datatype`. Does not parse it.
    #[must_use]
    pub fn new(datatype: ElementType, text: &'a RawValue) -> Self {
        Self { datatype, text }
    }

    /// Upper bound of the decoded size. Bounded by the size of the text, since each element takes
    /// at least two characters of the list. For strings, only an estimate: the decoded form may be
    /// shorter or longer than the JSON.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        let characters = self.text.get().len();
        self.datatype.size_bytes().map_or(characters, |size| characters.div_ceil(2).saturating_mul(size))
    }

    /// Passes each element, as little-endian bytes, to `put`. Fails at the first invalid element,
    /// or with the first error of `put`.
    pub fn decode<E: fmt::Display>(
        &self,
        mut put: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), serde_json::Error> {
        if matches!(self.datatype, ElementType::Fp16 | ElementType::Bf16) {
            return Err(Error::custom(format_args!("{} has no JSON form: send it as binary", self.datatype)));
        }
        let decoder = Decoder { datatype: self.datatype, depth_left: DEPTH_MAX, put: &mut put };
        decoder.deserialize(&mut serde_json::Deserializer::from_str(self.text.get()))
    }
}

impl PartialEq for Elements<'_> {
    fn eq(&self, other: &Self) -> bool {
        (self.datatype, self.text.get()) == (other.datatype, other.text.get())
    }
}

/// Deserialises one element, or a list of elements.
struct Decoder<'p, P> {
    datatype: ElementType,
    depth_left: u8,
    put: &'p mut P,
}

impl<X: fmt::Display, P: FnMut(&[u8]) -> Result<(), X>> Decoder<'_, P> {
    fn put<E: Error>(&mut self, bytes: &[u8]) -> Result<(), E> {
        (self.put)(bytes).map_err(E::custom)
    }

    fn wrong<E: Error>(&self, what: impl fmt::Display) -> E {
        E::custom(format_args!("{what} is not {}", self.datatype))
    }

    fn integer<T, E: Error>(&mut self, number: T) -> Result<(), E>
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
            #[expect(clippy::cast_precision_loss, reason = "JSON integers are valid floats in the protocol")]
            ElementType::Fp32 | ElementType::Fp64 => self.float(wide as f64),
            _ => Err(self.wrong(number)),
        }
    }

    /// Converts a JSON number, which is finite, and rejects values beyond the range of the type.
    fn float<E: Error>(&mut self, number: f64) -> Result<(), E> {
        #[expect(clippy::cast_possible_truncation, reason = "the element type is FP32")]
        let narrow = number as f32;
        match self.datatype {
            ElementType::Fp32 if narrow.is_finite() => self.put(&narrow.to_le_bytes()),
            ElementType::Fp32 => Err(self.wrong(format_args!("{number:?}, which is beyond its largest,"))),
            ElementType::Fp64 => self.put(&number.to_le_bytes()),
            // `{:?}` keeps a zero fraction, so that the message shows `1.0` as written.
            _ => Err(self.wrong(format_args!("{number:?}"))),
        }
    }
}

impl<'de, X: fmt::Display, P: FnMut(&[u8]) -> Result<(), X>> DeserializeSeed<'de> for Decoder<'_, P> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, X: fmt::Display, P: FnMut(&[u8]) -> Result<(), X>> Visitor<'de> for Decoder<'_, P> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} or a list of them", self.datatype)
    }

    fn visit_bool<E: Error>(mut self, truth: bool) -> Result<(), E> {
        match self.datatype {
            ElementType::Bool => self.put(&[u8::from(truth)]),
            _ => Err(self.wrong(truth)),
        }
    }

    fn visit_u64<E: Error>(mut self, number: u64) -> Result<(), E> {
        self.integer(number)
    }

    fn visit_i64<E: Error>(mut self, number: i64) -> Result<(), E> {
        self.integer(number)
    }

    fn visit_f64<E: Error>(mut self, number: f64) -> Result<(), E> {
        self.float(number)
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<(), E> {
        if self.datatype != ElementType::Bytes {
            return Err(self.wrong(format_args!("{text:?}")));
        }
        let length = u32::try_from(text.len()).map_err(E::custom)?;
        self.put(&length.to_le_bytes())?;
        self.put(text.as_bytes())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Decoder { datatype, depth_left, put } = self;
        let Some(depth_left) = depth_left.checked_sub(1) else {
            return Err(A::Error::custom(format_args!("lists are nested more than {DEPTH_MAX} deep")));
        };
        while items.next_element_seed(Decoder { datatype, depth_left, put: &mut *put })?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
impl<'de> Elements<'de> {
    /// Parses `text` as a list of elements, without trailing text.
    fn parse(datatype: ElementType, text: &'de str) -> Result<Self, serde_json::Error> {
        let mut json = serde_json::Deserializer::from_str(text);
        Ok(Self::new(datatype, serde::Deserialize::deserialize(&mut json)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn decode(datatype: ElementType, text: &str) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let elements = Elements::parse(datatype, text).unwrap();
        let put = |more: &[u8]| -> Result<(), Infallible> {
            bytes.extend_from_slice(more);
            Ok(())
        };
        elements.decode(put).map_err(|error| error.to_string())?;
        assert!(datatype == ElementType::Bytes || bytes.len() <= elements.bytes_max());
        Ok(bytes)
    }

    #[test]
    fn elements_decode_flat_or_nested() {
        for (datatype, text, bytes) in [
            (ElementType::Uint8, "[[1,2],[3]]", vec![1, 2, 3]),
            (ElementType::Bool, "[true,false]", vec![1, 0]),
            (ElementType::Int16, "-1", vec![255, 255]),
            (ElementType::Fp32, "[1]", 1.0_f32.to_le_bytes().to_vec()),
            (ElementType::Uint64, "[18446744073709551615]", vec![255; 8]),
            (ElementType::Bytes, "[\"a\\n\",\"\"]", b"\x02\0\0\0a\n\0\0\0\0".to_vec()),
        ] {
            assert_eq!(decode(datatype, text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn out_of_range_elements_are_rejected() {
        for (datatype, text) in [
            (ElementType::Uint8, "[256]"),
            (ElementType::Int8, "[-129]"),
            (ElementType::Int32, "[1.5]"),
            (ElementType::Int32, "[1.0]"),
            (ElementType::Fp32, "[1e39]"),
            (ElementType::Fp32, "[-1e39]"),
            (ElementType::Bool, "[1]"),
            (ElementType::Fp16, "[1]"),
            (ElementType::Bf16, "[1]"),
            (ElementType::Fp32, "[\"1\"]"),
            (ElementType::Bytes, "[1]"),
            (ElementType::Fp32, "[null]"),
            (ElementType::Fp32, "{}"),
        ] {
            assert!(decode(datatype, text).is_err(), "{datatype} took {text}");
        }
    }

    #[test]
    fn element_errors_show_the_value_as_written() {
        let said = |datatype, text| decode(datatype, text).unwrap_err();
        assert!(said(ElementType::Int32, "[1.0]").starts_with("1.0 is not INT32"));
        assert!(
            said(ElementType::Fp32, "[1e39]").starts_with("1e39, which is beyond its largest, is not FP32")
        );
    }

    #[test]
    fn nesting_depth_is_limited() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(decode(ElementType::Uint8, &nested(100)).is_ok());
        assert!(decode(ElementType::Uint8, &nested(101)).unwrap_err().contains("nested"));
        assert!(decode(ElementType::Uint8, &nested(1_000_000)).is_err());
    }
}
