//! One HTTP/1.1 exchange on a dedicated connection.

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody};

/// Time limit of each phase of a request that sets none.
pub(crate) const PHASE_TIME_MAX: Duration = Duration::from_secs(600);

/// Drives a connection after the head of the response. The body arrives only while this future is
/// polled.
pub type ConnectionDriver = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// A response, and the connection that its body arrives on.
pub struct Exchange {
    /// The response. Redirects are responses like all others: nothing here follows them.
    pub response: Response<WasiBody>,
    /// Drives the response's body, and the rest of the request's.
    pub connection: ConnectionDriver,
}

/// A stream of bytes: TCP, or TLS over it.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for T {}

/// Sends `request` and waits for the head of the response.
pub(crate) async fn exchange(
    stream: Box<dyn ByteStream>,
    mut request: Request<WasiBody>,
    options: &RequestOptions,
) -> Result<Exchange, Error> {
    *request.uri_mut() = origin_form(request.uri())?;
    let opened = hyper::client::conn::http1::handshake::<_, WasiBody>(TokioIo::new(stream)).await;
    let opened = opened.map_err(Error::from)?;
    let mut sender = opened.0;
    let mut connection: ConnectionDriver = Box::pin(run(opened.1));
    let first_byte = options.first_byte_timeout.unwrap_or(PHASE_TIME_MAX);
    let mut answered = pin!(timeout(first_byte, sender.send_request(request)));
    let response = tokio::select! {
        biased;
        response = &mut answered => response,
        // Nothing more arrives, so that the response is either there or an error.
        ended = &mut connection => {
            ended?;
            connection = Box::pin(std::future::ready(Ok(())));
            answered.await
        }
    };
    let response = response.map_err(|_| Error::ConnectionReadTimeout)?.map_err(Error::from)?;
    let patience = options.between_bytes_timeout.unwrap_or(PHASE_TIME_MAX);
    let response = response.map(|incoming| TimedBody { incoming, patience, late: None }.boxed_unsync());
    Ok(Exchange { response, connection })
}

async fn run<T>(connection: hyper::client::conn::http1::Connection<T, WasiBody>) -> Result<(), Error>
where
    T: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    connection.await.map_err(failed)
}

fn failed(error: hyper::Error) -> Error {
    if error.is_timeout() { Error::HttpResponseTimeout } else { error.into() }
}

/// The path and query: the form in which servers, unlike proxies, expect the target.
fn origin_form(uri: &Uri) -> Result<Uri, Error> {
    let target = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    Uri::builder().path_and_query(target).build().map_err(|_| Error::HttpRequestUriInvalid)
}

/// A response's body, with a time limit for each wait.
struct TimedBody {
    incoming: Incoming,
    patience: Duration,
    /// Set while a wait is in progress.
    late: Option<Pin<Box<Sleep>>>,
}

impl Body for TimedBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(cx) {
            self.late = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(failed)));
        }
        let patience = self.patience;
        let late = self.late.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + patience)));
        ready!(late.as_mut().poll(cx));
        Poll::Ready(Some(Err(Error::ConnectionReadTimeout)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
