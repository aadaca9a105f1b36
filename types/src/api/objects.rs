//! Named objects: tensors stored under a name.

use crate::{ContentHash, ElementType, Name, Shape};
use serde::{Deserialize, Serialize};

/// Header with the element type of an object's data.
pub const DATATYPE_HEADER: &str = "weir-datatype";
/// Header with the dimensions of an object's data, separated by commas; empty for a scalar.
pub const SHAPE_HEADER: &str = "weir-shape";

/// A named tensor with an expiry time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Name of the object.
    pub name: Name,
    /// Type of the elements.
    pub datatype: ElementType,
    /// Dimensions.
    pub shape: Shape,
    /// Size of the data.
    pub bytes: u64,
    /// Hash of the data.
    pub digest: ContentHash,
    /// Time of the put, in Unix milliseconds.
    pub put_at_ms: u64,
    /// Expiry time, in Unix milliseconds.
    pub expires_at_ms: u64,
}
