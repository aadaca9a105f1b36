//! Cache directives of callers and functions (RFC 9111). Pure functions of headers.

use crate::guest_url::FORWARDED_PREFIX;
use axum::response::Response;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING,
    CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_RANGE, IF_UNMODIFIED_SINCE, ORIGIN, RANGE, SET_COOKIE, UPGRADE, VARY,
};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use std::time::Duration;
use weir_control::response_cache::Wish;

/// Headers in the cache key. A function whose response depends on other headers says so with
/// `Vary`, and the response is not cached. Weir's own token is not in the list: it names the
/// tenant, and is removed before the function sees the request. `authorization` and `cookie` belong
/// to the function, and are in the list so that callers do not get responses made for other users.
pub(super) const KEY_HEADERS: [HeaderName; 11] = [
    ACCEPT,
    ACCEPT_ENCODING,
    ACCEPT_LANGUAGE,
    AUTHORIZATION,
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_TYPE,
    COOKIE,
    FORWARDED_PREFIX,
    HOST,
    ORIGIN,
];

/// Headers that ask for a part of a response, for a response only after a change, or for another
/// protocol. The function must see such requests.
const PARTIAL: [HeaderName; 7] =
    [RANGE, IF_RANGE, IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE, UPGRADE];

/// Whether the cache may answer a request with these headers, and keep its response.
pub(super) fn may_be_kept(head: &http::request::Parts) -> bool {
    matches!(head.method, Method::GET | Method::HEAD | Method::POST)
        && !PARTIAL.iter().any(|name| head.headers.contains_key(name))
}

/// Returns the caller's requirements on cached responses; none if the caller bypasses the cache
/// (`no-store`).
pub(crate) fn wish(headers: &HeaderMap) -> Option<Wish> {
    let mut wish = Wish::default();
    for (name, value) in directives(headers) {
        let age_max = match &*name {
            "no-store" => return None,
            "no-cache" => Duration::ZERO,
            // An unreadable value counts as stale (section 4.2.1).
            "max-age" => seconds(value).unwrap_or_default(),
            _ => continue,
        };
        wish.age_max = Some(wish.age_max.map_or(age_max, |other| other.min(age_max)));
    }
    Some(wish)
}

/// Returns whether a response may be cached, with the time to live that the response sets, if any.
/// `bytes_max` is the size limit of the body.
pub(super) fn lets_keep(response: &Response, bytes_max: u64) -> Option<Option<Duration>> {
    let status = response.status();
    let headers = response.headers();
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let is_one_of_a_kind = !status.is_success()
        || status == StatusCode::PARTIAL_CONTENT
        || headers.contains_key(SET_COOKIE)
        || varies(headers)
        // An event stream lasts as long as its reader wants.
        || text(&CONTENT_TYPE).is_some_and(|kind| kind.starts_with("text/event-stream"))
        || text(&CONTENT_LENGTH).and_then(|length| length.parse().ok()).is_some_and(|length: u64| length > bytes_max);
    if is_one_of_a_kind {
        return None;
    }
    let mut max_age = None;
    let mut shared = None;
    for (name, value) in directives(headers) {
        match &*name {
            "no-store" | "no-cache" | "private" => return None,
            "max-age" => max_age = Some(seconds(value).unwrap_or_default()),
            "s-maxage" => shared = Some(seconds(value).unwrap_or_default()),
            _ => {}
        }
    }
    Some(shared.or(max_age))
}

/// Whether the response depends on headers outside [`KEY_HEADERS`].
fn varies(headers: &HeaderMap) -> bool {
    let names = headers.get_all(VARY).into_iter().map(|value| value.to_str().unwrap_or("*"));
    let mut names = names.flat_map(|names| names.split(',')).map(str::trim).filter(|name| !name.is_empty());
    names.any(|name| !KEY_HEADERS.iter().any(|header| name.eq_ignore_ascii_case(header.as_str())))
}

/// Returns the directives of `Cache-Control`: names in lower case, and values after `=`.
fn directives(headers: &HeaderMap) -> impl Iterator<Item = (String, Option<&str>)> {
    let values = headers.get_all(CACHE_CONTROL).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|directive| {
        let (name, value) = match directive.split_once('=') {
            Some((name, value)) => (name, Some(value.trim().trim_matches('"'))),
            None => (directive, None),
        };
        (name.trim().to_ascii_lowercase(), value)
    })
}

fn seconds(value: Option<&str>) -> Option<Duration> {
    Some(Duration::from_secs(value?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn headers(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let header = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), value.parse().unwrap())
        };
        headers.iter().map(header).collect()
    }

    #[test]
    fn request_directives_limit_the_age() {
        let wish = |value| {
            wish(&headers(&[("cache-control", value)])).map(|wish| wish.age_max.map(|age| age.as_secs()))
        };
        assert_eq!(wish(""), Some(None));
        assert_eq!(wish("No-Cache"), Some(Some(0)));
        assert_eq!(wish("max-age=60, stale-while-revalidate=7"), Some(Some(60)));
        assert_eq!(wish("max-age=\"60\", no-cache"), Some(Some(0)));
        assert_eq!(wish("max-age=soon"), Some(Some(0)));
        assert_eq!(wish("no-cache, no-store"), None);
    }

    #[test]
    fn response_directives_decide_whether_to_cache() {
        let kept = |status: u16, given: &[(&'static str, &'static str)]| {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            *response.headers_mut() = headers(given);
            lets_keep(&response, 100).map(|ttl| ttl.map(|ttl| ttl.as_secs()))
        };
        assert_eq!(kept(200, &[]), Some(None));
        assert_eq!(kept(204, &[("cache-control", "public, max-age=9")]), Some(Some(9)));
        assert_eq!(kept(200, &[("cache-control", "s-maxage=5, max-age=9")]), Some(Some(5)));
        assert_eq!(kept(200, &[("vary", "Accept, Accept-Encoding"), ("content-length", "100")]), Some(None));
        for status in [206, 301, 304, 404, 500] {
            assert_eq!(kept(status, &[]), None, "{status}");
        }
        for given in [
            ("cache-control", "max-age=9, no-store"),
            ("cache-control", "Private"),
            ("cache-control", "private=\"x-user\""),
            ("cache-control", "no-cache"),
            ("set-cookie", "a=b"),
            ("vary", "accept, user-agent"),
            ("vary", "*"),
            ("content-type", "text/event-stream; charset=utf-8"),
            ("content-length", "101"),
        ] {
            assert_eq!(kept(200, &[given]), None, "{given:?}");
        }
    }
}
