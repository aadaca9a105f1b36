//! Answers with the request's body, as bytes; they never enter the guest's memory. Built from the WIT alone, beside somebody else's HTTP
//! library: the two need not know of each other.

mod bindings {
    wit_bindgen::generate!({ path: "../../wit", world: "weir:inference/imports", generate_all });
}

use bindings::weir::inference::request::{reply_with_tensor, take_body_as_tensor};
use bindings::weir::inference::tensors::ElementType;
use wstd::http::{Body, Error, Request, Response};

/// Whatever the body's length makes it.
const OPEN: u32 = u32::MAX;

#[wstd::http_server]
async fn main(_request: Request<Body>) -> Result<Response<Body>, Error> {
    let body = take_body_as_tensor(ElementType::Uint8, &[OPEN])?;
    reply_with_tensor(&body)?;
    Ok(Response::builder().header("weir-echo-bytes", body.byte_length()).body(().into())?)
}
