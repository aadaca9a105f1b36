//! Harness of the end-to-end tests: `weir up` processes on free ports with temporary data folders,
//! and a client with typed results.
//!
//! ```no_run
//! # async fn example() {
//! let node = weir_tests::TestNode::builder().set("sandbox.instances_max", 10).start().await;
//! node.deploy("hello", weir_tests::function("hello")).await;
//! assert_eq!(node.get("/fn/hello").await.text(), "hello\n");
//! # }
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a harness fails the test by panicking"
)]

mod node;
pub use node::{NodeBuilder, TestNode};

mod browser;
pub use browser::Browser;

mod cluster;
mod s3;
pub use {cluster::ClusterBuilder, cluster::TestCluster, s3::S3};

mod etcd;
pub use etcd::Etcd;

mod nats;
pub use nats::NatsServer;

mod authority;
pub use authority::{Authority, Issued};

mod client;
pub use client::TestClient;

mod held_call;
pub use held_call::HeldCall;

mod answer;
pub use answer::{Answer, ErrorResponse};

mod fixtures;
pub use fixtures::{
    component_of_0_1_0, digits, function, has_function, image, large_model, made_up, model, model_path,
    models, nvrtc, onnxruntime, output_in_python, python_client, python_client_tests, schemathesis,
    with_custom_section,
};

mod onnx;
pub use onnx::{model_adding, model_on_integers, model_with_rows};

mod patience;
pub use patience::{eventually, eventually_within};

mod project;
pub use project::{Language, TestProject};

mod receiver;
pub use receiver::{ReceivedRequest, Receiver};

mod collector;
pub use collector::{CollectedSpan, Collector};

mod raw;
pub use raw::{raw, raw_cut_off};

mod web_socket;
pub use tokio_tungstenite::tungstenite;
pub use web_socket::{RefusedHandshake, WebSocket};

mod private;
pub use private::write_private;

mod process;
pub use process::{children, pss_bytes, rss_bytes, signal, threads};

// Compile the example in the repository's README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
