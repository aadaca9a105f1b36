//! The device layer on the fake driver: the production code without a GPU.

#![cfg(feature = "cuda")]
#![allow(unsafe_code, clippy::unwrap_used, reason = "kernels are launched, and a test fails by panicking")]

#[path = "cuda/support.rs"]
mod support;

#[path = "cuda/comm.rs"]
mod comm;
#[path = "cuda/costs.rs"]
mod costs;
#[path = "cuda/discovery.rs"]
mod discovery;
#[path = "cuda/exported.rs"]
mod exported;
#[path = "cuda/faults.rs"]
mod faults;
#[path = "cuda/loading.rs"]
mod loading;
#[path = "cuda/memory.rs"]
mod memory;
#[path = "cuda/nvrtc.rs"]
mod nvrtc;
#[path = "cuda/order.rs"]
mod order;
#[path = "cuda/pinned.rs"]
mod pinned;
#[path = "cuda/products.rs"]
mod products;
#[path = "cuda/tensors.rs"]
mod tensors;
#[path = "cuda/transfer.rs"]
mod transfer;
