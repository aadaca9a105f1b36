//! Repeated `content-length` headers of guests.
//!
//! wasmtime's `wasi:http` rejects every second value, with which HTTP libraries of guests often end
//! in a panic. RFC 9110 (8.6) permits equal values. The functions of `fields` that add values are
//! therefore shadowed here: equal values become one. Different values stay an error, with a line in
//! the function's log.

use super::{CurrentSink, InstanceState};
use crate::engine::Generation;
use http::header::CONTENT_LENGTH;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource};
use wasmtime_wasi_http::{FieldMap, WasiHttpView, p2, p3};

/// The name of the shadowed interface in each generation.
const TYPES_02: &str = "wasi:http/types@0.2.12";
const TYPES_03: &str = "wasi:http/types@0.3.0";

/// The number of bytes of a value that the log shows.
const SHOWN_BYTES_MAX: usize = 32;

type Value = Vec<u8>;

/// Defines a shadow of each function of one generation's `fields` that adds values.
macro_rules! shadow {
    ($linker:expr, $interface:expr, $types:path) => {{
        use $types::{HeaderError, Host, HostFields};
        let mut types = $linker.instance($interface)?;
        types.func_wrap(
            "[static]fields.from-list",
            |mut store: StoreContextMut<'_, InstanceState>, (mut entries,): (Vec<(String, Value)>,)| {
                let state = store.data_mut();
                let mut lengths = Lengths { sink: state.sink(), first: None };
                entries.retain(|(name, value)| !is_length(name) || !lengths.is_repetition(value));
                let made = state.http().from_list(entries);
                let made: Result<Resource<FieldMap>, HeaderError> = match made {
                    Ok(made) => Ok(made),
                    Err(error) => Err(state.http().convert_header_error(error)?),
                };
                Ok((made,))
            },
        )?;
        types.func_wrap(
            "[method]fields.set",
            |mut store: StoreContextMut<'_, InstanceState>,
             (fields, name, mut values): (Resource<FieldMap>, String, Vec<Value>)| {
                let state = store.data_mut();
                if is_length(&name) {
                    let mut lengths = Lengths { sink: state.sink(), first: None };
                    values.retain(|value| !lengths.is_repetition(value));
                }
                let set = state.http().set(fields, name, values);
                let set: Result<(), HeaderError> = match set {
                    Ok(()) => Ok(()),
                    Err(error) => Err(state.http().convert_header_error(error)?),
                };
                Ok((set,))
            },
        )?;
        types.func_wrap(
            "[method]fields.append",
            |mut store: StoreContextMut<'_, InstanceState>,
             (fields, name, value): (Resource<FieldMap>, String, Value)| {
                let state = store.data_mut();
                if is_length(&name) && is_present(state, &fields, &value)? {
                    return Ok((Ok(()),));
                }
                let appended = state.http().append(fields, name, value);
                let appended: Result<(), HeaderError> = match appended {
                    Ok(()) => Ok(()),
                    Err(error) => Err(state.http().convert_header_error(error)?),
                };
                Ok((appended,))
            },
        )?;
    }};
}

/// Accepts equal values of repeated `content-length` headers.
pub(super) fn accept_equal(
    linker: &mut Linker<InstanceState>,
    generation: Generation,
) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    shadow!(linker, TYPES_02, p2::bindings::http::types);
    if generation == Generation::P3 {
        shadow!(linker, TYPES_03, p3::bindings::http::types);
    }
    linker.allow_shadowing(false);
    Ok(())
}

fn is_length(name: &str) -> bool {
    name.eq_ignore_ascii_case(CONTENT_LENGTH.as_str())
}

/// Whether the headers have this length already.
fn is_present(
    state: &mut InstanceState,
    fields: &Resource<FieldMap>,
    value: &[u8],
) -> wasmtime::Result<bool> {
    let present = state.http().table.get(fields)?.get(CONTENT_LENGTH).map(|first| first.as_bytes().to_vec());
    Ok(Lengths { sink: state.sink(), first: present }.is_repetition(value))
}

/// The lengths in a list of headers, in order.
struct Lengths<'a> {
    sink: &'a CurrentSink,
    first: Option<Value>,
}

impl Lengths<'_> {
    /// Whether an earlier length is equal to `value`. A different length is logged, and is no
    /// repetition: `wasi:http` rejects it.
    fn is_repetition(&mut self, value: &[u8]) -> bool {
        match &self.first {
            None => self.first = Some(value.to_vec()),
            Some(first) if first == value => return true,
            Some(first) => {
                let [first, second] = [first, value].map(shown);
                self.sink.rejected(&format!("two content-length values are different: {first} and {second}"));
            }
        }
        false
    }
}

fn shown(value: &[u8]) -> String {
    String::from_utf8_lossy(value.get(..SHOWN_BYTES_MAX).unwrap_or(value)).into_owned()
}
