//! Wire format of the request's JSON, before validation.

use crate::request::{INPUTS_MAX, OUTPUTS_MAX};
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::fmt;
use std::marker::PhantomData;
use weir_types::{ElementType, JsonObject, json_object};

/// Request parameters. Unknown parameters are ignored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parameters {
    /// Whether outputs without a `binary_data` parameter are sent as binary.
    pub binary_data_output: bool,
    /// Priority: 1 is the most urgent, 0 is the default.
    pub priority: u32,
    /// Time limit of the request in microseconds; 0: the server's limit.
    pub timeout: u64,
}

#[derive(Deserialize)]
pub(crate) struct JsonHead<'a> {
    #[serde(default)]
    pub(crate) id: Option<String>,
    #[serde(default, deserialize_with = "json_object")]
    pub(crate) parameters: Parameters,
    #[serde(borrow, deserialize_with = "at_most::<INPUTS_MAX, _, _>")]
    pub(crate) inputs: Vec<InputHead<'a>>,
    #[serde(default, deserialize_with = "some_at_most::<OUTPUTS_MAX, _, _>")]
    pub(crate) outputs: Option<Vec<OutputHead>>,
}

#[derive(Deserialize)]
pub(crate) struct InputHead<'a> {
    pub(crate) name: String,
    pub(crate) datatype: ElementType,
    pub(crate) shape: Vec<u32>,
    #[serde(default, deserialize_with = "json_object")]
    pub(crate) parameters: InputParameters,
    #[serde(default, borrow)]
    pub(crate) data: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct InputParameters {
    pub(crate) binary_data_size: Option<u64>,
    pub(crate) shared_memory_region: Option<String>,
    pub(crate) shared_memory_offset: u64,
    pub(crate) shared_memory_byte_size: Option<u64>,
}

#[derive(Deserialize)]
pub(crate) struct OutputHead {
    pub(crate) name: String,
    #[serde(default, deserialize_with = "json_object")]
    pub(crate) parameters: OutputParameters,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct OutputParameters {
    pub(crate) binary_data: Option<bool>,
    pub(crate) classification: u32,
    pub(crate) shared_memory_region: Option<String>,
    pub(crate) shared_memory_offset: u64,
    pub(crate) shared_memory_byte_size: Option<u64>,
}

/// Deserialises a list of at most `MAX` objects. Stops at the first excess item, before it takes
/// memory.
fn at_most<'de, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(Bounded::<MAX, T>(PhantomData))
}

fn some_at_most<'de, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    at_most::<MAX, T, D>(deserializer).map(Some)
}

struct Bounded<const MAX: usize, T>(PhantomData<T>);

impl<'de, const MAX: usize, T: Deserialize<'de>> Visitor<'de> for Bounded<MAX, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(JsonObject(item)) = items.next_element()? {
            if list.len() == MAX {
                return Err(A::Error::custom(format_args!("the list has more than {MAX} items")));
            }
            list.push(item);
        }
        Ok(list)
    }
}
