//! Tests for the GPU kit of `cargo xtask gpu-kit`: each step of its script, on a fake driver and
//! with a PyTorch stub.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod kit;
mod models;
mod pytorch;
mod steps;
