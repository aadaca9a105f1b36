//! The check of fuzz targets for records. Each crate with such targets includes this file.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// A value is the same when it is written and read again.
pub(super) fn round_trip<T: DeserializeOwned + Serialize + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let value = serde_json::from_slice::<T>(bytes).ok()?;
    let text = serde_json::to_vec(&value).expect("it was JSON before");
    assert_eq!(serde_json::from_slice::<T>(&text).expect("it is JSON"), value);
    Some(value)
}
