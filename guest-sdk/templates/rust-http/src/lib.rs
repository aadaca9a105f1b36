//! `{{ name }}` answers HTTP requests. Every request gets a fresh instance: what is kept in a static is gone with the answer.

use wstd::http::{Body, Error, Method, Request, Response, StatusCode};

#[wstd::http_server]
async fn main(mut request: Request<Body>) -> Result<Response<Body>, Error> {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/") => text(StatusCode::OK, "hello from {{ name }}\n"),
        (&Method::POST, "/shout") => {
            let body = request.body_mut().str_contents().await?.to_uppercase();
            // Standard output and error go to `weir logs {{ name }}`.
            println!("shouted {} bytes", body.len());
            text(StatusCode::OK, &body)
        }
        _ => text(StatusCode::NOT_FOUND, "there are GET / and POST /shout\n"),
    }
}

fn text(status: StatusCode, text: &str) -> Result<Response<Body>, Error> {
    let response = Response::builder().status(status).header("content-type", "text/plain; charset=utf-8");
    Ok(response.body(text.to_owned().into())?)
}
