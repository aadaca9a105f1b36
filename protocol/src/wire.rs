//! The request's JSON as it is written, before it is known to make sense.

use crate::request::{INPUTS_MAX, OUTPUTS_MAX};
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::fmt;
use std::marker::PhantomData;
use weir_types::ElementType;

/// What a request says about itself. Parameters that are not here are passed over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parameters {
    /// Whether outputs that do not say come as binary.
    pub binary_data_output: bool,
    /// 1 is the most urgent; 0 is the default.
    pub priority: u32,
    /// How many microseconds the request may take; 0 for as many as the server lets it.
    pub timeout: u64,
}

#[derive(Deserialize)]
pub(crate) struct Head<'a> {
    #[serde(default)]
    pub(crate) id: Option<String>,
    #[serde(default)]
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
    #[serde(default)]
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
    #[serde(default)]
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

/// A list of at most `MAX` items: one more ends the reading, before it takes memory.
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
        while let Some(item) = items.next_element()? {
            if list.len() == MAX {
                return Err(A::Error::custom(format_args!("the list has more than {MAX} items")));
            }
            list.push(item);
        }
        Ok(list)
    }
}
