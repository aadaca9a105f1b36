//! Write functions for [Weir](https://github.com/weir-platform/weir) in Rust: WebAssembly components that answer HTTP requests or map tensors
//! to tensors, and run models that live on the node.
//!
//! A function that answers HTTP requests:
//!
//! ```
//! use weir::{Request, Response};
//!
//! fn greet(request: Request) -> Response {
//!     let name = request.path().trim_matches('/').to_owned();
//!     Response::text(format!("hello, {name}\n"))
//! }
//!
//! weir::http_function!(greet);
//! ```
//!
//! One that runs a model which its manifest grants it:
//!
//! ```
//! use weir::{Model, Request, Response, Result, Tensor};
//!
//! fn classify(request: Request) -> Result<Response> {
//!     let pixels: Vec<f32> = request.body()?.iter().map(|byte| f32::from(*byte) / 255.0).collect();
//!     let image = Tensor::from_slice(&pixels, [1, 1, 8, 8])?;
//!     let scores = Model::open("digits")?.infer([("image", &image)])?.only()?.to_vec::<f32>()?;
//!     let best = (0..scores.len()).max_by(|a, b| scores[*a].total_cmp(&scores[*b]));
//!     Ok(Response::text(format!("{best:?}\n")))
//! }
//!
//! weir::http_function!(classify);
//! ```
//!
//! One with the signature of a model, which workflows and other functions can call like one:
//!
//! ```
//! use weir::{Result, Tensor, Tensors};
//!
//! fn double(mut inputs: Tensors) -> Result<Tensors> {
//!     let x = inputs.take("x")?;
//!     let doubled: Vec<f32> = x.to_vec::<f32>()?.iter().map(|x| x * 2.0).collect();
//!     Ok(Tensors::from([("y", Tensor::from_slice(&doubled, x.shape())?)]))
//! }
//!
//! weir::tensor_function!(double);
//! ```
//!
//! Build it as a `cdylib` for `wasm32-wasip2`; `weir new` sets such a project up and `weir build` builds it. A function that uses no model
//! imports nothing of Weir's, and runs wherever `wasi:http` 0.2 does.
//!
//! # With other HTTP libraries
//!
//! [`Request`] and [`Response`] are thin: they ask the node for what a function asks of them, and nothing is async. For streams, outgoing
//! requests, and axum's extractors, take [`wstd`](https://docs.rs/wstd) or [`wstd-axum`](https://docs.rs/wstd-axum) for the way in and out,
//! and [`Model`], [`Tensor`], [`take_body`] and [`reply_with`] beside it: they work with every library. The feature `async` lets a
//! [`Pending`] be awaited on wstd's runtime.
//!
//! # Features
//!
//! - `json` (on by default): [`Request::json`] and [`Response::json`].
//! - `router`: `Router`, which sends requests to handlers by method and path.
//! - `half`: [`half::f16`](https://docs.rs/half) and `half::bf16` as elements of tensors.
//! - `async`: `pending.await`, on wstd's runtime.

#![warn(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![deny(unsafe_code)]

#[doc(hidden)]
pub mod bindings;

mod error;
pub use error::{Error, OrStatus, Result};

mod element;
pub use element::{Element, ElementType};
mod strings;
mod tensor;
pub use tensor::Tensor;
mod tensors;
pub use tensors::Tensors;

mod model;
pub use model::{Description, Model, Pending, Port, Run};
pub mod objects;
mod stage;

mod body;
pub use body::{OPEN, reply_with, take_body, take_body_as};
mod http;
pub use http::{Request, Response};
#[cfg(feature = "router")]
mod router;
#[cfg(feature = "router")]
pub use router::{Params, Router};

/// What the macros expand to.
#[doc(hidden)]
pub mod __private {
    pub use crate::http::serve;
    pub use crate::stage::run;
    pub use wasip2;
}

// The example in the README must compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
