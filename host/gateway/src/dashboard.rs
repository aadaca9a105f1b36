//! `/ui`: the files of the dashboard. They are equal on every node and need no token; the page asks
//! for the token and calls the API with it.

use super::error::ApiError;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use weir_dashboard::{BUILD_COMMAND, DashboardFile, INDEX};
use weir_types::ErrorCode;

/// Paths of the dashboard, as the OpenAPI document names them.
pub(super) const PATHS: [&str; 3] = ["/ui", "/ui/", "/ui/{path}"];

const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
const SERVICE_WORKER_ALLOWED: HeaderName = HeaderName::from_static("service-worker-allowed");

/// Content security policy of the page: scripts, styles and requests of this node only, no frames,
/// and no markup from strings.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// Returns the path below `/ui/` of a request for the dashboard.
pub(super) fn path(path: &str) -> Option<&str> {
    match path.strip_prefix("/ui")? {
        "" | "/" => Some(INDEX),
        rest => rest.strip_prefix('/'),
    }
}

/// Serves the file at `path`.
pub(super) fn serve(path: &str, request: &Request) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let text = "this route takes only GET and HEAD; see GET /";
        let mut response = ApiError::new(ErrorCode::MethodNotAllowed, text).into_response();
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET,HEAD"));
        return response;
    }
    let mut response = match DashboardFile::find(path) {
        Some(file) => respond(file, request.headers()),
        None => return ApiError::new(ErrorCode::RouteNotFound, missing(path)).into_response(),
    };
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (OPENER_POLICY, "same-origin"),
        (RESOURCE_POLICY, "same-origin"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn missing(path: &str) -> String {
    if weir_dashboard::is_built() {
        format!("the dashboard has no file {path}; its page is at /ui")
    } else {
        format!(
            "this program was built without the dashboard; run `{BUILD_COMMAND}` in the sources (it needs Node.js and npm), and build the program again"
        )
    }
}

fn respond(file: &'static DashboardFile, headers: &HeaderMap) -> Response {
    let cache = if file.is_immutable() { "public, max-age=31536000, immutable" } else { "no-cache" };
    let common = [
        (ETAG, file.etag),
        (CACHE_CONTROL, cache),
        (VARY, "accept-encoding"),
        (CONTENT_TYPE, file.content_type),
    ];
    if is_current(file, headers) {
        return (StatusCode::NOT_MODIFIED, common).into_response();
    }
    if accepts_gzip(headers) {
        return (common, [(CONTENT_ENCODING, "gzip")], Body::from(file.packed)).into_response();
    }
    match file.unpack() {
        Ok(content) => (common, content).into_response(),
        Err(error) => ApiError::internal(&error).into_response(),
    }
}

/// Whether the client has the file already.
fn is_current(file: &DashboardFile, headers: &HeaderMap) -> bool {
    let known = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    known
        .flat_map(|value| value.split(','))
        .map(|tag| tag.trim().trim_start_matches("W/"))
        .any(|tag| tag == file.etag || tag == "*")
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    ranges.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_gzip = parts.next().is_some_and(|coding| coding.eq_ignore_ascii_case("gzip"));
        let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok()).unwrap_or(1.0_f32);
        is_gzip && quality > 0.0
    })
}

/// Removes headers with which the answer of a function would reach the dashboard, whose origin it
/// shares: a service worker for paths outside of the function, and an opener policy that keeps
/// windows of the dashboard connected to a page of the function.
pub(super) fn confine(headers: &mut HeaderMap) {
    headers.remove(SERVICE_WORKER_ALLOWED);
    headers.remove(OPENER_POLICY);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &HeaderName, values: &[&'static str]) -> HeaderMap {
        values.iter().map(|value| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    fn get(path: &str, headers: HeaderMap) -> Response {
        let mut request = Request::new(Body::empty());
        *request.headers_mut() = headers;
        serve(path, &request)
    }

    #[test]
    fn only_paths_below_ui_are_the_dashboards() {
        assert_eq!(path("/ui"), Some(INDEX));
        assert_eq!(path("/ui/"), Some(INDEX));
        assert_eq!(path("/ui/assets/a.js"), Some("assets/a.js"));
        assert_eq!([path("/uix"), path("/"), path("/fn/ui/")], [None; 3]);
    }

    #[test]
    fn gzip_is_sent_only_to_clients_that_accept_it() {
        for (values, expected) in [
            (&["gzip, deflate, br"][..], true),
            (&["br", "GZIP;q=0.5"], true),
            (&["gzip;q=0"], false),
            (&["br"], false),
            (&["identity"], false),
            (&[], false),
        ] {
            assert_eq!(accepts_gzip(&headers(&ACCEPT_ENCODING, values)), expected, "{values:?}");
        }
    }

    #[test]
    fn unknown_file_is_refused_with_advice() {
        let response = get("no-such-file", HeaderMap::new());
        let error = response.extensions().get::<ApiError>().unwrap();
        assert_eq!(error.code, ErrorCode::RouteNotFound);
        let advice = if weir_dashboard::is_built() { "its page is at /ui" } else { "cargo xtask ui" };
        assert!(error.text.contains(advice), "{}", error.text);
    }

    #[test]
    fn page_has_strict_headers_and_is_revalidated() {
        let Some(page) = DashboardFile::find(INDEX) else {
            return eprintln!("skipped: the dashboard is not built; `{BUILD_COMMAND}` builds it");
        };
        let response = get(INDEX, headers(&ACCEPT_ENCODING, &["gzip"]));
        let sent = response.headers();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(sent[CONTENT_ENCODING], "gzip");
        assert!(sent[CONTENT_SECURITY_POLICY].to_str().unwrap().contains("frame-ancestors 'none'"));
        assert_eq!(sent[X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert_eq!(sent[OPENER_POLICY], "same-origin");
        assert_eq!(sent[CACHE_CONTROL], "no-cache");
        let again = get(INDEX, headers(&IF_NONE_MATCH, &["\"x\"", page.etag]));
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert!(again.headers().contains_key(CONTENT_SECURITY_POLICY));
        assert!(!get(INDEX, HeaderMap::new()).headers().contains_key(CONTENT_ENCODING));
    }
}
