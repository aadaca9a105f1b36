//! Changes of what survives a restart. Once begun they are carried through, whether or not the client who asked for them still waits:
//! what is on disk and what is in memory must not part because a connection broke between the two.

use tokio_util::task::TaskTracker;

/// Carries changes through to their end. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes(TaskTracker);

/// A change that did not come to its end: it panicked, or the node's threads ended first.
#[derive(Debug, thiserror::Error)]
#[error("the change was cut off: {0}")]
pub(crate) struct CutOff(#[from] tokio::task::JoinError);

impl Changes {
    /// Begin `change` and wait for it. It goes on when the caller stops waiting.
    pub(crate) async fn carry_through<T: Send + 'static>(
        &self,
        change: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, CutOff> {
        Ok(self.0.spawn(change).await?)
    }

    /// Wait until every change that was begun has ended. Called before the datastore closes.
    pub(crate) async fn settle(&self) {
        self.0.close();
        self.0.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn a_change_goes_on_without_the_one_who_asked_and_is_waited_for() {
        let changes = Changes::default();
        let (go, gone) = oneshot::channel::<()>();
        let has_ended = Arc::new(AtomicBool::new(false));
        let ended = has_ended.clone();
        let mut asked = Box::pin(changes.carry_through(async move {
            let _ = gone.await;
            ended.store(true, Ordering::SeqCst);
        }));
        assert!(futures::poll!(&mut asked).is_pending());
        drop(asked);
        let mut settled = Box::pin(changes.settle());
        assert!(futures::poll!(&mut settled).is_pending(), "a change is under way");
        go.send(()).unwrap();
        settled.await;
        assert!(has_ended.load(Ordering::SeqCst));
    }
}
