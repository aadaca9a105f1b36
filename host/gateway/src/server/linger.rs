//! Closes a connection so that the client can still read its response.

use super::connection::ConnectionState;
use rustix::net::sockopt::set_tcp_user_timeout;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// Bytes that a client may still send after the node has closed its side.
const BYTES_MAX: usize = 4 << 20;
/// Time that a client may still send after the node has closed its side.
const TIME_MAX: Duration = Duration::from_secs(2);

/// Connection that closes in two steps: first the node's sending side, then the connection, after
/// the node has read the rest of the client's bytes. If the node closed the connection with unread
/// bytes, the client's kernel would discard the response that explains the rejection.
pub(super) struct Linger {
    stream: TcpStream,
    connection: ConnectionState,
    closing: Option<Closing>,
    /// Whether the system notices the loss of the client of an upgraded connection.
    has_timeout: bool,
}

struct Closing {
    bytes_left: usize,
    timeout: Pin<Box<Sleep>>,
}

impl Linger {
    pub(super) fn new(stream: TcpStream, connection: ConnectionState) -> Self {
        Self { stream, connection, closing: None, has_timeout: false }
    }

    pub(super) fn tcp(&self) -> &TcpStream {
        &self.stream
    }

    /// Lets the system end an upgraded connection whose client has vanished. It would send bytes
    /// again for many minutes, while the node may read nothing.
    fn set_timeout(&mut self) {
        let Some(lost_after) = self.connection.lost_after() else { return };
        self.has_timeout = true;
        let lost_after_ms = u32::try_from(lost_after.as_millis()).unwrap_or(u32::MAX);
        if let Err(error) = set_tcp_user_timeout(&self.stream, lost_after_ms) {
            tracing::debug!(%error, "cannot set TCP_USER_TIMEOUT");
        }
    }
}

impl Drop for Linger {
    fn drop(&mut self) {
        // Otherwise the system would keep unsent bytes for a client that does not read them.
        if self.connection.is_cut()
            && let Err(error) = self.stream.set_zero_linger()
        {
            tracing::debug!(%error, "cannot drop the unsent bytes of a connection");
        }
    }
}

impl AsyncRead for Linger {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Linger {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !self.has_timeout {
            self.set_timeout();
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if !self.has_timeout {
            self.set_timeout();
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, closing, .. } = self.get_mut();
        if closing.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
        }
        let closing = closing
            .get_or_insert_with(|| Closing { bytes_left: BYTES_MAX, timeout: Box::pin(sleep(TIME_MAX)) });
        let mut room = [0; 16 << 10];
        loop {
            let mut buffer = ReadBuf::new(&mut room);
            match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => match closing.bytes_left.checked_sub(buffer.filled().len()) {
                    Some(bytes_left) => closing.bytes_left = bytes_left,
                    None => return Poll::Ready(Ok(())),
                },
                // The client has already disconnected.
                Poll::Ready(Err(_)) => return Poll::Ready(Ok(())),
                Poll::Pending => return closing.timeout.as_mut().poll(cx).map(Ok),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn client_that_is_still_sending_can_read_the_response() {
        let (mut client, server) = pair().await;
        let serve = async {
            let mut server = Linger::new(server, ConnectionState::new());
            server.write_all(b"no").await.unwrap();
            server.shutdown().await.unwrap();
        };
        let send = async {
            client.write_all(&vec![0; 1 << 20]).await.unwrap();
            let mut answer = Vec::new();
            client.shutdown().await.unwrap();
            client.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, b"no");
        };
        tokio::join!(serve, send);
    }

    #[tokio::test]
    async fn lingering_close_times_out() {
        let (client, server) = pair().await;
        let started = tokio::time::Instant::now();
        Linger::new(server, ConnectionState::new()).shutdown().await.unwrap();
        assert!(started.elapsed() >= TIME_MAX);
        drop(client);
    }
}
