//! Inferences between nodes: how a node encodes an inference for another node, and decodes the
//! response.

mod device;
mod inference;

pub use device::write_device;
pub use inference::{EncodedInference, Read, refusal};
