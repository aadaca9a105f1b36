//! Tasks of HTTP/2 requests, which end when the client of an answer stalls.

use super::answer::ResponseTracker;
use super::progress::StallTimer;
use crate::answers::AnswerBudget;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use tokio::runtime::Handle;

/// Executor of HTTP/2 requests: runs the many requests of a connection on threads that share work.
///
/// A client may stop to read one answer and continue with others. The task of such an answer ends,
/// which resets its stream, and the connection continues.
#[derive(Clone)]
pub(super) struct Streams {
    budget: Arc<AnswerBudget>,
    threads: Handle,
}

tokio::task_local! {
    /// The answer of the request that the current task serves, once there is one.
    static ANSWER: Arc<OnceLock<Arc<ResponseTracker>>>;
}

impl Streams {
    pub(super) fn new(budget: Arc<AnswerBudget>, threads: Handle) -> Self {
        Self { budget, threads }
    }

    /// Lets the task of the current request observe its answer.
    pub(super) fn observe(answer: &Arc<ResponseTracker>) {
        // Requests of HTTP/1 have no task, and their connection observes their answers.
        let _ = ANSWER.try_with(|current| current.set(answer.clone()));
    }
}

impl<F: Future<Output: Send> + Send + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let budget = self.budget.clone();
        // The task ends with its connection.
        drop(self.threads.spawn(async move {
            let answer = Arc::<OnceLock<Arc<ResponseTracker>>>::default();
            let mut timer = StallTimer::for_stream(budget.config());
            let mut serving = pin!(ANSWER.scope(answer.clone(), stream));
            let cut = poll_fn(|cx| {
                if serving.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                match answer.get() {
                    Some(answer) => ResponseTracker::poll_cut(answer, &mut timer, cx).map(Some),
                    None => Poll::Pending,
                }
            });
            if let Some(cause) = cut.await {
                tracing::debug!(?cause, "an answer was cut off: its stream is reset");
                budget.cut(cause);
            }
        }));
    }
}
