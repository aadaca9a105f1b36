//! The folder that `cargo xtask gpu-kit` makes to carry to a machine with a GPU: each step of its
//! script, on a fake driver and with a stub of PyTorch.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod kit;
mod models;
mod pytorch;
mod steps;
