//! What a node said.

use bytes::Bytes;
use reqwest::header::HeaderMap;
use serde::de::DeserializeOwned;
use weir_types::ErrorCode;
use weir_types::api::{ERROR_CODE_HEADER, ErrorBody, REQUEST_ID_HEADER};

/// An answer, with its whole body.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// An answer that says no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The status.
    pub status: u16,
    /// The code.
    pub code: ErrorCode,
    /// What it says to people.
    pub text: String,
}

impl Answer {
    /// Read all of `response`.
    pub(crate) async fn read(response: reqwest::Response) -> reqwest::Result<Self> {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Self { status, headers, body: response.bytes().await? })
    }

    /// Whether the status says so.
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

    /// The answer itself, which must not be an error.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert!(self.is_ok(), "the node said {} {}", self.status, String::from_utf8_lossy(&self.body));
        self
    }

    /// What a refusal says. Everything that every refusal must have is checked.
    #[must_use]
    #[track_caller]
    pub fn refusal(&self) -> Refusal {
        assert!(self.status >= 400, "the node did not refuse: {self:?}");
        let body: ErrorBody = self.json();
        assert_eq!(self.header(ERROR_CODE_HEADER), Some(body.code.as_str()), "header and body differ");
        assert_eq!(self.header(REQUEST_ID_HEADER), Some(&*body.request_id), "header and body differ");
        assert!(!body.error.is_empty());
        Refusal { status: self.status, code: body.code, text: body.error }
    }

    /// The code of a refusal.
    #[must_use]
    #[track_caller]
    pub fn code(&self) -> ErrorCode {
        self.refusal().code
    }
}
