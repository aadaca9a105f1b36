//! HTTP responses.

use crate::websocket::{MEDIA_TYPE, WebSocket};
use crate::{Error, Request, Tensor, reply_with};
use std::borrow::Cow;
use wasip2::http::types::{
    ErrorCode, Fields, IncomingBody, OutgoingBody, OutgoingResponse, ResponseOutparam,
};
use wasip2::io::streams::{InputStream, OutputStream, StreamError};

/// Largest write that `blocking-write-and-flush` accepts.
const BLOCKING_WRITE_BYTES: usize = 4096;

/// A response: status, headers and body.
///
/// ```
/// # use weir::Response;
/// let created = Response::text("made it\n").with_status(201).with_header("location", "/things/7");
/// let gone = Response::new(410);
/// ```
#[derive(Debug)]
pub struct Response {
    status: u16,
    headers: Vec<(String, Vec<u8>)>,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Bytes(Cow<'static, [u8]>),
    OnNode(Box<dyn OnNode>),
    WebSocket(Box<dyn ServeSocket>),
}

/// The handler of a WebSocket, with the messages of the client. It is a trait object, so that
/// functions without WebSockets do not contain their code.
trait ServeSocket: std::fmt::Debug {
    /// Runs the handler until the WebSocket is closed.
    fn serve(self: Box<Self>, output: OutputStream);
}

struct SocketHandler<F> {
    input: (InputStream, IncomingBody),
    handler: F,
}

impl<F> std::fmt::Debug for SocketHandler<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SocketHandler").finish_non_exhaustive()
    }
}

impl<F: FnOnce(&mut WebSocket) -> crate::Result<()>> ServeSocket for SocketHandler<F> {
    fn serve(self: Box<Self>, output: OutputStream) {
        let mut socket = WebSocket::new(self.input, output);
        let ended = (self.handler)(&mut socket);
        let is_open = socket.closed().is_none();
        // Fails if the client has closed the WebSocket meanwhile.
        let _ = match ended {
            Ok(()) if is_open => socket.close(1000, ""),
            Err(error) if is_open => {
                eprintln!("the WebSocket is closed because of an error: {error}");
                socket.close(1011, "")
            }
            _ => Ok(()),
        };
    }
}

/// A body whose bytes are in the node's memory, such as a tensor. It is a trait object, so that
/// functions without such responses do not import the node's tensor interface.
trait OnNode: std::fmt::Debug {
    /// Sets the tensor as the body of the response.
    fn attach(&self) -> crate::Result<()>;
}

impl OnNode for Tensor {
    fn attach(&self) -> crate::Result<()> {
        reply_with(self)
    }
}

impl Response {
    /// Creates a response with a status and an empty body.
    #[must_use]
    pub fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Body::Bytes(Cow::Borrowed(&[])) }
    }

    /// Creates a UTF-8 text response.
    pub fn text(text: impl Into<Cow<'static, str>>) -> Self {
        let bytes = match text.into() {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        };
        Self::with_body("text/plain; charset=utf-8", Body::Bytes(bytes))
    }

    /// Creates a binary response of type `application/octet-stream`. Set another `content-type`
    /// with [`Self::with_header`].
    pub fn bytes(bytes: impl Into<Cow<'static, [u8]>>) -> Self {
        Self::with_body("application/octet-stream", Body::Bytes(bytes.into()))
    }

    /// Creates a JSON response. Fails if `value` cannot be serialised as JSON: for example, a map
    /// whose keys are not strings.
    #[cfg(feature = "json")]
    pub fn json<T: serde::Serialize + ?Sized>(value: &T) -> crate::Result<Self> {
        let bytes = serde_json::to_vec(value)
            .map_err(|error| Error::new(500, format!("the answer is no JSON: {error}")))?;
        Ok(Self::with_body("application/json", Body::Bytes(bytes.into())))
    }

    /// Creates a response with the bytes of a tensor, which stay on the node and do not enter guest
    /// memory.
    #[must_use]
    pub fn tensor(tensor: Tensor) -> Self {
        Self::with_body("application/octet-stream", Body::OnNode(Box::new(tensor)))
    }

    /// Accepts a WebSocket, and serves it with `handler` until the handler returns: see
    /// [`websocket`](crate::websocket). An error of the handler closes the WebSocket with code 1011.
    ///
    /// Fails if the request does not open a WebSocket; the error becomes a 426 response.
    pub fn websocket(
        request: Request,
        handler: impl FnOnce(&mut WebSocket) -> crate::Result<()> + 'static,
    ) -> crate::Result<Self> {
        let input = WebSocket::input(&request)?;
        Ok(Self::with_body(MEDIA_TYPE, Body::WebSocket(Box::new(SocketHandler { input, handler }))))
    }

    /// Sets the status.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Sets a header, replacing headers of the same name. A name or value that HTTP does not allow
    /// turns the response into a 500.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        let name = name.into();
        self.headers.retain(|(is, _)| !is.eq_ignore_ascii_case(&name));
        self.headers.push((name, value.into()));
        self
    }

    fn with_body(content_type: &str, body: Body) -> Self {
        Self { status: 200, headers: vec![("content-type".to_owned(), content_type.into())], body }
    }

    /// Sends the response. If the status or headers are invalid, reports an internal error to the
    /// node instead. Writes the reason of a failure to standard error.
    pub(crate) fn send(self, out: ResponseOutparam) {
        if let Err(why) = self.try_send(out) {
            eprintln!("the answer was not sent whole: {why}");
        }
    }

    fn try_send(mut self, out: ResponseOutparam) -> Result<(), String> {
        if let Body::OnNode(body) = &self.body
            && let Err(error) = body.attach()
        {
            self = error.into();
        }
        if let Body::Bytes(bytes) = &self.body {
            let length = bytes.len().to_string();
            self = self.with_header("content-length", length);
        }
        let response = match self.head() {
            Ok(response) => response,
            Err(why) => {
                ResponseOutparam::set(out, Err(ErrorCode::InternalError(Some(why.clone()))));
                return Err(why);
            }
        };
        let body = response.body();
        ResponseOutparam::set(out, Ok(response));
        let body = body.map_err(|()| "it has no body")?;
        match self.body {
            Body::Bytes(bytes) if !bytes.is_empty() => {
                let stream = body.write().map_err(|()| "its body was taken")?;
                write(&stream, &bytes).map_err(|error| error.to_string())?;
            }
            Body::WebSocket(socket) => socket.serve(body.write().map_err(|()| "its body was taken")?),
            Body::Bytes(_) | Body::OnNode(_) => {}
        }
        OutgoingBody::finish(body, None).map_err(|error| error.to_string())
    }

    fn head(&self) -> Result<OutgoingResponse, String> {
        let headers =
            Fields::from_list(&self.headers).map_err(|error| format!("a header is not allowed: {error}"))?;
        let response = OutgoingResponse::new(headers);
        if self.status != 200 {
            response.set_status_code(self.status).map_err(|()| format!("{} is no status", self.status))?;
        }
        Ok(response)
    }
}

/// Writes a small body with a single host call, and a larger one in pieces as the node accepts
/// them.
pub(crate) fn write(stream: &OutputStream, mut bytes: &[u8]) -> Result<(), StreamError> {
    if bytes.len() <= BLOCKING_WRITE_BYTES {
        return stream.blocking_write_and_flush(bytes);
    }
    while !bytes.is_empty() {
        let room = usize::try_from(stream.check_write()?).unwrap_or(usize::MAX).min(bytes.len());
        if room == 0 {
            stream.subscribe().block();
            continue;
        }
        let (now, later) = bytes.split_at(room);
        stream.write(now)?;
        bytes = later;
    }
    stream.blocking_flush()
}

impl From<Error> for Response {
    /// Responds with the error's status and text. A 503 asks the client to retry.
    fn from(error: Error) -> Self {
        let response = Self::text(format!("{error}\n")).with_status(error.status());
        if matches!(error, Error::Unavailable(_) | Error::ResourceExhausted(_)) {
            return response.with_header("retry-after", "1");
        }
        response
    }
}

impl<T: Into<Self>, E: Into<Self>> From<Result<T, E>> for Response {
    fn from(result: Result<T, E>) -> Self {
        result.map_or_else(Into::into, Into::into)
    }
}

impl From<&'static str> for Response {
    fn from(text: &'static str) -> Self {
        Self::text(text)
    }
}

impl From<String> for Response {
    fn from(text: String) -> Self {
        Self::text(text)
    }
}

impl From<Vec<u8>> for Response {
    fn from(bytes: Vec<u8>) -> Self {
        Self::bytes(bytes)
    }
}

impl From<Tensor> for Response {
    fn from(tensor: Tensor) -> Self {
        Self::tensor(tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(response: Response) -> (u16, Vec<(String, String)>, Vec<u8>) {
        let headers =
            response.headers.into_iter().map(|(name, value)| (name, String::from_utf8(value).unwrap()));
        let Body::Bytes(body) = response.body else { panic!("it is no bytes") };
        (response.status, headers.collect(), body.into_owned())
    }

    #[test]
    fn with_header_replaces_headers_of_the_same_name() {
        let response = Response::text("<p>").with_header("Content-Type", "text/html").with_status(203);
        assert_eq!(parts(response), (203, vec![("Content-Type".into(), "text/html".into())], b"<p>".into()));
    }

    #[test]
    fn results_convert_to_responses() {
        let good: Result<&'static str, Error> = Ok("yes");
        assert_eq!(parts(good.into()).0, 200);
        let bad: Result<Response, Error> = Err(Error::new(418, "a teapot"));
        let (status, _, body) = parts(bad.into());
        assert_eq!((status, body.as_slice()), (418, b"a teapot\n".as_slice()));
        let (status, headers, _) = parts(Error::Unavailable("soon".into()).into());
        assert_eq!(status, 503);
        assert!(headers.contains(&("retry-after".into(), "1".into())));
    }

    #[cfg(feature = "json")]
    #[test]
    fn json_response_serialises_or_fails() {
        let (_, headers, body) = parts(Response::json(&[1, 2]).unwrap());
        assert_eq!((body.as_slice(), headers[0].1.as_str()), (b"[1,2]".as_slice(), "application/json"));
        assert_eq!(Response::json(&std::collections::BTreeMap::from([([1], 2)])).unwrap_err().status(), 500);
    }
}
