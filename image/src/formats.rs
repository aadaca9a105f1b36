//! The decoders: each reads a header, and writes the pixels of an image to a buffer of the size that
//! its header states.

pub(crate) mod jpeg;
pub(crate) mod png;
pub(crate) mod webp;
