//! Tokens of web pages. A page cannot set headers of a WebSocket, except for the subprotocols that
//! it offers: `new WebSocket(url, ["weir", "weir.bearer.TOKEN"])`.

use super::handshake::wants_websocket;
use axum::extract::Request;
use http::HeaderValue;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use weir_call::headers::TOKEN;

/// Prefix of the subprotocol with a token.
const BEARER: &str = "weir.bearer.";
/// The subprotocol that the node chooses if the function chooses none. Browsers close a WebSocket
/// whose server chooses none of the offered subprotocols, and an answer must not have the token.
pub(super) const WEIR: &str = "weir";

/// Request extension: the client offers the node's own subprotocol.
#[derive(Debug, Clone, Copy)]
pub(super) struct OffersWeir;

/// Moves a token from the offered subprotocols to its own header, unless the request has a token.
/// The function sees neither the token nor the node's own subprotocol, even if the request opens no
/// WebSocket: its token is ignored then.
pub(crate) fn lift_token(request: &mut Request) {
    let headers = request.headers();
    if !headers.contains_key(SEC_WEBSOCKET_PROTOCOL) {
        return;
    }
    let is_websocket = wants_websocket(request);
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let offered: Vec<String> = offered
        .flat_map(|names| names.split(',').map(|name| name.trim().to_owned()))
        .filter(|name| !name.is_empty())
        .collect();
    let token = offered.iter().find_map(|name| name.strip_prefix(BEARER)).map(str::to_owned);
    let offers_weir = offered.iter().any(|name| name == WEIR);
    let is_own = |name: &String| name == WEIR || name.starts_with(BEARER);
    let others = offered.into_iter().filter(|name| !is_own(name)).collect::<Vec<_>>().join(", ");
    let headers = request.headers_mut();
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if let Some(others) = HeaderValue::try_from(others).ok().filter(|others| !others.is_empty()) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, others);
    }
    if is_websocket
        && !headers.contains_key(TOKEN)
        && !headers.contains_key(AUTHORIZATION)
        && let Some(mut token) = token.and_then(|token| HeaderValue::try_from(token).ok())
    {
        token.set_sensitive(true);
        headers.insert(TOKEN, token);
    }
    if offers_weir {
        request.extensions_mut().insert(OffersWeir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use http::header::UPGRADE;

    fn lifted(offered: &[&str], authorization: Option<&str>) -> (Option<String>, Option<String>, bool) {
        let mut request = Request::builder().header(UPGRADE, "websocket");
        for value in offered {
            request = request.header(SEC_WEBSOCKET_PROTOCOL, *value);
        }
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let mut request = request.body(Body::empty()).unwrap();
        lift_token(&mut request);
        let header = |name| Some(request.headers().get(name)?.to_str().unwrap().to_owned());
        let offers_weir = request.extensions().get::<OffersWeir>().is_some();
        (header(TOKEN), header(SEC_WEBSOCKET_PROTOCOL), offers_weir)
    }

    #[test]
    fn token_moves_to_its_header_and_other_subprotocols_stay() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(lifted(&["weir, weir.bearer.abc"], None), (text("abc"), None, true));
        assert_eq!(lifted(&["chat,weir.bearer.a", "v2"], None), (text("a"), text("chat, v2"), false));
        assert_eq!(lifted(&["chat"], None), (None, text("chat"), false));
        assert_eq!(lifted(&[], None), (None, None, false));
        let (token, offered, _) = lifted(&["weir.bearer.abc, chat"], Some("Bearer other"));
        assert_eq!((token, offered), (None, text("chat")), "the function must not see the token");
    }

    #[test]
    fn other_requests_lose_the_token() {
        let mut request = Request::new(Body::empty());
        request
            .headers_mut()
            .insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("chat, weir.bearer.abc"));
        lift_token(&mut request);
        assert_eq!(request.headers()[SEC_WEBSOCKET_PROTOCOL], "chat");
        assert!(!request.headers().contains_key(TOKEN), "the request opens no WebSocket");
    }
}
