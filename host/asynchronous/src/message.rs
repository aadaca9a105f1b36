//! Blob format of a request or response: one line of JSON with everything except the body, then the
//! body.
//!
//! The line contains the invocation's id, so that equal requests are distinct blobs, each deleted
//! with its invocation.

use super::AsyncError;
use axum::body::Body;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio_util::io::ReaderStream;
use weir_types::AsyncId;

/// Length limit of the line: above any head that the server accepts, and above any that a guest may
/// send.
pub(super) const HEAD_BYTES_MAX: u64 = 4 << 20;
/// Bytes of a body read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Headers that describe a connection or the transfer of a body; they are not stored.
const OF_CONNECTIONS: [HeaderName; 8] = [
    CONNECTION,
    CONTENT_LENGTH,
    EXPECT,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// A request without its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RequestHead {
    pub(super) id: AsyncId,
    pub(super) method: String,
    pub(super) uri: String,
    pub(super) headers: StoredHeaders,
    /// Callback address for the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) callback: Option<String>,
}

/// A response without its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ResponseHead {
    pub(super) id: AsyncId,
    /// Attempt that gave the response. It makes equal responses of two attempts distinct blobs,
    /// since only one of them is kept.
    pub(super) attempt: u32,
    pub(super) status: u16,
    pub(super) headers: StoredHeaders,
}

/// Headers as received. Each byte of a value becomes one character, so that JSON can represent any
/// value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct StoredHeaders(Vec<(String, String)>);

impl RequestHead {
    /// Decodes the method, the target and the headers.
    pub(super) fn parts(&self) -> Result<(Method, Uri, HeaderMap), AsyncError> {
        let wrong =
            |error: &dyn std::fmt::Display| AsyncError::Blob(std::io::Error::other(error.to_string()).into());
        let method = Method::from_bytes(self.method.as_bytes()).map_err(|error| wrong(&error))?;
        let uri: Uri = self.uri.parse().map_err(|error| wrong(&error))?;
        Ok((method, uri, self.headers.map()))
    }
}

impl ResponseHead {
    /// Decodes the status and the headers.
    pub(super) fn parts(&self) -> (StatusCode, HeaderMap) {
        (StatusCode::from_u16(self.status).unwrap_or(StatusCode::OK), self.headers.map())
    }
}

impl StoredHeaders {
    pub(super) fn from_map(headers: &HeaderMap) -> Self {
        let kept = headers.iter().filter(|(name, _)| !OF_CONNECTIONS.contains(name));
        let text = |value: &HeaderValue| value.as_bytes().iter().map(|byte| char::from(*byte)).collect();
        Self(kept.map(|(name, value)| (name.as_str().to_owned(), text(value))).collect())
    }

    /// The number of headers.
    #[cfg(any(test, fuzzing))]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Decodes the headers, and skips invalid ones. All headers from [`from_map`](Self::from_map)
    /// are valid.
    fn map(&self) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(self.0.len());
        for (name, text) in &self.0 {
            let bytes: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(c).ok()).collect();
            let value = bytes.and_then(|bytes| HeaderValue::from_bytes(&bytes).ok());
            if let (Ok(name), Some(value)) = (HeaderName::from_bytes(name.as_bytes()), value) {
                headers.append(name, value);
            }
        }
        headers
    }
}

/// Encodes a head as the line before the body.
pub(super) fn line(head: &impl Serialize) -> Bytes {
    let mut line = super::record::encode(head);
    line.push(b'\n');
    line.into()
}

/// A blob opened for reading.
pub(super) struct Message<Head> {
    pub(super) head: Head,
    pub(super) body_bytes: u64,
    body: BufReader<tokio::fs::File>,
}

impl<Head: DeserializeOwned> Message<Head> {
    /// Reads the head of the blob at `path`.
    pub(super) async fn open(path: &Path) -> Result<Self, AsyncError> {
        let damaged = |why: &str| AsyncError::Blob(std::io::Error::other(why.to_owned()).into());
        let file = tokio::fs::File::open(path).await.map_err(AsyncError::io)?;
        let bytes = file.metadata().await.map_err(AsyncError::io)?.len();
        let mut body = BufReader::with_capacity(PIECE_BYTES, file);
        let mut line = Vec::new();
        let read = (&mut body).take(HEAD_BYTES_MAX).read_until(b'\n', &mut line).await;
        let read = read.map_err(AsyncError::io)? as u64;
        if line.last() != Some(&b'\n') {
            return Err(damaged("a kept request or answer has no head"));
        }
        let head = serde_json::from_slice(&line).map_err(|error| damaged(&error.to_string()))?;
        Ok(Self { head, body_bytes: bytes.saturating_sub(read), body })
    }

    fn body(self) -> Body {
        Body::from_stream(ReaderStream::with_capacity(self.body, PIECE_BYTES))
    }
}

impl Message<RequestHead> {
    /// Rebuilds the request.
    pub(super) fn request(self) -> Result<http::Request<Body>, AsyncError> {
        let (method, uri, mut headers) = self.head.parts()?;
        headers.insert(CONTENT_LENGTH, self.body_bytes.into());
        let mut request = http::Request::new(self.body());
        (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) = (method, uri, headers);
        Ok(request)
    }
}

impl Message<ResponseHead> {
    /// Rebuilds the response.
    pub(super) fn response(self) -> http::Response<Body> {
        let (status, mut headers) = self.head.parts();
        headers.insert(CONTENT_LENGTH, self.body_bytes.into());
        let mut response = http::Response::new(self.body());
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use proptest::prelude::*;

    async fn kept(head: &RequestHead, body: &[u8]) -> Message<RequestHead> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blob");
        std::fs::write(&path, [&line(head)[..], body].concat()).unwrap();
        Message::open(&path).await.unwrap()
    }

    proptest! {
        #[test]
        fn request_round_trips_through_a_blob(
            values in proptest::collection::vec("[\\t -~\\u{80}-\\u{ff}]{0,20}", 0..5), body: Vec<u8>,
        ) {
            let mut headers = HeaderMap::new();
            for value in &values {
                let bytes: Vec<u8> = value.chars().map(|c| u8::try_from(c).unwrap()).collect();
                headers.append("x-any", HeaderValue::from_bytes(&bytes).unwrap());
            }
            headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            let head = RequestHead {
                id: AsyncId::new(7, 7),
                method: "PUT".into(),
                uri: "/fn/f/a%20b?c=d".into(),
                headers: StoredHeaders::from_map(&headers),
                callback: None,
            };
            tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
                let message = kept(&head, &body).await;
                assert_eq!(message.head, head);
                let request = message.request().unwrap();
                assert_eq!((request.method().as_str(), request.uri().to_string()), ("PUT", head.uri.clone()));
                assert!(!request.headers().contains_key(TRANSFER_ENCODING));
                assert_eq!(request.headers()[CONTENT_LENGTH], body.len().to_string());
                assert!(request.headers().get_all("x-any").iter().eq(headers.get_all("x-any")));
                assert_eq!(request.into_body().collect().await.unwrap().to_bytes(), body);
            });
        }
    }

    #[tokio::test]
    async fn malformed_blob_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blob");
        for bad in ["", "{}", "{}\n", "nonsense\nbody"] {
            std::fs::write(&path, bad).unwrap();
            assert!(Message::<RequestHead>::open(&path).await.is_err(), "{bad:?}");
        }
    }
}
