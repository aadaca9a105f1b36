//! Calls of a controlled duration.

use crate::{Answer, TestClient};
use bytes::Bytes;
use futures::{StreamExt, stream};
use reqwest::Body;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Call with a request body that stays open until [`HeldCall::let_go`]. A function that reads its
/// body runs until then, regardless of the machine's speed.
pub struct HeldCall {
    end: oneshot::Sender<()>,
    answer: JoinHandle<Answer>,
}

impl HeldCall {
    pub(crate) fn call(client: TestClient, path: String) -> Self {
        let (end, ended) = oneshot::channel::<()>();
        let piece = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"held"))]);
        let nothing_until_the_end = stream::once(ended).filter_map(async |_| None);
        let body = Body::wrap_stream(piece.chain(nothing_until_the_end));
        Self { end, answer: tokio::spawn(async move { client.post(&path, body).await }) }
    }

    /// Whether the call ended before [`HeldCall::let_go`].
    pub fn has_ended(&self) -> bool {
        self.answer.is_finished()
    }

    /// Ends the body, and waits for the response.
    pub async fn let_go(self) -> Answer {
        // A call that has ended early ignores the end of the body; its response is the result.
        let _ = self.end.send(());
        self.answer.await.expect("the call does not panic")
    }
}
