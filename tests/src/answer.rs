//! Responses of a node.

use bytes::Bytes;
use reqwest::header::HeaderMap;
use serde::de::DeserializeOwned;
use weir_types::ErrorCode;
use weir_types::api::{ERROR_CODE_HEADER, ErrorBody, REQUEST_ID_HEADER};

/// Response with its complete body.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Response headers.
    pub headers: HeaderMap,
    /// Response body.
    pub body: Bytes,
}

/// Parsed error response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorResponse {
    /// HTTP status.
    pub status: u16,
    /// Error code.
    pub code: ErrorCode,
    /// Error message.
    pub text: String,
}

impl Answer {
    /// Reads a response with its whole body.
    pub(crate) async fn read(response: reqwest::Response) -> reqwest::Result<Self> {
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        Ok(Self { status, headers, body: response.bytes().await? })
    }

    /// Whether the status is 2xx.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is not text")
    }

    /// The body as JSON.
    #[must_use]
    #[track_caller]
    pub fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in the answer {self:?}"))
    }

    /// A header as text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the response, and panics if it is an error.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert!(self.is_ok(), "the node said {} {}", self.status, String::from_utf8_lossy(&self.body));
        self
    }

    /// Parses an error response, and checks the fields and headers that every error response must
    /// have.
    #[must_use]
    #[track_caller]
    pub fn refusal(&self) -> ErrorResponse {
        assert!(self.status >= 400, "the node did not refuse: {self:?}");
        let body: ErrorBody = self.json();
        assert_eq!(self.header(ERROR_CODE_HEADER), Some(body.code.as_str()), "header and body differ");
        assert_eq!(self.header(REQUEST_ID_HEADER), Some(&*body.request_id), "header and body differ");
        assert!(!body.error.is_empty());
        ErrorResponse { status: self.status, code: body.code, text: body.error }
    }

    /// The code of an error response.
    #[must_use]
    #[track_caller]
    pub fn code(&self) -> ErrorCode {
        self.refusal().code
    }
}
