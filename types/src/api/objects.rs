//! Named objects: tensors that are kept under a name.

use crate::{ContentHash, ElementType, Name, Shape};
use serde::{Deserialize, Serialize};

/// The header that says the type of the elements of an object's data.
pub const DATATYPE_HEADER: &str = "weir-datatype";
/// The header that says the dimensions of an object's data, with commas between them; empty for a scalar.
pub const SHAPE_HEADER: &str = "weir-shape";

/// A tensor that is kept under a name until it expires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// What it is called.
    pub name: Name,
    /// The type of its elements.
    pub datatype: ElementType,
    /// Its dimensions.
    pub shape: Shape,
    /// How long its data is.
    pub bytes: u64,
    /// The hash of its data.
    pub digest: ContentHash,
    /// When it was put, in Unix milliseconds.
    pub put_at_ms: u64,
    /// When it goes, in Unix milliseconds.
    pub expires_at_ms: u64,
}
