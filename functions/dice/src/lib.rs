//! Responds with a random number, so that a repeated number proves a cached response. The query
//! sets the status (`status=404`), the length of the body (`bytes=1000`) and headers
//! (`cache-control=no-store`). For tests of response caching.

use wstd::http::{Body, Error, Request, Response};
use wstd::rand::get_random_bytes;

#[wstd::http_server]
async fn main(request: Request<Body>) -> Result<Response<Body>, Error> {
    let mut roll = [0; 8];
    get_random_bytes(&mut roll);
    let mut body = format!("{:016x}", u64::from_le_bytes(roll));
    let mut response = Response::builder();
    let query = request.uri().query().unwrap_or_default();
    for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        match key {
            "status" => response = response.status(value),
            "bytes" => body.push_str(&"x".repeat(value.parse().unwrap_or(0))),
            header => response = response.header(header, value),
        }
    }
    Ok(response.body(body.into())?)
}
