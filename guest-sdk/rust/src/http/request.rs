//! HTTP requests.

use crate::{Element, Error, Result, Tensor};
use std::borrow::Cow;
use std::cell::OnceCell;
use wasip2::http::types::{IncomingBody, IncomingRequest, Method};
use wasip2::io::streams::StreamError;

/// Bytes of the body to read per call.
const CHUNK_BYTES: u64 = 1 << 20;

/// The request to answer. Its parts are fetched from the node on demand.
#[derive(Debug)]
pub struct Request {
    raw: IncomingRequest,
    method: OnceCell<Method>,
    target: OnceCell<String>,
}

impl Request {
    pub(crate) fn new(raw: IncomingRequest) -> Self {
        Self { raw, method: OnceCell::new(), target: OnceCell::new() }
    }

    /// Method in capitals: `GET`, `POST`, ...
    pub fn method(&self) -> &str {
        match self.method.get_or_init(|| self.raw.method()) {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Connect => "CONNECT",
            Method::Options => "OPTIONS",
            Method::Trace => "TRACE",
            Method::Patch => "PATCH",
            Method::Other(name) => name,
        }
    }

    /// Path within the function, as sent: percent-encoded, with the leading slash and without the
    /// query.
    pub fn path(&self) -> &str {
        split_target(self.target()).0
    }

    /// Query after the question mark, as sent.
    pub fn query(&self) -> Option<&str> {
        split_target(self.target()).1
    }

    /// The first value of `key` in the query, decoded.
    pub fn query_value(&self, key: &str) -> Option<Cow<'_, str>> {
        let mut pairs = form_urlencoded::parse(self.query()?.as_bytes());
        pairs.find(|(is, _)| is == key).map(|(_, value)| value)
    }

    /// The first value of the header `name`, in any case; bytes that are not UTF-8 are replaced.
    pub fn header(&self, name: &str) -> Option<String> {
        let value = self.raw.headers().get(name).into_iter().next()?;
        Some(
            String::from_utf8(value)
                .unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into_owned()),
        )
    }

    /// All headers, with names in lower case.
    pub fn headers(&self) -> Vec<(String, Vec<u8>)> {
        self.raw.headers().entries()
    }

    /// Reads the whole body into guest memory. Works once: a second call fails, as does a call
    /// after [`Self::body_tensor`].
    pub fn body(&self) -> Result<Vec<u8>> {
        let body = self.raw.consume().map_err(|()| Error::invalid("the body was read before"))?;
        let stream = body.stream().map_err(|()| Error::invalid("the body was read before"))?;
        let mut bytes = Vec::new();
        loop {
            match stream.blocking_read(CHUNK_BYTES) {
                Ok(chunk) if bytes.is_empty() => bytes = chunk,
                Ok(chunk) => bytes.extend_from_slice(&chunk),
                Err(StreamError::Closed) => break,
                Err(StreamError::LastOperationFailed(error)) => {
                    return Err(Error::new(
                        400,
                        format!("the body ended early: {}", error.to_debug_string()),
                    ));
                }
            }
        }
        drop(stream);
        drop(IncomingBody::finish(body));
        Ok(bytes)
    }

    /// Reads the body as text. The error becomes a 400 response if the body is not UTF-8.
    pub fn body_text(&self) -> Result<String> {
        String::from_utf8(self.body()?)
            .map_err(|error| Error::new(400, format!("the body is no text: {error}")))
    }

    /// Reads the body as JSON. The error becomes a 400 response if the body is not JSON or does not
    /// match `T`.
    #[cfg(feature = "json")]
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T> {
        let body = self.body()?;
        serde_json::from_slice(&body)
            .map_err(|error| Error::new(400, format!("the body is not the JSON expected: {error}")))
    }

    /// Takes the body as a tensor, without reading it into guest memory: see
    /// [`take_body`](crate::take_body).
    pub fn body_tensor<T: Element>(&self, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        crate::take_body::<T>(shape)
    }

    pub(crate) fn consume(&self) -> Result<IncomingBody, ()> {
        self.raw.consume()
    }

    fn target(&self) -> &str {
        self.target.get_or_init(|| self.raw.path_with_query().unwrap_or_default())
    }
}

/// Splits a request target into path and query.
fn split_target(target: &str) -> (&str, Option<&str>) {
    match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None if target.is_empty() => ("/", None),
        None => (target, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_splits_at_the_first_question_mark() {
        assert_eq!(split_target("/a/b"), ("/a/b", None));
        assert_eq!(split_target("/a?b=?c"), ("/a", Some("b=?c")));
        assert_eq!(split_target("/?"), ("/", Some("")));
        assert_eq!(split_target(""), ("/", None));
    }
}
