//! Bytes on an accelerator. Knows no models.
//!
//! [`Device`] says where a model runs. The bytes of a request live in an [`Arena`]: a body or tensor is filled as a [`BufferMut`], frozen
//! into a [`Buffer`], shared by everyone who needs it, and its memory goes back to the arena's pool when the last of them lets go.
//!
//! `cuda` (a cargo feature) has what is on a GPU: its memory, the copies to and from it, and the order of its work.

mod kind;
pub use kind::Device;

mod figures;
pub use figures::{GpuFigures, OperatingPoint};

mod arena;
pub use arena::{Arena, OutOfMemory};

mod share;
pub use share::share_of_free_bytes;

mod buffer;
pub use buffer::{Buffer, BufferMut};

#[cfg(feature = "cuda")]
pub mod cuda;

mod block;
mod class;
mod shared;
