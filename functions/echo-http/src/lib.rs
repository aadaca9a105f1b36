//! Echoes the request body as a tensor of bytes, which stays on the node, and the attributes of a
//! CloudEvent in the headers. Built from the WIT alone,
//! together with an unrelated HTTP library: the library does not need to support Weir.

mod bindings {
    wit_bindgen::generate!({ path: "../../wit", world: "weir:inference/imports", generate_all });
}

use bindings::weir::inference::request::{reply_with_tensor, take_body_as_tensor};
use bindings::weir::inference::tensors::ElementType;
use wstd::http::{Body, Error, Request, Response};

/// A dimension inferred from the length of the body.
const OPEN: u32 = u32::MAX;

#[wstd::http_server]
async fn main(request: Request<Body>) -> Result<Response<Body>, Error> {
    let body = take_body_as_tensor(ElementType::Uint8, &[OPEN])?;
    reply_with_tensor(&body)?;
    let mut response = Response::builder().header("weir-echo-bytes", body.byte_length());
    for (name, value) in request.headers().iter().filter(|(name, _)| name.as_str().starts_with("ce-")) {
        response = response.header(name, value);
    }
    Ok(response.body(().into())?)
}
