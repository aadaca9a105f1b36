//! The opening handshake (RFC 6455, section 4.2).

use super::OverWebSocket;
use super::token::{OffersWeir, WEIR};
use crate::error::ApiError;
use crate::prefer::PreferHeader;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use hyper::upgrade::OnUpgrade;
use ring::digest;
use weir_call::websocket::MEDIA_TYPE;
use weir_types::ErrorCode;

/// Appended to the client's key (RFC 6455, section 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The only version of the protocol.
const VERSION: HeaderValue = HeaderValue::from_static("13");
/// Length of the client's key, in bytes.
const KEY_BYTES: usize = 16;

/// A client's valid request to open a WebSocket.
pub(crate) struct Offer {
    upgrade: OnUpgrade,
    accept: HeaderValue,
    protocols: Vec<String>,
    offers_weir: bool,
}

/// Whether the request asks for a WebSocket. Requests of other versions and methods are ordinary
/// calls, whose `upgrade` is ignored.
pub(super) fn wants_websocket<B>(request: &http::Request<B>) -> bool {
    request.method() == Method::GET
        && request.version() == Version::HTTP_11
        && has_word(request.headers(), &UPGRADE, "websocket")
}

/// Whether a header, which is a list, has a word in any case.
fn has_word(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|found| found.trim().eq_ignore_ascii_case(word))
}

impl Offer {
    /// Takes the offer of a WebSocket from a request; `None` for ordinary requests. The error is the
    /// response to an invalid handshake.
    pub(crate) fn take(request: &mut Request) -> Result<Option<Self>, Box<Response>> {
        if !wants_websocket(request) {
            return Ok(None);
        }
        // Stored requests, which run later, have no connection.
        let Some(upgrade) = request.extensions_mut().remove::<OnUpgrade>() else { return Ok(None) };
        // The check removes the header, so it works on a copy.
        let is_asynchronous = !matches!(PreferHeader::take(&mut request.headers().clone()), Ok(None));
        let headers = request.headers();
        if !has_word(headers, &CONNECTION, "upgrade") {
            return Err(invalid("the handshake of a WebSocket has `connection: upgrade`"));
        }
        if headers.get(SEC_WEBSOCKET_VERSION) != Some(&VERSION) {
            let mut refusal = invalid("the node speaks version 13 of WebSocket; set sec-websocket-version");
            refusal.headers_mut().insert(SEC_WEBSOCKET_VERSION, VERSION);
            return Err(refusal);
        }
        if headers.contains_key(TRANSFER_ENCODING)
            || headers.get(CONTENT_LENGTH).is_some_and(|length| length.as_bytes() != b"0")
        {
            return Err(invalid("the handshake of a WebSocket has no body: leave out content-length"));
        }
        if is_asynchronous {
            return Err(invalid("a WebSocket cannot be asynchronous: leave out `prefer: respond-async`"));
        }
        let key = headers.get(SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes);
        let key = key.filter(|key| STANDARD.decode(key).is_ok_and(|bytes| bytes.len() == KEY_BYTES));
        let accept = key.map(accept_of).and_then(|accept| HeaderValue::try_from(accept).ok());
        let Some(accept) = accept else {
            return Err(invalid("sec-websocket-key has 16 bytes in base64"));
        };
        let protocols =
            headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
        let protocols = protocols.flat_map(|names| names.split(',').map(|name| name.trim().to_owned()));
        let protocols = protocols.filter(|name| !name.is_empty()).collect();
        let offers_weir = request.extensions_mut().remove::<OffersWeir>().is_some();
        Ok(Some(Self { upgrade, accept, protocols, offers_weir }))
    }

    /// Makes the head that the function sees.
    pub(super) fn rewrite(&self, head: &mut http::request::Parts) {
        for name in [
            CONNECTION,
            UPGRADE,
            SEC_WEBSOCKET_KEY,
            SEC_WEBSOCKET_VERSION,
            SEC_WEBSOCKET_EXTENSIONS,
            CONTENT_LENGTH,
        ] {
            head.headers.remove(name);
        }
        head.headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        head.extensions.insert(OverWebSocket);
    }

    /// The response to the handshake, with the head of a function that accepts.
    pub(super) fn accept(&self, mut head: http::response::Parts) -> Result<Response, ApiError> {
        let chosen = head.headers.remove(SEC_WEBSOCKET_PROTOCOL);
        let is_offered = |chosen: &HeaderValue| {
            self.protocols.iter().any(|offered| offered.as_bytes() == chosen.as_bytes())
        };
        if let Some(chosen) = chosen.as_ref().filter(|chosen| !is_offered(chosen)) {
            let text =
                format!("the function chose the subprotocol {chosen:?}, which the client did not offer");
            return Err(ApiError::new(ErrorCode::GuestError, text));
        }
        for name in [CONTENT_TYPE, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION, SEC_WEBSOCKET_EXTENSIONS] {
            head.headers.remove(name);
        }
        let chosen = chosen.or_else(|| self.offers_weir.then(|| HeaderValue::from_static(WEIR)));
        head.headers.extend(chosen.map(|chosen| (SEC_WEBSOCKET_PROTOCOL, chosen)));
        head.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        head.headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        head.headers.insert(SEC_WEBSOCKET_ACCEPT, self.accept.clone());
        head.status = StatusCode::SWITCHING_PROTOCOLS;
        Ok(Response::from_parts(head, Body::empty()))
    }

    /// The connection, once the response is sent.
    pub(super) fn into_upgrade(self) -> OnUpgrade {
        self.upgrade
    }
}

fn accept_of(key: &[u8]) -> String {
    // The protocol prescribes SHA-1, as a check that the server speaks it.
    let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &[key, GUID].concat());
    STANDARD.encode(hash)
}

fn invalid(text: &str) -> Box<Response> {
    Box::new(ApiError::new(ErrorCode::InvalidRequest, text).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: [(HeaderName, &str); 4] = [
        (CONNECTION, "keep-alive, Upgrade"),
        (UPGRADE, "WebSocket"),
        (SEC_WEBSOCKET_VERSION, "13"),
        (SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    fn request(changes: &[(HeaderName, &'static str)]) -> Request {
        let mut request = Request::new(Body::empty());
        for (name, value) in VALID.iter().chain(changes) {
            request.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        request.extensions_mut().insert(hyper::upgrade::on(http::Request::new(())));
        request
    }

    fn refusal(changes: &[(HeaderName, &'static str)]) -> Option<Box<Response>> {
        Offer::take(&mut request(changes)).err()
    }

    #[test]
    fn accept_is_that_of_the_specification() {
        assert_eq!(accept_of(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn invalid_handshakes_are_refused() {
        assert!(refusal(&[]).is_none());
        for bad in [
            (CONNECTION, "keep-alive"),
            (SEC_WEBSOCKET_VERSION, "8"),
            (SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZQ=="),
            (SEC_WEBSOCKET_KEY, "not base64, at all"),
            (weir_call::headers::PREFER, "respond-async"),
            (weir_call::headers::PREFER, "respond-async;x"),
            (weir_call::headers::PREFER, "wait=1, respond-async=\"\""),
            (weir_call::headers::CALLBACK, "http://127.0.0.1:1/"),
            (CONTENT_LENGTH, "5"),
            (TRANSFER_ENCODING, "chunked"),
        ] {
            let refusal = refusal(std::slice::from_ref(&bad)).unwrap();
            assert_eq!(refusal.status(), StatusCode::BAD_REQUEST, "{bad:?}");
            let is_version = bad.0 == SEC_WEBSOCKET_VERSION;
            assert_eq!(refusal.headers().contains_key(SEC_WEBSOCKET_VERSION), is_version, "{bad:?}");
        }
    }

    #[test]
    fn ordinary_requests_offer_no_websocket() {
        let mut post = request(&[]);
        *post.method_mut() = Method::POST;
        let mut h2 = request(&[]);
        *h2.version_mut() = Version::HTTP_2;
        let mut stored = request(&[]);
        stored.extensions_mut().remove::<OnUpgrade>();
        for mut other in [post, h2, stored, request(&[(UPGRADE, "h2c")])] {
            assert!(Offer::take(&mut other).unwrap().is_none(), "{other:?}");
        }
    }

    #[test]
    fn only_offered_subprotocols_can_be_chosen() {
        let chosen = |offered: &'static str, chosen: Option<&'static str>, offers_weir: bool| {
            let mut request = request(&[(SEC_WEBSOCKET_PROTOCOL, offered)]);
            if offers_weir {
                request.extensions_mut().insert(OffersWeir);
            }
            let offer = Offer::take(&mut request).unwrap().unwrap();
            let mut head = Response::new(()).into_parts().0;
            head.headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
            head.headers.extend(chosen.map(|name| (SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(name))));
            let response = offer.accept(head).map_err(|error| error.code)?;
            assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
            assert!(!response.headers().contains_key(CONTENT_TYPE));
            let chosen = response.headers().get(SEC_WEBSOCKET_PROTOCOL);
            Ok::<_, ErrorCode>(chosen.map(|name| name.to_str().unwrap().to_owned()))
        };
        assert_eq!(chosen("a, b", Some("b"), false), Ok(Some("b".to_owned())));
        assert_eq!(chosen("a, b", None, false), Ok(None));
        assert_eq!(chosen("a, b", None, true), Ok(Some("weir".to_owned())));
        assert_eq!(chosen("a, b", Some("c"), true), Err(ErrorCode::GuestError));
    }

    #[test]
    fn function_sees_no_headers_of_the_handshake() {
        let mut request = request(&[(SEC_WEBSOCKET_PROTOCOL, "chat"), (SEC_WEBSOCKET_EXTENSIONS, "x")]);
        let offer = Offer::take(&mut request).unwrap().unwrap();
        let mut head = request.into_parts().0;
        offer.rewrite(&mut head);
        let names: Vec<&str> = head.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        assert_eq!(head.headers[CONTENT_TYPE], MEDIA_TYPE);
        assert_eq!(head.headers[SEC_WEBSOCKET_PROTOCOL], "chat");
    }
}
