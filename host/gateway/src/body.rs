//! Receives request bodies.

use super::error::ApiError;
use axum::body::Body;
use bytes::Bytes;
use http_body::Body as _;
use http_body_util::{BodyExt, Limited};
use weir_call::body::{BodyLimit, receive_with_trailers};
use weir_device::Arena;
use weir_sandbox::instance::GuestRequestBody;
use weir_types::ErrorCode;

/// Size up to which a request body is received before its function gets an instance, so that a slow
/// sender holds no instance. Larger bodies, and bodies of unknown length, are streamed to the
/// running guest.
const WHOLE_BYTES_MAX: u64 = 8 << 20;

/// Receives a request body, or prepares to stream it.
pub(crate) async fn receive(
    body: Body,
    length: Option<u64>,
    arena: &Arena,
    limit: BodyLimit,
) -> Result<GuestRequestBody, ApiError> {
    if body.is_end_stream() || length.is_some_and(|length| length <= WHOLE_BYTES_MAX) {
        return Ok(match receive_with_trailers(body, length, arena, limit).await? {
            (whole, None) => GuestRequestBody::Whole(whole),
            (whole, Some(trailers)) => GuestRequestBody::WholeWithTrailers(whole, trailers),
        });
    }
    if length.is_some_and(|length| length > limit.bytes_max) {
        return Err(limit.too_large().into());
    }
    let bytes_max = usize::try_from(limit.bytes_max).unwrap_or(usize::MAX);
    Ok(GuestRequestBody::Stream(Body::new(Limited::new(body, bytes_max))))
}

/// Collects the body of a request with small JSON.
pub(crate) async fn small(body: Body, bytes_max: usize) -> Result<Bytes, ApiError> {
    let collected = Limited::new(body, bytes_max).collect().await;
    collected.map(http_body_util::Collected::to_bytes).map_err(|error| {
        if error.is::<http_body_util::LengthLimitError>() {
            return ApiError::new(
                ErrorCode::BodyTooLarge,
                format!("the request body has more than {bytes_max} bytes"),
            );
        }
        ApiError::new(ErrorCode::BodyMismatch, format!("the request body ended early or is broken: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, HeaderName, HeaderValue};
    use http_body_util::Full;

    #[tokio::test]
    async fn trailers_of_a_body_with_a_length_are_kept() {
        let limit = BodyLimit { bytes_max: 100, setting: "limit" };
        let trailers =
            HeaderMap::from_iter([(HeaderName::from_static("checksum"), HeaderValue::from_static("7"))]);
        let body = Full::new(Bytes::from_static(b"abc"));
        let body = Body::new(body.with_trailers(std::future::ready(Some(Ok(trailers.clone())))));
        let received = receive(body, Some(3), &Arena::new(1 << 20), limit).await.unwrap();
        let GuestRequestBody::WholeWithTrailers(whole, kept) = received else {
            panic!("the trailers are lost")
        };
        assert_eq!((&whole[..], kept), (&b"abc"[..], trailers));
    }
}
