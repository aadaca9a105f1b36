//! Built with wstd alone, which does not know Weir. Responds with the request body and the duration
//! of a timer, so that the function uses streams and pollables.

use wstd::http::{Body, Error, Request, Response};
use wstd::time::{Duration, Instant};

#[wstd::http_server]
async fn main(request: Request<Body>) -> Result<Response<Body>, Error> {
    let path = request.uri().path().to_owned();
    let mut body = request.into_body();
    let text = format!("hello from wstd at {path}\n{}", body.str_contents().await?);
    let start = Instant::now();
    wstd::task::sleep(Duration::from_millis(1)).await;
    let slept = start.elapsed() >= Duration::from_millis(1);
    Ok(Response::builder().header("slept", slept.to_string()).body(text.into())?)
}
