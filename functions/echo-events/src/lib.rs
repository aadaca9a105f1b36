//! Echoes the pieces of the request body as server-sent events, each as soon as it arrives: the
//! client can read the first before it has sent the last. Built with wstd alone: streaming needs
//! nothing of Weir.

use http_body_util::BodyExt;
use wstd::http::body::Bytes;
use wstd::http::{Body, Error, Request, Response};

#[wstd::http_server]
async fn main(request: Request<Body>) -> Result<Response<Body>, Error> {
    let pieces = request.into_body().into_boxed_body();
    let events =
        pieces.map_frame(|frame| frame.map_data(|piece: Bytes| event(&String::from_utf8_lossy(&piece))));
    Ok(Response::builder().header("content-type", "text/event-stream").body(Body::from_http_body(events))?)
}

/// An event with `text` as its data; `text` may have several lines.
fn event(text: &str) -> Bytes {
    let lines: String = text.lines().map(|line| format!("data: {line}\n")).collect();
    format!("{lines}\n").into()
}
