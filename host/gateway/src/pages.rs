//! Protection of a node without tokens against web pages.
//!
//! A page in a browser on the node's machine can send requests to the node: to its loopback
//! address, or to the page's own host name after that resolves to loopback (DNS rebinding).
//! Browsers send the host name and the origin of the page, so the node can refuse both. Programs
//! send neither `Origin` nor `Sec-Fetch-Site`, and address the node by a name that it knows.

use crate::error::ApiError;
use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, Request};
use std::net::{IpAddr, SocketAddr};
use weir_types::ErrorCode;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Checks requests of browsers, on a node that everybody on its machine may use.
#[derive(Debug)]
pub struct PageGuard {
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl PageGuard {
    /// Creates the guard of a node without tokens that listens on loopback; `None` for other nodes.
    /// `hosts` are names of the node in addition to those of loopback, and `origins` are pages that
    /// may send requests.
    #[must_use]
    pub fn new(listen: SocketAddr, has_tokens: bool, hosts: &[String], origins: &[String]) -> Option<Self> {
        let is_guarded = listen.ip().is_loopback() && !has_tokens;
        is_guarded.then(|| Self { hosts: hosts.to_vec(), origins: origins.to_vec() })
    }

    /// Refuses a request for a foreign host, or from a page of another origin. Reads the head only.
    /// The node that forwarded a request has checked its page: pages of other origins cannot send
    /// the header that marks such requests.
    pub(crate) fn check<B>(&self, request: &Request<B>, is_forwarded: bool) -> Result<(), ApiError> {
        self.check_host(request)?;
        if is_forwarded { Ok(()) } else { self.check_page(request) }
    }

    fn check_host<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        let header = request.headers().get(HOST).map(|host| host.to_str().unwrap_or_default());
        let target = request.uri().authority().map(Authority::as_str);
        // HTTP/2 and requests to proxies have the host in their target.
        for host in header.into_iter().chain(target) {
            if !self.is_own(host) {
                return Err(foreign_host(host));
            }
        }
        Ok(())
    }

    fn check_page<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        let origin = request.headers().get(ORIGIN).map(|origin| origin.to_str().unwrap_or_default());
        let is_cross_site =
            request.headers().get(SEC_FETCH_SITE).is_some_and(|site| site.as_bytes() == b"cross-site");
        let is_welcome = match origin {
            Some(origin) => self.is_listed(origin) || (!is_cross_site && is_same(origin, request)),
            None => !is_cross_site || self.is_listed("*"),
        };
        if is_welcome { Ok(()) } else { Err(cross_site(origin)) }
    }

    fn is_own(&self, host: &str) -> bool {
        let name = without_port(host);
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        name.eq_ignore_ascii_case("localhost")
            || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name) || own.eq_ignore_ascii_case(host))
    }

    fn is_listed(&self, origin: &str) -> bool {
        self.origins.iter().any(|listed| listed == "*" || listed.eq_ignore_ascii_case(origin))
    }
}

/// Whether the page comes from the host that it addresses. A proxy with TLS may be in between.
fn is_same<B>(origin: &str, request: &Request<B>) -> bool {
    let Some(page) = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")) else {
        return false;
    };
    host_of(request.headers(), request.uri().authority()).is_some_and(|host| host.eq_ignore_ascii_case(page))
}

fn host_of<'a>(headers: &'a HeaderMap, target: Option<&'a Authority>) -> Option<&'a str> {
    match target {
        Some(target) => Some(target.as_str()),
        None => headers.get(HOST).and_then(|host| host.to_str().ok()),
    }
}

fn without_port(host: &str) -> &str {
    let end = host.rfind(']').map_or(0, |bracket| bracket + 1);
    host[end..].find(':').map_or(host, |colon| &host[..end + colon])
}

fn foreign_host(host: &str) -> ApiError {
    let text = format!(
        "this node does not serve the host {host:?}; address it as localhost or 127.0.0.1, or add the name to gateway.access.pages.hosts of the node"
    );
    ApiError::new(ErrorCode::ForeignHost, text)
}

fn cross_site(origin: Option<&str>) -> ApiError {
    let page = origin.unwrap_or("of another site");
    let text = format!(
        "a web page ({page}) sent this request, and the node has no tokens to tell whether it may; add the page's origin to gateway.access.pages.origins of the node"
    );
    ApiError::new(ErrorCode::CrossSite, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(hosts: &[&str], origins: &[&str], uri: &str, headers: &[(&str, &str)]) -> Option<ErrorCode> {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let listen = "127.0.0.1:1".parse().unwrap();
        let guard = PageGuard::new(listen, false, &owned(hosts), &owned(origins)).unwrap();
        let mut request = Request::builder().uri(uri);
        for header in headers {
            request = request.header(header.0, header.1);
        }
        guard.check(&request.body(()).unwrap(), false).err().map(|error| error.code)
    }

    #[test]
    fn only_nodes_for_their_own_machine_are_guarded() {
        let guard = |listen: &str, has_tokens| PageGuard::new(listen.parse().unwrap(), has_tokens, &[], &[]);
        assert!(guard("127.0.0.1:1", false).is_some() && guard("[::1]:1", false).is_some());
        assert!(guard("127.0.0.1:1", true).is_none(), "pages have no token");
        assert!(guard("0.0.0.0:1", false).is_none(), "insecure nodes have any name");
    }

    #[test]
    fn foreign_hosts_are_refused() {
        for (host, refused) in [
            ("localhost", false),
            ("LOCALHOST:9347", false),
            ("127.0.0.1", false),
            ("127.0.0.1:80", false),
            ("[::1]:80", false),
            ("[::1]", false),
            ("weir.example", false),
            ("weir.example:1", false),
            ("evil.example", true),
            ("localhost.evil.example", true),
            ("127.0.0.1.evil.example:80", true),
            ("10.0.0.1", true),
            ("evil.example:80:127.0.0.1", true),
            ("[::1]evil.example", true),
            ("", true),
        ] {
            let code = check(&["weir.example"], &[], "/", &[("host", host)]);
            assert_eq!(code, refused.then_some(ErrorCode::ForeignHost), "{host:?}");
        }
        assert_eq!(check(&[], &[], "http://evil.example/", &[]), Some(ErrorCode::ForeignHost), "in HTTP/2");
        let both = check(&[], &[], "http://localhost/", &[("host", "evil.example")]);
        assert_eq!(both, Some(ErrorCode::ForeignHost));
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let own = ("host", "localhost:9347");
        let refused = Some(ErrorCode::CrossSite);
        let page = |headers: &[(&str, &str)]| {
            let mut all = vec![own];
            all.extend_from_slice(headers);
            check(&[], &["https://ui.example"], "/", &all)
        };
        assert_eq!(page(&[]), None, "a program");
        assert_eq!(page(&[("sec-fetch-site", "none")]), None, "the address bar");
        assert_eq!(page(&[("sec-fetch-site", "same-origin")]), None);
        assert_eq!(page(&[("origin", "http://localhost:9347"), ("sec-fetch-site", "same-origin")]), None);
        assert_eq!(page(&[("origin", "http://localhost:9347")]), None, "a browser without the header");
        assert_eq!(page(&[("sec-fetch-site", "cross-site")]), refused);
        assert_eq!(page(&[("origin", "https://evil.example")]), refused);
        assert_eq!(page(&[("origin", "http://localhost:3000"), ("sec-fetch-site", "same-site")]), refused);
        assert_eq!(page(&[("origin", "null")]), refused, "a sandboxed frame");
        assert_eq!(page(&[("origin", "https://ui.example"), ("sec-fetch-site", "cross-site")]), None);
        assert_eq!(check(&[], &["*"], "/", &[own, ("sec-fetch-site", "cross-site")]), None);
    }
}
