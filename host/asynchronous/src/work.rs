//! Work loop: runs due steps, a limited number at a time, until they end.

use super::index::{LoopAction, PendingStep};
use super::record::NextStep;
use super::{AsyncError, Invocations, now_ms};
use crate::RequestRunner;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use weir_datastore::Revision;
use weir_types::AsyncId;

/// Pause after a concurrent change of an invocation, whose event is still to arrive.
const STALE_MS: u64 = 100;
/// Pause after the datastore or the blob store was unreachable.
const OUT_OF_REACH_MS: u64 = 1_000;
/// Pause after an unreadable record, which an operator may repair.
const DAMAGED_MS: u64 = 60_000;

/// Shutdown signals of the work loop.
#[derive(Clone)]
pub struct ShutdownSignals {
    /// Start no further work.
    pub begin_nothing: CancellationToken,
    /// Give up work in progress, and leave it to other nodes or to the next start.
    pub give_up: CancellationToken,
}

/// Result of work on an invocation.
pub(super) enum Worked {
    /// The record was written, at this revision.
    Written(Revision),
    /// The record was changed concurrently.
    Stale,
}

impl From<Option<Revision>> for Worked {
    fn from(written: Option<Revision>) -> Self {
        written.map_or(Self::Stale, Self::Written)
    }
}

impl Invocations {
    /// Works on due invocations until `stop.begin_nothing`, then waits until the work in progress
    /// has ended or is given up. Ends all claims on return.
    pub async fn work(self: Arc<Self>, gateway: impl RequestRunner, stop: ShutdownSignals) {
        let mut working = JoinSet::new();
        let working_max = self.config.running_max;
        let tenant_working_max = self.config.tenant_running_max.max(1);
        loop {
            let next = self.index.lock().next(now_ms(), working_max as usize, tenant_working_max as usize);
            let due_at_ms = match next {
                LoopAction::Work(work) => {
                    self.count();
                    working.spawn(self.clone().work_on(gateway.clone(), work, stop.clone()));
                    continue;
                }
                LoopAction::WaitUntil(at_ms) => Some(at_ms),
                LoopAction::Wait => None,
            };
            tokio::select! {
                () = stop.begin_nothing.cancelled() => break,
                () = self.news.notified() => {}
                Some(_) = working.join_next(), if !working.is_empty() => {}
                () = due(due_at_ms) => {}
            }
        }
        while working.join_next().await.is_some() {}
        self.keeper.end().await;
    }

    async fn work_on(self: Arc<Self>, gateway: impl RequestRunner, work: PendingStep, stop: ShutdownSignals) {
        let mut working =
            Working { invocations: self.clone(), id: work.id, not_before_ms: now_ms() + STALE_MS };
        let worked = match work.step {
            NextStep::Run => self.attempt(&gateway, &work, &stop).await,
            NextStep::CallBack => self.call_back(&gateway, &work, &stop).await,
            NextStep::Forget => Ok(Worked::Stale),
        };
        match worked {
            Ok(Worked::Written(revision)) => {
                self.heard.wait(revision).await;
                working.not_before_ms = 0;
            }
            Ok(Worked::Stale) => {}
            Err(AsyncError::Datastore(weir_datastore::Error::Closed)) => {}
            Err(error @ AsyncError::Damaged { .. }) => {
                tracing::error!(%error, "invalid record of an asynchronous invocation ignored");
                working.not_before_ms = now_ms() + DAMAGED_MS;
            }
            Err(error) => {
                tracing::warn!(%error, id = %work.id, "working on an asynchronous invocation failed, retrying");
                working.not_before_ms = now_ms() + OUT_OF_REACH_MS;
            }
        }
    }
}

/// Work in progress. Its drop informs the index, also after a panic.
struct Working {
    invocations: Arc<Invocations>,
    id: AsyncId,
    not_before_ms: u64,
}

impl Drop for Working {
    fn drop(&mut self) {
        self.invocations.index.lock().done(self.id, self.not_before_ms);
        self.invocations.count();
        self.invocations.news.notify_one();
    }
}

/// Returns at a time in Unix milliseconds; never if there is none.
async fn due(at_ms: Option<u64>) {
    match at_ms {
        Some(at_ms) => tokio::time::sleep(Duration::from_millis(at_ms.saturating_sub(now_ms()))).await,
        None => std::future::pending().await,
    }
}
