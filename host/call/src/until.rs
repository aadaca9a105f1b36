//! Waiting with a deadline.

use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

/// Returns the output of `future`, or none if `deadline` passes first. Suits futures that are
/// mostly ready: only a pending future needs a timer.
pub async fn until<T>(deadline: Instant, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    match futures::poll!(future.as_mut()) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => tokio::time::timeout_at(deadline.into(), future).await.ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn ready_future_ignores_deadline() {
        let now = tokio::time::Instant::now();
        let deadline = (now + Duration::from_secs(5)).into_std();
        assert_eq!(until(now.into_std(), async { 1 }).await, Some(1));
        assert_eq!(until(deadline, tokio::time::sleep(Duration::from_secs(4))).await, Some(()));
        assert_eq!(until(deadline, std::future::pending::<()>()).await, None);
        assert_eq!(now.elapsed(), Duration::from_secs(5));
    }
}
