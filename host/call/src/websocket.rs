//! The response with which a function accepts a WebSocket.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};

/// Media type of the request and the response of a function that serves a WebSocket.
pub const MEDIA_TYPE: &str = "application/vnd.weir.websocket";

/// Whether a response to the handshake of a WebSocket accepts it. Every other response is an ordinary
/// one, with the ordinary limits.
pub fn is_accepted(status: StatusCode, headers: &HeaderMap) -> bool {
    let media_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    status == StatusCode::OK && media_type == Some(MEDIA_TYPE.as_bytes())
}
