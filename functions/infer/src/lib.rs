//! Runs the model named in the path on the request's body, and answers with the model's first output as bytes.
//!
//! `POST /squeezenet?shape=1,3,224,224` with little-endian `fp32` values. Neither body nor answer enters the guest's memory: this is as little as
//! a function around a model can do, and what the benchmarks measure.

use weir::inference::models::Model;
use weir::inference::request::{reply_with_tensor, take_body_as_tensor};
use weir::inference::tensors::{ElementType, Error as CallError};
use wstd::http::{Body, Error, Request, Response, StatusCode};

wit_bindgen::generate!({ path: "../../wit", world: "weir:inference/imports", generate_all });

#[wstd::http_server]
async fn main(request: Request<Body>) -> Result<Response<Body>, Error> {
    let name = request.uri().path().trim_matches('/').to_owned();
    let shape =
        request.uri().query().and_then(|query| query.strip_prefix("shape=")).unwrap_or_default().to_owned();
    match infer(&name, &shape) {
        Ok(()) => Ok(Response::new(().into())),
        Err(error) => {
            let status = match error {
                CallError::InvalidArgument(_) => StatusCode::BAD_REQUEST,
                CallError::NotFound(_) => StatusCode::NOT_FOUND,
                CallError::NotGranted(_) => StatusCode::FORBIDDEN,
                CallError::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
                CallError::ResourceExhausted(_) | CallError::Unavailable(_) => {
                    StatusCode::SERVICE_UNAVAILABLE
                }
                CallError::Cancelled | CallError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
            };
            Ok(Response::builder().status(status).body(format!("{error:?}\n").into())?)
        }
    }
}

fn infer(name: &str, shape: &str) -> Result<(), CallError> {
    let model = Model::open(name)?;
    let dimensions: Result<Vec<u32>, _> = shape.split(',').map(str::parse).collect();
    let dimensions = dimensions.map_err(|_| {
        CallError::InvalidArgument("give the shape of the body, like ?shape=1,3,224,224".to_owned())
    })?;
    let body = take_body_as_tensor(ElementType::Fp32, &dimensions)?;
    let input = model.describe().inputs.into_iter().next();
    let input = input.ok_or_else(|| CallError::InvalidArgument("the model has no input".to_owned()))?;
    let outputs = model.infer(&[(input.name, &body)], None)?;
    let (_, output) =
        outputs.first().ok_or_else(|| CallError::InvalidArgument("the model has no output".to_owned()))?;
    reply_with_tensor(output)
}
