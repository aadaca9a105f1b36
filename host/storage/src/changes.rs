//! Changes of durable state. Once started, a change is completed even if the requesting client
//! disconnects: a broken connection must not make disk and memory inconsistent.

use tokio_util::task::TaskTracker;

/// Runs changes to completion. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Changes(TaskTracker);

/// A change that was not completed: it panicked, or the node's threads ended first.
#[derive(Debug, thiserror::Error)]
#[error("the change was cut off: {0}")]
pub struct CutOff(#[from] tokio::task::JoinError);

impl Changes {
    /// Starts `change` and waits for it. The change continues if the caller stops waiting.
    pub async fn carry_through<T: Send + 'static>(
        &self,
        change: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, CutOff> {
        Ok(self.0.spawn(change).await?)
    }

    /// Waits until all started changes have ended. Called before the datastore is closed.
    pub async fn settle(&self) {
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
    async fn change_completes_after_its_caller_is_dropped_and_delays_shutdown() {
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
