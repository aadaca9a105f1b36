//! Runs a model on the request body several times concurrently. Uses axum over wstd for routing:
//! the SDK's models and tensors work with any HTTP library.

use axum::Router;
use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_lite::future::zip;
use serde::Deserialize;
use std::time::Duration;
use weir::{Error, Model, OrStatus as _, Pending, Result, Tensor};

#[wstd_axum::http_server]
fn main() -> Router {
    Router::new()
        .route("/wait/{model}", post(wait))
        .route("/await/{model}", post(waits))
        .route("/cancel/{model}", post(cancel))
        .route("/deadline/{model}", post(deadline))
}

/// `?shape=1,4&after_ms=50`: the shape of the tensor in the body; an empty shape is a scalar.
#[derive(Deserialize)]
struct Options {
    #[serde(default)]
    shape: String,
    #[serde(default)]
    after_ms: u64,
}

/// Submits two runs and waits for one after the other.
async fn wait(Path(model): Path<String>, Query(options): Query<Options>) -> Result<Response, Refusal> {
    let (one, other) = submit_two(&model, &options.shape)?;
    both(&one.wait()?.only()?, &other.wait()?.only()?)
}

/// Submits two runs and awaits both concurrently.
async fn waits(Path(model): Path<String>, Query(options): Query<Options>) -> Result<Response, Refusal> {
    let (one, other) = submit_two(&model, &options.shape)?;
    let (one, other) = zip(one.into_future(), other.into_future()).await;
    both(&one?.only()?, &other?.only()?)
}

/// Submits two runs; cancels one and drops the other.
async fn cancel(Path(model): Path<String>, Query(options): Query<Options>) -> Result<Response, Refusal> {
    let (one, other) = submit_two(&model, &options.shape)?;
    drop(other);
    one.cancel();
    Ok(one.wait()?.only()?.to_bytes()?.into_response())
}

/// Runs with a deadline.
async fn deadline(Path(model): Path<String>, Query(options): Query<Options>) -> Result<Response, Refusal> {
    let Call { model, input, body } = Call::prepare(&model, &options.shape)?;
    let run = model.run([(input, &body)]).deadline(Duration::from_millis(options.after_ms)).priority(1);
    Ok(run.infer()?.only()?.to_bytes()?.into_response())
}

fn submit_two(model: &str, shape: &str) -> Result<(Pending, Pending)> {
    let Call { model, input, body } = Call::prepare(model, shape)?;
    // The node keeps the tensor and the model for the duration of the runs.
    Ok((model.submit([(input.as_str(), &body)])?, model.submit([(input.as_str(), &body)])?))
}

/// Arguments of a run of a model with one input.
struct Call {
    model: Model,
    input: String,
    body: Tensor,
}

impl Call {
    fn prepare(model: &str, shape: &str) -> Result<Self> {
        let sizes: Result<Vec<usize>, _> = shape.split_terminator(',').map(str::parse).collect();
        let model = Model::open(model)?;
        let input = model.describe().inputs.into_iter().next();
        let input = input.ok_or_else(|| Error::new(422, "the model takes nothing"))?;
        let body = weir::take_body_as(input.element_type, sizes.or_status(400)?)?;
        Ok(Self { model, input: input.name, body })
    }
}

/// The values of both tensors, concatenated.
fn both(one: &Tensor, other: &Tensor) -> Result<Response, Refusal> {
    Ok([one.to_bytes()?, other.to_bytes()?].concat().into_response())
}

/// An error as an axum response.
struct Refusal(Error);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, format!("{:?}\n", self.0)).into_response()
    }
}
