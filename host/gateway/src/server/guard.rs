//! Refuses requests whose framing is ambiguous, before hyper reads them.

use super::connection::ConnectionState;
use super::framing::Framing;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are invalid everywhere in a head and in the line of a chunk, so hyper answers 400 and
/// closes the connection. They also end the head, because hyper parses a head only when it is
/// complete.
const INVALID: &[u8] = b"\0\r\n\r\n";

/// Connection of a client. From the first byte that [`Framing`] refuses on, its reader gets
/// [`INVALID`] and then the end of the stream.
pub(super) struct FramingGuard<S> {
    stream: S,
    connection: ConnectionState,
    framing: Framing,
    /// The rest of the invalid bytes, once a byte was refused.
    refusal: Option<&'static [u8]>,
}

impl<S> FramingGuard<S> {
    pub(super) fn new(stream: S, connection: ConnectionState) -> Self {
        Self { stream, connection, framing: Framing::new(), refusal: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FramingGuard<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, connection, framing, refusal } = self.get_mut();
        if connection.is_upgraded() && refusal.is_none() {
            return Pin::new(stream).poll_read(cx, buffer);
        }
        if refusal.is_none() {
            let before = buffer.filled().len();
            ready!(Pin::new(stream).poll_read(cx, buffer))?;
            let read = buffer.filled().get(before..).unwrap_or_default();
            if let Err(at) = framing.follow(read) {
                buffer.set_filled(before + at);
                *refusal = Some(INVALID);
            }
        }
        if let Some(rest) = refusal {
            let (next, later) = rest.split_at(rest.len().min(buffer.remaining()));
            buffer.put_slice(next);
            *rest = later;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FramingGuard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test]
    async fn stream_ends_with_an_invalid_head_at_the_refused_byte() {
        let sent = b"GET / HTTP/1.1\r\na: b\nhost: evil\r\n\r\nGET / HTTP/1.1\r\n\r\n";
        for piece in [1, 7, sent.len()] {
            let (mut client, stream) = duplex(piece);
            tokio::spawn(async move { client.write_all(sent).await });
            let mut read = Vec::new();
            FramingGuard::new(stream, ConnectionState::new()).read_to_end(&mut read).await.unwrap();
            assert_eq!(read, b"GET / HTTP/1.1\r\na: b\0\r\n\r\n");
        }
        let fine = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let mut read = Vec::new();
        FramingGuard::new(&fine[..], ConnectionState::new()).read_to_end(&mut read).await.unwrap();
        assert_eq!(read, fine);
    }
}
