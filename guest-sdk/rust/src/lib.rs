//! SDK for [Weir](https://github.com/weir-platform/weir) functions in Rust: WebAssembly components
//! that answer HTTP requests or map tensors to tensors, and run models on the node.
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
//! A function that runs a model granted by its manifest:
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
//! A function with the signature of a model, which workflows and other functions can call like a
//! model:
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
//! Build the function as a `cdylib` for `wasm32-wasip2`; `weir new` creates such a project and
//! `weir build` builds it. A function that uses no model imports no Weir interface, and runs on
//! every host of `wasi:http` 0.2.
//!
//! # With other HTTP libraries
//!
//! [`Request`] and [`Response`] are thin and synchronous: they fetch a part of the request only
//! when the function asks for it. For streams, outgoing requests, and axum's extractors, use
//! [`wstd`](https://docs.rs/wstd) or [`wstd-axum`](https://docs.rs/wstd-axum) for HTTP, together
//! with [`Model`], [`Tensor`], [`take_body`] and [`reply_with`], which work with every library.
//! With the feature `async`, a [`Pending`] can be awaited on wstd's runtime.
//!
//! # Features
//!
//! - `json` (on by default): [`Request::json`] and [`Response::json`].
//! - `router`: `Router`, which dispatches requests to handlers by method and path.
//! - `half`: [`half::f16`](https://docs.rs/half) and `half::bf16` as tensor elements.
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

pub mod images;
mod model;
pub use model::{Description, Model, Pending, Port, Run};
pub mod objects;
mod snapshot;
mod stage;

mod body;
pub use body::{OPEN, reply_with, take_body, take_body_as};
mod http;
pub use http::{Request, Response};
#[cfg(feature = "router")]
mod router;
pub mod websocket;
#[cfg(feature = "router")]
pub use router::{Params, Router};

/// Implementation of the macros.
#[doc(hidden)]
pub mod __private {
    pub use crate::http::serve;
    pub use crate::snapshot::prepare;
    pub use crate::stage::run;
    pub use wasip2;
}

// The example in the README must compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
