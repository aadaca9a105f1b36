//! JSON objects that are structs. Without it, serde also reads a struct from an array of its fields.

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// A `T` that is written as an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonObject<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        json_object(deserializer).map(Self)
    }
}

/// Reads an object into a `T`. For serde's `deserialize_with`.
pub fn json_object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_map(ObjectVisitor(PhantomData))
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(object))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Pair {
        first: u8,
        #[serde(default)]
        second: u8,
    }

    #[test]
    fn struct_is_read_from_an_object_only() {
        let read = |text: &str| serde_json::from_str::<JsonObject<Pair>>(text);
        assert_eq!(read(r#"{"first": 1}"#).unwrap().0, Pair { first: 1, second: 0 });
        assert_eq!(serde_json::from_str::<Pair>("[1, 2]").unwrap(), Pair { first: 1, second: 2 });
        for (text, kind) in [("[1, 2]", "sequence"), ("1", "integer"), ("null", "null"), ("[]", "sequence")] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(kind) && error.contains("expected an object"), "{text}: {error}");
        }
    }
}
