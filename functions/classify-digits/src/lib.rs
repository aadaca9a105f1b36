//! Recognises one handwritten digit: takes a PNG or rows of grey, returns JSON. Runs the model
//! `digits` on the node.

mod api;
mod picture;
mod prepare;

use api::{ApiError, Reply};
use prepare::{Input, SIDE};
use weir::{Error, Model, Request, Response, Result, Tensor};

fn handle(request: Request) -> Result<Response> {
    let answer = request
        .body()
        .map_err(ApiError::from)
        .and_then(|body| api::answer(request.method(), request.path(), &body, probabilities));
    match answer {
        Ok(Reply::Usage(text)) => Ok(Response::text(text)),
        Ok(Reply::Classification(found)) => Response::json(&found),
        Err(error) => {
            let body = serde_json::json!({"error": error.to_string()});
            Ok(Response::json(&body)?.with_status(error.status()))
        }
    }
}

/// Probability of each digit from 0 to 9.
fn probabilities(input: &Input) -> Result<[f32; 10]> {
    let image = Tensor::from_slice(input, [1, 1, SIDE, SIDE])?;
    let found = Model::open("digits")?.infer([("image", &image)])?.take("probabilities")?.to_vec::<f32>()?;
    let count = found.len();
    found.try_into().map_err(|_| Error::Internal(format!("the model gave {count} numbers, not ten")))
}

weir::http_function!(handle);
