//! End-to-end tests of one node over HTTP: deployment, calls and operation.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod asynchronous;
mod bad_components;
mod bad_requests;
mod batching;
mod caching;
mod calling;
mod cancelling;
mod churn;
mod concurrency;
mod connections;
mod contract;
mod deploying;
mod devices;
mod durability;
mod gpu;
mod inference;
mod isolation;
mod kernel_graphs;
mod logs;
mod misanswering;
mod misbehaving;
mod models;
mod nn;
mod objectives;
mod objects;
mod openapi;
mod other_sdks;
mod outbound;
mod overlapping;
mod pages;
mod protocol;
mod repairing;
mod reusing;
mod shutdown;
mod sizing;
mod streaming;
mod telemetry;
mod tenants;
mod tensors;
mod uploads;
mod usage;
mod versions;
mod workflows;
