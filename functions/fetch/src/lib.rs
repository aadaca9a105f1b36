//! Fetches the URL in the query, for tests of outbound requests. Responds with the status of the
//! response, or with 502 and the error. The response has the `traceparent` that the function received
//! in the header `seen-traceparent`, and the outbound request has the header `send-traceparent` as
//! `traceparent`.

use wasip2::http::outgoing_handler::handle;
use wasip2::http::types::{ErrorCode, Fields, OutgoingRequest, Scheme};
use wstd::http::{Authority, Body, Error, HeaderMap, PathAndQuery, Request, Response, StatusCode, Uri};
use wstd::io::AsyncPollable;

#[wstd::http_server]
async fn main(request: Request<Body>) -> Result<Response<Body>, Error> {
    let url: Uri = request.uri().query().unwrap_or_default().parse()?;
    let (status, text) = match fetch(&url, request.headers()).await {
        Ok(status) => (StatusCode::OK, format!("{status}\n")),
        Err(error) => (StatusCode::BAD_GATEWAY, format!("{error:?}\n")),
    };
    Ok(Response::builder().status(status).body(text.into())?)
}

/// Sends a request without a body, so that the only error is that of the request.
async fn fetch(url: &Uri, received: &HeaderMap) -> Result<u16, ErrorCode> {
    let wrong = |()| ErrorCode::HttpRequestUriInvalid;
    let fields = Fields::new();
    for (from, to) in [("traceparent", "seen-traceparent"), ("send-traceparent", "traceparent")] {
        if let Some(value) = received.get(from) {
            fields.append(to, value.as_bytes()).map_err(|_| ErrorCode::HttpRequestHeaderSectionSize(None))?;
        }
    }
    let request = OutgoingRequest::new(fields);
    let scheme = if url.scheme_str() == Some("https") { Scheme::Https } else { Scheme::Http };
    request.set_scheme(Some(&scheme)).map_err(wrong)?;
    request.set_authority(url.authority().map(Authority::as_str)).map_err(wrong)?;
    request.set_path_with_query(url.path_and_query().map(PathAndQuery::as_str)).map_err(wrong)?;
    let answered = handle(request, None)?;
    AsyncPollable::new(answered.subscribe()).wait_for().await;
    let answer = answered.get().and_then(Result::ok);
    answer.unwrap_or(Err(ErrorCode::InternalError(None))).map(|response| response.status())
}
