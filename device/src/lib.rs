//! Devices and their memory. This crate has no notion of models.
//!
//! [`Device`] names a device that models run on. The bytes of a request are in an [`Arena`]: a body
//! or tensor is filled as a [`BufferMut`] and frozen into a [`Buffer`], which all of its users
//! share. With the last user, the memory returns to the arena's pool.
//!
//! The module `cuda` (a cargo feature) covers GPUs: their memory, copies to and from it, and the
//! order of their work.

mod kind;
pub use kind::Device;

mod figures;
pub use figures::{GpuFigures, OperatingPoint};

mod arena;
pub use arena::{Arena, ArenaExhausted, ArenaScope, ShareReservation};

mod share;
pub use share::share_of_free_bytes;

mod buffer;
pub use buffer::{Buffer, BufferMut};

#[cfg(feature = "cuda")]
pub mod cuda;

mod block;
mod class;
mod shared;
