//! Helpers shared by the tests of this crate.

use bytes::Bytes;
use std::path::{Path, PathBuf};
use weir_types::Shape;

/// The file at `path` of this repository.
pub(crate) fn file(path: &str) -> Bytes {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    let read = std::fs::read(&path);
    read.unwrap_or_else(|error| panic!("{}: {error}; make it with `cargo xtask models`", path.display()))
        .into()
}

pub(crate) fn shape(dims: &[u32]) -> Shape {
    Shape::new(dims).unwrap()
}
