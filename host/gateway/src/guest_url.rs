//! The URL of a call: as the function sees it, and where its callers see the function.

use axum::extract::Request;
use bytes::Bytes;
use http::header::HOST;
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};

/// The part of a call's path that the function does not see.
pub(crate) const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");

/// Request extension: the connection of the client is encrypted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OverTls;

/// Request extension: the prefix of a public call, whose path has lost the tenant.
#[derive(Debug, Clone)]
struct PublicPrefix(HeaderValue);

/// Remembers the prefix of a public call, before the tenant is cut from the path.
pub(crate) fn keep_public_prefix(request: &mut Request) {
    let path = request.uri().path();
    let len = path["/fn/".len()..].find('/').map_or(path.len(), |len| "/fn/".len() + len);
    if let Ok(prefix) = HeaderValue::from_str(&path[..len]) {
        request.extensions_mut().insert(PublicPrefix(prefix));
    }
}

/// Sets the scheme of a request that arrived over TLS, and the authority, which the target of a
/// request of HTTP/1 does not have.
pub(crate) fn set_scheme(head: &mut Parts) {
    if head.extensions.get::<OverTls>().is_none() {
        return;
    }
    let mut parts = head.uri.clone().into_parts();
    parts.scheme = Some(Scheme::HTTPS);
    parts.authority = parts
        .authority
        .or_else(|| head.headers.get(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok()));
    // Fails without an authority.
    if let Ok(uri) = Uri::from_parts(parts) {
        head.uri = uri;
    }
}

/// Sets the header with the first `prefix_len` bytes of the path, which the function does not see.
/// A forwarded call has the header from the node that received the call.
pub(crate) fn set_prefix(head: &mut Parts, prefix_len: usize, is_forwarded: bool) {
    if is_forwarded && head.headers.contains_key(FORWARDED_PREFIX) {
        return;
    }
    let prefix = match head.extensions.remove::<PublicPrefix>() {
        Some(PublicPrefix(prefix)) => Some(prefix),
        None => HeaderValue::from_str(&head.uri.path()[..prefix_len]).ok(),
    };
    replace(&mut head.headers, FORWARDED_PREFIX, prefix);
}

fn replace(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) {
    match value {
        Some(value) => headers.insert(name, value),
        None => headers.remove(name),
    };
}

/// Returns the request target as the function sees it: without the first `prefix_len` bytes,
/// `/fn/{name}` or `/fn/{name}@{version}`.
pub(crate) fn guest_uri(uri: &Uri, prefix_len: usize) -> Uri {
    let target = uri.path_and_query().map_or("", PathAndQuery::as_str);
    let rest = &target[prefix_len..];
    let target = if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") };
    // A suffix of a valid target after a slash is valid.
    let target =
        PathAndQuery::from_maybe_shared(Bytes::from(target)).unwrap_or(PathAndQuery::from_static("/"));
    if uri.authority().is_none() {
        return Uri::from(target);
    }
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(target);
    Uri::from_parts(parts).unwrap_or_else(|_| Uri::from_static("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn request(uri: &str) -> Request {
        let request = Request::builder().uri(uri).header(HOST, "weir.test:8443");
        request.header(FORWARDED_PREFIX, "/of-the-client").body(Body::empty()).unwrap()
    }

    #[test]
    fn scheme_is_that_of_the_connection() {
        let seen = |uri: &str, is_tls: bool| {
            let mut head = request(uri).into_parts().0;
            if is_tls {
                head.extensions.insert(OverTls);
            }
            set_scheme(&mut head);
            guest_uri(&head.uri, "/fn/hello".len()).to_string()
        };
        assert_eq!(seen("/fn/hello/a?b", false), "/a?b");
        assert_eq!(seen("/fn/hello/a?b", true), "https://weir.test:8443/a?b");
        assert_eq!(seen("http://other.test/fn/hello", false), "http://other.test/");
        assert_eq!(seen("http://other.test/fn/hello", true), "https://other.test/");
    }

    #[test]
    fn prefix_is_the_removed_part_of_the_path() {
        let prefix_of = |uri: &str, prefix: &str, is_forwarded: bool| {
            let mut head = request(uri).into_parts().0;
            set_prefix(&mut head, prefix.len(), is_forwarded);
            head.headers[FORWARDED_PREFIX].clone()
        };
        assert_eq!(prefix_of("/fn/hello/a", "/fn/hello", false), "/fn/hello");
        assert_eq!(prefix_of("/fn/hello@3?a", "/fn/hello@3", false), "/fn/hello@3");
        assert_eq!(prefix_of("/fn/hello/a", "/fn/hello", true), "/of-the-client");
    }

    #[test]
    fn prefix_of_a_public_call_names_the_tenant() {
        for uri in ["/fn/acme:hello", "/fn/acme:hello/a?b"] {
            let mut request = request(uri);
            keep_public_prefix(&mut request);
            let mut head = request.into_parts().0;
            head.uri = Uri::from_static("/fn/hello/a?b");
            set_prefix(&mut head, "/fn/hello".len(), false);
            assert_eq!(head.headers[FORWARDED_PREFIX], "/fn/acme:hello");
        }
    }

    #[test]
    fn function_sees_paths_without_its_prefix() {
        let seen = |uri: &'static str| guest_uri(&Uri::from_static(uri), "/fn/hello".len()).to_string();
        assert_eq!(seen("/fn/hello"), "/");
        assert_eq!(seen("/fn/hello/"), "/");
        assert_eq!(seen("/fn/hello/a/b?c=d"), "/a/b?c=d");
        assert_eq!(seen("/fn/hello?c=d"), "/?c=d");
        assert_eq!(seen("http://example.com/fn/hello/x"), "http://example.com/x");
    }
}
