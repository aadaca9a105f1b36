//! Greets: `/` says hello, `/{name}` says it to somebody.

use wstd::http::{Body, Error, Request, Response};

#[wstd::http_server]
async fn main(request: Request<Body>) -> Result<Response<Body>, Error> {
    let name = request.uri().path().trim_matches('/');
    let text = if name.is_empty() { "hello\n".to_owned() } else { format!("hello, {name}\n") };
    Ok(Response::builder().header("content-type", "text/plain; charset=utf-8").body(text.into())?)
}
