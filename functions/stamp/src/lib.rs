//! Responds with the mark of its version (`env.MARK` of the deploy), a random number, and the
//! request body, separated by spaces. The random number differs in every run, so equal responses
//! are one response. `?nap=MS` sleeps first. For `cargo xtask torture`.

use wstd::http::{Body, Error, Request, Response};
use wstd::rand::get_random_bytes;
use wstd::time::Duration;

#[wstd::http_server]
async fn main(request: Request<Body>) -> Result<Response<Body>, Error> {
    let query = request.uri().query().unwrap_or_default();
    if let Some(millis) = query.strip_prefix("nap=").and_then(|millis| millis.parse().ok()) {
        wstd::task::sleep(Duration::from_millis(millis)).await;
    }
    let mark = std::env::var("MARK").unwrap_or_default();
    let mut number = [0; 8];
    get_random_bytes(&mut number);
    let mut stamped = format!("{mark} {:016x} ", u64::from_le_bytes(number)).into_bytes();
    let mut body = request.into_body();
    stamped.extend_from_slice(body.contents().await?);
    Ok(Response::new(stamped.into()))
}
