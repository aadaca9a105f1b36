//! ONNX Runtime on the node's processor.

mod library;
pub use library::{LibraryError, find_onnxruntime};
