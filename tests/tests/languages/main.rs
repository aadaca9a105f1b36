//! Functions in every language: from an empty folder to a call, and the same answers from all of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod bodies;
mod digits;
mod fetching;
mod misbehaving;
mod objects;
mod seeing;
mod templates;
