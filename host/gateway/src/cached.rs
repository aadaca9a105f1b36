//! Response cache for calls of HTTP functions with a `cache_ttl_ms`, by the rules of HTTP for
//! shared caches (RFC 9111).
//!
//! Calls are equal if their method, scheme, path, query, body and [`KEY_HEADERS`] are equal. The cache
//! respects the directives of the caller and the function: `no-store`, `no-cache`, `max-age`,
//! `private`, `Vary`. See `docs/concepts/caching.md`.

mod rules;

use super::error::ApiError;
use super::invoke::HttpCall;
use crate::NodeState;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::header::AGE;
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use rules::KEY_HEADERS;
use std::sync::Arc;
use std::time::Duration;
use weir_call::headers;
use weir_control::response_cache::{CachedResult, HttpAnswer, Keep, Scope, SharedResponse};
use weir_sandbox::instance::GuestRequestBody;
use weir_types::{CACHE_TTL_MS_MAX, ContentHash, ErrorCode, Hasher};

pub(super) use rules::wish;

/// Role of the cache in a response.
#[derive(Debug, Clone, Copy)]
pub(super) enum CacheRole {
    /// The response was made for an equal call, and has this age.
    Hit(Duration),
    /// The cache had no response.
    Miss,
    /// The cache was not consulted: responses to such calls are not cached.
    Bypass,
}

impl CacheRole {
    /// Reports the verdict in the response headers.
    pub(super) fn tell(self, headers: &mut HeaderMap) {
        let text = match self {
            Self::Hit(age) => {
                headers.insert(AGE, HeaderValue::from(age.as_secs()));
                "hit"
            }
            Self::Miss => "miss",
            Self::Bypass => "bypass",
        };
        headers.insert(headers::CACHE, HeaderValue::from_static(text));
    }
}

/// Rejects a time to live outside the allowed range.
pub(super) fn check_ttl(ttl_ms: Option<u64>) -> Result<(), ApiError> {
    let Some(ttl_ms) = ttl_ms.filter(|ttl_ms| !(1..=CACHE_TTL_MS_MAX).contains(ttl_ms)) else {
        return Ok(());
    };
    let text = format!(
        "cache_ttl_ms = {ttl_ms} is not within 1 to {CACHE_TTL_MS_MAX}; leave it out for answers not to be kept"
    );
    Err(ApiError::new(ErrorCode::LimitOverCap, text))
}

/// Answers a call of an HTTP function from the cache, or runs the call.
pub(super) async fn http(node: &NodeState, scope: &Arc<Scope>, call: HttpCall) -> Result<Response, ApiError> {
    let wish = wish(&call.request.head.headers).filter(|_| rules::may_be_kept(&call.request.head));
    let (Some(wish), GuestRequestBody::Whole(body)) = (wish, &call.request.body) else {
        let mut response = call.run(node).await?;
        CacheRole::Bypass.tell(response.headers_mut());
        return Ok(response);
    };
    let head = input_head(&call);
    let body = body.clone();
    let input = node.json(body.len(), move || Ok(input(&head, &body))).await?;
    let account = call.function.account.clone();
    let deadline = call.ctx.deadline;
    let deadline_ms = call.function.deployment().manifest.limits.deadline_ms;
    let run = async || Ok::<_, ApiError>(collected(call.run(node).await?, scope.answer_bytes_max()).await);
    match scope.answer(input, wish, deadline, run).await? {
        Some(CachedResult::Ran(mut response)) => {
            CacheRole::Miss.tell(response.headers_mut());
            Ok(response)
        }
        Some(CachedResult::Hit(SharedResponse::Http(answer), age)) => {
            account.hit();
            account.answered(answer.status);
            let mut response = Response::new(Body::from(answer.body.clone()));
            *response.status_mut() = answer.status;
            response.headers_mut().clone_from(&answer.headers);
            CacheRole::Hit(age).tell(response.headers_mut());
            Ok(response)
        }
        Some(CachedResult::Hit(SharedResponse::Tensors(_), _)) => {
            Err(ApiError::internal(&"tensors were kept for an HTTP function"))
        }
        None => Err(waited_too_long(&format!("{deadline_ms} ms (limits.deadline_ms)"))),
    }
}

pub(super) fn waited_too_long(limit: &str) -> ApiError {
    let text = format!("an equal call that was under way did not end within {limit}");
    ApiError::new(ErrorCode::DeadlineExceeded, text)
}

/// Encodes everything except the body that distinguishes a call from others. A length precedes each
/// part, so that different calls have different encodings.
fn input_head(call: &HttpCall) -> Vec<u8> {
    let mut all = Vec::with_capacity(256);
    let mut part = |bytes: &[u8]| {
        all.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        all.extend_from_slice(bytes);
    };
    part(call.request.head.method.as_str().as_bytes());
    part(call.request.head.uri.scheme_str().unwrap_or("http").as_bytes());
    let target = call.request.head.uri.path_and_query().map_or("", |target| target.as_str());
    part(target.as_bytes());
    for name in &KEY_HEADERS {
        let values = call.request.head.headers.get_all(name);
        part(&values.iter().count().to_le_bytes());
        values.iter().for_each(|value| part(value.as_bytes()));
    }
    all
}

fn input(head: &[u8], body: &[u8]) -> ContentHash {
    let mut hasher = Hasher::default();
    hasher.update(&(head.len() as u64).to_le_bytes());
    hasher.update(head);
    hasher.update(body);
    hasher.finish()
}

/// Returns the response, and a copy to cache if the response may be cached. Reads the response up
/// to the largest size that can be cached; a larger response continues as a stream.
async fn collected(response: Response, bytes_max: u64) -> (Response, Option<Keep>) {
    let Some(ttl_max) = rules::lets_keep(&response, bytes_max) else { return (response, None) };
    let (head, mut body) = response.into_parts();
    let mut whole = Vec::new();
    // The first frame that does not fit, or that is not data.
    let next = loop {
        match body.frame().await {
            None => break None,
            Some(Ok(frame)) => match frame.into_data() {
                Ok(piece) if (whole.len() + piece.len()) as u64 <= bytes_max => {
                    whole.extend_from_slice(&piece);
                }
                Ok(piece) => break Some(Ok(Frame::data(piece))),
                Err(trailers) => break Some(Ok(trailers)),
            },
            Some(Err(error)) => break Some(Err(error)),
        }
    };
    // A separate allocation of the exact size: not in the arena, and without spare capacity.
    let whole = Bytes::from(whole.into_boxed_slice());
    match next {
        None => {
            let status = head.status;
            let headers = head.headers.clone();
            let answer = SharedResponse::Http(Arc::new(HttpAnswer { status, headers, body: whole.clone() }));
            (Response::from_parts(head, Body::from(whole)), Some(Keep { answer, ttl_max }))
        }
        Some(next) => {
            let begun = stream::iter([Ok(Frame::data(whole)), next]);
            let body = Body::new(StreamBody::new(begun.chain(BodyStream::new(body))));
            (Response::from_parts(head, body), None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::response::IntoResponse;

    #[tokio::test]
    async fn cacheable_responses_are_collected_and_larger_ones_streamed() {
        let pieces = |count: usize| {
            let pieces = (0..count).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(&[7; 100])));
            Body::from_stream(stream::iter(pieces)).into_response()
        };
        for (count, is_kept) in [(0, true), (10, true), (11, false), (50, false)] {
            let (response, keep) = collected(pieces(count), 1_000).await;
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!((body.len(), keep.is_some()), (count * 100, is_kept));
        }
        let broken = [Ok(Bytes::from_static(b"half")), Err(std::io::Error::other("on purpose"))];
        let (response, keep) =
            collected(Body::from_stream(stream::iter(broken)).into_response(), 1_000).await;
        assert!(keep.is_none());
        let mut body = response.into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "half");
        assert!(body.frame().await.unwrap().is_err());
    }

    #[test]
    fn cache_ttl_outside_its_range_is_rejected() {
        for good in [None, Some(1), Some(CACHE_TTL_MS_MAX)] {
            assert!(check_ttl(good).is_ok());
        }
        for bad in [0, CACHE_TTL_MS_MAX + 1, u64::MAX] {
            assert_eq!(check_ttl(Some(bad)).unwrap_err().code, ErrorCode::LimitOverCap);
        }
    }
}
