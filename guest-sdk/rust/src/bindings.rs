//! The WIT of `weir:inference` in Rust. `cargo xtask bindings` makes the files below; not part of the stable interface.
#![allow(
    missing_docs,
    unsafe_code,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "generated"
)]

#[rustfmt::skip]
pub mod imports;
#[rustfmt::skip]
pub mod snapshot;
#[rustfmt::skip]
pub mod tensor_function;
