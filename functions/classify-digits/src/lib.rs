//! Reads one handwritten digit: a PNG or rows of grey in, JSON out. The model `digits` does the reading, on the node.

mod api;
mod picture;
mod prepare;

mod model;

use api::Reply;
use wstd::http::{Body, Error, Request, Response};

#[wstd::http_server]
async fn main(request: Request<Body>) -> Result<Response<Body>, Error> {
    let (head, mut body) = request.into_parts();
    let body = body.contents().await?;
    let answer = api::answer(head.method.as_str(), head.uri.path(), body, model::probabilities);
    let (status, content_type, text) = match answer {
        Ok(Reply::Usage(text)) => (200, "text/plain; charset=utf-8", text.to_owned()),
        Ok(Reply::Classification(found)) => (200, "application/json", serde_json::to_string(&found)?),
        Err(error) => {
            (error.status(), "application/json", serde_json::json!({"error": error.to_string()}).to_string())
        }
    };
    Ok(Response::builder().status(status).header("content-type", content_type).body(text.into())?)
}
