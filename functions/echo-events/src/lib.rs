//! Answers with the pieces of the request's body as server-sent events, each as it comes: the first can be read while the last has not been
//! sent. Built with wstd alone: streaming takes nothing of Weir's.

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

/// An event with `text` as its data, which may have several lines.
fn event(text: &str) -> Bytes {
    let lines: String = text.lines().map(|line| format!("data: {line}\n")).collect();
    format!("{lines}\n").into()
}
