//! Request ids in logs, errors and responses.

use axum::response::Response;
use http::{HeaderMap, HeaderValue};
use std::sync::Arc;
use weir_call::headers::REQUEST_ID;
use weir_call::next_invocation_id;
use weir_types::InvocationId;

/// Length limit of a client's id.
const LEN_MAX: usize = 128;

/// Request id: the client's `weir-request-id`, or a generated id.
#[derive(Debug, Clone)]
pub(crate) struct RequestId {
    pub invocation: InvocationId,
    text: Arc<str>,
    header: HeaderValue,
}

impl RequestId {
    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let invocation = next_invocation_id();
        let given = headers.get(REQUEST_ID).filter(|value| !value.is_empty() && value.len() <= LEN_MAX);
        if let Some(header) = given
            && let Ok(text) = header.to_str()
        {
            return Self { invocation, text: text.into(), header: header.clone() };
        }
        let digits = invocation.digits();
        // Hexadecimal digits are always valid text, and a valid header value.
        let text = std::str::from_utf8(&digits).unwrap_or("-");
        let header = HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("-"));
        Self { invocation, text: text.into(), header }
    }

    /// Whether the client chose the id.
    pub(crate) fn is_given(&self) -> bool {
        self.text.as_bytes() != self.invocation.digits()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn shared(&self) -> Arc<str> {
        self.text.clone()
    }

    pub(crate) fn header(&self) -> HeaderValue {
        self.header.clone()
    }

    /// Adds the id to the response headers.
    pub(crate) fn echo(self, response: &mut Response) {
        response.headers_mut().insert(REQUEST_ID, self.header);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_client_request_id_is_kept() {
        let id = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(value).unwrap());
            RequestId::from_headers(&headers).as_str().to_owned()
        };
        assert_eq!(id(b"abc-1"), "abc-1");
        assert_eq!(id(b"").len(), 16);
        assert_eq!(id(&[b'x'; 129]).len(), 16);
        assert_eq!(id(b"\xff").len(), 16);
        assert_ne!(id(b""), id(b""));
    }
}
