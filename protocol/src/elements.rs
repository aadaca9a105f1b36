//! Streaming decoder of JSON tensor elements: converts elements to bytes one at a time, without a
//! tree of JSON values.

use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;
use weir_types::ElementType;

/// Largest whole number up to which every whole number has its own float: larger floats with a zero
/// fraction may not be the numbers that the client wrote.
const WHOLE_FLOAT_MAX: f64 = 9_007_199_254_740_992.0;
/// Deepest nesting of lists.
pub const DEPTH_MAX: u8 = 100;

/// Flat or nested JSON list of elements, not yet parsed.
#[derive(Debug, Clone, Copy)]
pub struct Elements<'a> {
    datatype: ElementType,
    text: &'a RawValue,
    /// The JSON that contains the list.
    document: &'a [u8],
}

/// Reason why a list cannot be decoded, and its position in the document.
#[derive(Debug, thiserror::Error)]
#[error("{why} at line {line} column {column}")]
pub struct ElementsError {
    why: String,
    line: usize,
    column: usize,
}

impl<'a> Elements<'a> {
    /// Wraps the JSON list `text`, a part of `document`, of elements of type `datatype`. Does not
    /// parse it.
    #[must_use]
    pub fn new(datatype: ElementType, text: &'a RawValue, document: &'a [u8]) -> Self {
        Self { datatype, text, document }
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
    ) -> Result<(), ElementsError> {
        if matches!(self.datatype, ElementType::Fp16 | ElementType::Bf16) {
            let text = format_args!("{} has no JSON form: send it as binary", self.datatype);
            return Err(self.locate(&Error::custom(text)));
        }
        let decoder = Decoder { datatype: self.datatype, depth_left: DEPTH_MAX, put: &mut put };
        let decoded = decoder.deserialize(&mut serde_json::Deserializer::from_str(self.text.get()));
        decoded.map_err(|error| self.locate(&error))
    }

    /// Adds the start of the list to the position of an error, which counts from there.
    fn locate(&self, error: &serde_json::Error) -> ElementsError {
        let text = error.to_string();
        let position = format!(" at line {} column {}", error.line(), error.column());
        let start = self.text.get().as_ptr().addr().saturating_sub(self.document.as_ptr().addr());
        let before = self.document.get(..start).unwrap_or_default();
        let lines = before.split(|byte| *byte == b'\n').count();
        let last_line = before.rsplit(|byte| *byte == b'\n').next().map_or(0, <[u8]>::len);
        ElementsError {
            why: text.strip_suffix(&position).unwrap_or(&text).to_owned(),
            line: lines + error.line().saturating_sub(1),
            column: if error.line() <= 1 { last_line + error.column() } else { error.column() },
        }
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
            // Clients that have only floats write integers like this.
            #[expect(clippy::cast_possible_truncation, reason = "it is whole, and small enough")]
            datatype if is_integer(datatype) && number.fract() == 0.0 && number.abs() <= WHOLE_FLOAT_MAX => {
                self.integer(number as i64)
            }
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

    /// `null` stands for NaN, which has no other form in JSON.
    fn visit_unit<E: Error>(mut self) -> Result<(), E> {
        match self.datatype {
            ElementType::Fp32 => self.put(&f32::NAN.to_le_bytes()),
            ElementType::Fp64 => self.put(&f64::NAN.to_le_bytes()),
            _ => Err(self.wrong("null")),
        }
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

fn is_integer(datatype: ElementType) -> bool {
    match datatype {
        ElementType::Uint8
        | ElementType::Uint16
        | ElementType::Uint32
        | ElementType::Uint64
        | ElementType::Int8
        | ElementType::Int16
        | ElementType::Int32
        | ElementType::Int64 => true,
        ElementType::Bool
        | ElementType::Fp16
        | ElementType::Bf16
        | ElementType::Fp32
        | ElementType::Fp64
        | ElementType::Bytes => false,
    }
}

#[cfg(test)]
impl<'de> Elements<'de> {
    /// Parses `text` as a list of elements, without trailing text.
    fn parse(datatype: ElementType, text: &'de str) -> Result<Self, serde_json::Error> {
        let mut json = serde_json::Deserializer::from_str(text);
        Ok(Self::new(datatype, serde::Deserialize::deserialize(&mut json)?, text.as_bytes()))
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
    fn integers_may_be_written_with_a_zero_fraction() {
        for (datatype, text, bytes) in [
            (ElementType::Int32, "[0.0]", vec![0; 4]),
            (ElementType::Uint8, "[2.550e2]", vec![255]),
            (ElementType::Int8, "[-128.0]", vec![128]),
            (ElementType::Int64, "[-0.0]", vec![0; 8]),
            (ElementType::Uint64, "[9007199254740992.0]", (1_u64 << 53).to_le_bytes().to_vec()),
        ] {
            assert_eq!(decode(datatype, text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn null_is_nan_for_floats() {
        let float = decode(ElementType::Fp32, "[null]").unwrap();
        assert!(f32::from_le_bytes(float.try_into().unwrap()).is_nan());
        let double = decode(ElementType::Fp64, "[null]").unwrap();
        assert!(f64::from_le_bytes(double.try_into().unwrap()).is_nan());
    }

    #[test]
    fn doubles_round_trip_exactly() {
        // A linear congruential generator covers mantissas and moderate exponents.
        let mut state = 1_u64;
        for _ in 0..10_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = f64::from_bits((state >> 12) | (1_000 + (state >> 58)) << 52);
            let text = format!("[{number:?}]");
            assert_eq!(decode(ElementType::Fp64, &text), Ok(number.to_le_bytes().to_vec()), "{text}");
        }
    }

    #[test]
    fn out_of_range_elements_are_rejected() {
        for (datatype, text) in [
            (ElementType::Uint8, "[256]"),
            (ElementType::Int8, "[-129]"),
            (ElementType::Int32, "[1.5]"),
            (ElementType::Uint8, "[256.0]"),
            (ElementType::Uint8, "[-1.0]"),
            (ElementType::Int64, "[9007199254740994.0]"),
            (ElementType::Int64, "[1e300]"),
            (ElementType::Bool, "[1.0]"),
            (ElementType::Int32, "[null]"),
            (ElementType::Bool, "[null]"),
            (ElementType::Bytes, "[null]"),
            (ElementType::Fp32, "[1e39]"),
            (ElementType::Fp32, "[-1e39]"),
            (ElementType::Bool, "[1]"),
            (ElementType::Fp16, "[1]"),
            (ElementType::Bf16, "[1]"),
            (ElementType::Fp32, "[\"1\"]"),
            (ElementType::Bytes, "[1]"),
            (ElementType::Fp32, "{}"),
        ] {
            assert!(decode(datatype, text).is_err(), "{datatype} took {text}");
        }
    }

    #[test]
    fn element_errors_show_the_value_as_written() {
        let said = |datatype, text| decode(datatype, text).unwrap_err();
        assert!(said(ElementType::Bool, "[1.0]").starts_with("1.0 is not BOOL"));
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
