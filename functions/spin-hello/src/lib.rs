//! Built with Spin's SDK alone, which does not know Weir. Targets WASI 0.3.

use http_body_util::BodyExt as _;
use spin_sdk::http::{Error, IntoResponse, Request};
use spin_sdk::http_service;

#[http_service]
async fn hello(request: Request) -> Result<impl IntoResponse, Error> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await?.to_bytes();
    Ok(format!("hello from spin at {path}\n{}", String::from_utf8_lossy(&body)))
}
