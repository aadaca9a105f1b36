//! Checks of request heads, before anything else of a request is looked at.

use crate::error::ApiError;
use http::header::HOST;
use http::{Request, Version};
use weir_types::ErrorCode;

/// Target and headers of a request of a client, before it is authenticated.
const BYTES_MAX: usize = 32 << 10;

/// Rejects heads of HTTP/1 without exactly one host, which servers and proxies may understand
/// differently. Ambiguous lines and lengths of bodies were refused before (`server/framing.rs`).
pub(crate) fn check_host<B>(request: &Request<B>) -> Result<(), ApiError> {
    let wrong = |text: &str| Err(ApiError::new(ErrorCode::InvalidRequest, text));
    if request.version() > Version::HTTP_11 {
        return Ok(());
    }
    match request.headers().get_all(HOST).iter().count() {
        1 => Ok(()),
        0 if request.version() < Version::HTTP_11 => Ok(()),
        0 => wrong("the request has no host header, which HTTP/1.1 requires"),
        _ => wrong("the request has several host headers; send one"),
    }
}

/// Rejects a head that is larger than clients' heads may be.
pub(crate) fn check_size<B>(request: &Request<B>) -> Result<(), ApiError> {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len());
    if target + headers.sum::<usize>() <= BYTES_MAX {
        return Ok(());
    }
    let text = format!(
        "the target and headers of a request may have {BYTES_MAX} bytes; send long values in the body"
    );
    Err(ApiError::new(ErrorCode::HeadTooLarge, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_host(version: Version, headers: &[(&str, &str)]) -> bool {
        let mut request = Request::builder().version(version);
        for header in headers {
            request = request.header(header.0, header.1);
        }
        check_host(&request.body(()).unwrap()).is_ok()
    }

    #[test]
    fn heads_of_http_1_1_have_one_host() {
        let host = ("host", "a");
        assert!(has_host(Version::HTTP_11, &[host]));
        assert!(!has_host(Version::HTTP_11, &[]));
        assert!(!has_host(Version::HTTP_11, &[host, host]));
        assert!(has_host(Version::HTTP_10, &[]) && has_host(Version::HTTP_2, &[]));
        assert!(!has_host(Version::HTTP_10, &[host, ("host", "b")]));
    }

    #[test]
    fn size_counts_target_and_headers() {
        let is_fine = |target: usize, value: usize| {
            let request = Request::builder().uri(format!("/{}", "t".repeat(target)));
            let request = request.header("a", "v".repeat(value)).body(()).unwrap();
            check_size(&request).is_ok()
        };
        assert!(is_fine(0, BYTES_MAX - 2) && is_fine(BYTES_MAX - 12, 10));
        assert!(!is_fine(0, BYTES_MAX - 1) && !is_fine(BYTES_MAX, 0));
    }
}
