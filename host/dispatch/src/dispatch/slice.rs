//! The first time slice of a guest, on the thread that received its request.

use axum::response::Response;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use weir_sandbox::instance::{AnswerReceiver, InvocationReport, SandboxUsage};

/// The longest time that a guest may compute on a gateway thread. Less than an epoch tick, so that
/// a guest that spins is moved at its first yield.
pub(super) const LENGTH: Duration = Duration::from_micros(500);

/// How the slice ended.
pub(super) enum First {
    /// The guest ended.
    Ended(InvocationReport),
    /// The guest sent the head of its response and still runs.
    Answered(Response),
    /// Neither: the guest continues on a guest thread.
    Spent,
}

/// Polls a guest until it ends, responds or has computed for [`LENGTH`]. Neither waiting nor the
/// work of other threads on the same core counts.
pub(super) struct Slice<'a, Run> {
    run: Pin<&'a mut Run>,
    answer: &'a mut AnswerReceiver,
    usage: &'a SandboxUsage,
}

impl<'a, Run: Future<Output = InvocationReport>> Slice<'a, Run> {
    pub(super) fn new(
        run: &'a mut Pin<Box<Run>>,
        answer: &'a mut AnswerReceiver,
        usage: &'a SandboxUsage,
    ) -> Self {
        Self { run: run.as_mut(), answer, usage }
    }
}

impl<Run: Future<Output = InvocationReport>> Future for Slice<'_, Run> {
    type Output = First;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<First> {
        if let Poll::Ready(report) = self.run.as_mut().poll(cx) {
            return Poll::Ready(First::Ended(report));
        }
        // A dropped sender is ignored: the guest's end has the reason. The receiver must not be polled
        // again then.
        if !self.answer.is_terminated()
            && let Poll::Ready(Ok(response)) = Pin::new(&mut *self.answer).poll(cx)
        {
            return Poll::Ready(First::Answered(response));
        }
        if self.usage.cpu_time() >= LENGTH { Poll::Ready(First::Spent) } else { Poll::Pending }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_sandbox::instance::ResponseSender;

    /// Regression test: the receiver was polled again after the guest had dropped its sender, which
    /// panics, and the connection closed without a response.
    #[tokio::test]
    async fn guest_that_ends_late_without_a_response_is_polled_to_its_end() {
        let (sender, mut receiver) = ResponseSender::channel();
        drop(sender);
        let mut run: Pin<Box<_>> = Box::pin(std::future::pending::<InvocationReport>());
        let usage = SandboxUsage::default();
        let mut slice = Slice::new(&mut run, &mut receiver, &usage);
        for _ in 0..2 {
            let polled = futures::poll!(&mut slice);
            assert!(polled.is_pending());
        }
    }
}
