//! Functions in every language: from `weir new` to a call, with equal responses.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod bodies;
mod digits;
mod fetching;
mod images;
mod misbehaving;
mod objects;
mod seeing;
mod streaming;
mod templates;
mod watched;
mod websockets;
