//! The messages of the client, as the body of the function's request.

use super::records::{self, Close};
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;
use weir_device::{Arena, ArenaExhausted};

/// Messages that wait for the function. The client waits while there are more.
const QUEUE_LEN: usize = 1;

/// The body of the function's request: the messages, and then the reason why the WebSocket was
/// closed.
pub(super) struct MessageBody {
    messages: mpsc::Receiver<Bytes>,
    /// `None` once the function has read it.
    close: Option<Arc<Mutex<Close>>>,
}

/// Writes the messages of the client to the body. Dropping it ends the body.
pub(super) struct MessageSender {
    messages: mpsc::Sender<Bytes>,
    close: Arc<Mutex<Close>>,
    arena: Arena,
}

/// Why a message cannot be passed to the function.
#[derive(Debug)]
pub(super) enum Undelivered {
    /// The memory of requests, or the tenant's share of it, is in use.
    NoRoom(ArenaExhausted),
    /// The function reads no more messages.
    Unread,
}

impl MessageBody {
    /// Creates a body, whose messages take memory of `arena`.
    pub(super) fn channel(arena: Arena) -> (MessageSender, Self) {
        let (sender, messages) = mpsc::channel(QUEUE_LEN);
        // The reason that the function sees if the connection is lost, or if the call ends.
        let close = Arc::new(Mutex::new(Close::new(1006, "")));
        (
            MessageSender { messages: sender, close: close.clone(), arena },
            Self { messages, close: Some(close) },
        )
    }
}

impl MessageSender {
    /// Passes a message to the function. Waits while the function has not read the last one.
    pub(super) async fn send(&self, is_text: bool, payload: &[u8]) -> Result<(), Undelivered> {
        if self.messages.is_closed() {
            return Err(Undelivered::Unread);
        }
        // Before the wait, so that the message counts for its tenant while it waits.
        let record = records::encode(is_text, payload, &self.arena).map_err(Undelivered::NoRoom)?;
        self.messages.send(record).await.map_err(|_| Undelivered::Unread)
    }

    /// Ends the body with the reason why the WebSocket is closed.
    pub(super) fn close(self, close: Close) {
        *self.close.lock() = close;
    }
}

impl HttpBody for MessageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let message = match ready!(self.messages.poll_recv(cx)) {
            Some(message) => Some(message),
            None => self.close.take().map(|close| close.lock().encode()),
        };
        Poll::Ready(message.map(|message| Ok(Frame::data(message))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use http_body_util::BodyExt as _;

    #[tokio::test]
    async fn body_has_the_messages_and_then_the_close() {
        let (sender, body) = MessageBody::channel(Arena::new(1 << 20));
        let sending = async {
            sender.send(true, b"one").await.unwrap();
            sender.send(false, b"two").await.unwrap();
            sender.close(Close::new(1001, "bye"));
        };
        let read = tokio::join!(sending, body.collect()).1.unwrap().to_bytes();
        assert_eq!(read, &b"\x01\x03\0\0\0one\x02\x03\0\0\0two\x08\x05\0\0\0\xe9\x03bye"[..]);
    }

    #[tokio::test]
    async fn client_waits_while_the_function_does_not_read() {
        let (sender, mut body) = MessageBody::channel(Arena::new(1 << 20));
        sender.send(true, b"one").await.unwrap();
        assert!(sender.send(true, b"two").now_or_never().is_none(), "the first one waits");
        body.frame().await.unwrap().unwrap();
        sender.send(true, b"two").await.unwrap();
        drop(body);
        assert!(matches!(sender.send(true, b"three").await, Err(Undelivered::Unread)));
    }

    #[tokio::test]
    async fn message_without_room_is_refused() {
        let (sender, _body) = MessageBody::channel(Arena::new(1 << 10));
        assert!(matches!(sender.send(true, &[0; 8 << 10]).await, Err(Undelivered::NoRoom(_))));
    }
}
