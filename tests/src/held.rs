//! A call that lasts as long as a test wants it to.

use crate::{Answer, Client};
use bytes::Bytes;
use futures::{StreamExt, stream};
use reqwest::Body;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A call whose body has no end until it is let go: a function that reads its body runs until then, on however slow a machine.
pub struct Held {
    end: oneshot::Sender<()>,
    answer: JoinHandle<Answer>,
}

impl Held {
    pub(crate) fn call(client: Client, path: String) -> Self {
        let (end, ended) = oneshot::channel::<()>();
        let piece = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"held"))]);
        let nothing_until_the_end = stream::once(ended).filter_map(async |_| None);
        let body = Body::wrap_stream(piece.chain(nothing_until_the_end));
        Self { end, answer: tokio::spawn(async move { client.post(&path, body).await }) }
    }

    /// Whether the call has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.answer.is_finished()
    }

    /// End the body, and wait for the answer.
    pub async fn let_go(self) -> Answer {
        // A call that has ended by itself does not listen; what it was answered is what matters.
        let _ = self.end.send(());
        self.answer.await.expect("the call does not panic")
    }
}
