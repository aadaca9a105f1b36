//! Taking what is due, so many at a time, and seeing to the end of it.

use super::index::{Next, Work};
use super::record::Step;
use super::{AsyncError, Invocations, now_ms};
use crate::gateway::Gateway;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use weir_datastore::Revision;
use weir_types::AsyncId;

/// The pause after something changed under the hands of whoever worked on it: news of that are on their way.
const STALE_MS: u64 = 100;
/// The pause after the datastore or the store of blobs could not be reached.
const OUT_OF_REACH_MS: u64 = 1_000;
/// The pause after a record that could not be read: somebody may mend it.
const DAMAGED_MS: u64 = 60_000;

/// When to stop working.
#[derive(Clone)]
pub(crate) struct Stop {
    /// Nothing more is begun.
    pub(crate) begin_nothing: CancellationToken,
    /// What goes on is given up, and left to others or to the next start.
    pub(crate) give_up: CancellationToken,
}

/// What has come of work on an invocation.
pub(super) enum Worked {
    /// It was written down.
    Written(Revision),
    /// Somebody else has changed it.
    Stale,
}

impl From<Option<Revision>> for Worked {
    fn from(written: Option<Revision>) -> Self {
        written.map_or(Self::Stale, Self::Written)
    }
}

impl Invocations {
    /// Work on what is due until told to stop, and then until what goes on has ended or is given up. All claims end with it.
    pub(crate) async fn work(self: Arc<Self>, gateway: Gateway, stop: Stop) {
        let mut working = JoinSet::new();
        let (working_max, tenant_working_max) =
            (self.config.running_max, self.config.tenant_running_max.max(1));
        loop {
            let next = self.lock().next(now_ms(), working_max as usize, tenant_working_max as usize);
            let due_at_ms = match next {
                Next::Work(work) => {
                    self.count();
                    working.spawn(self.clone().work_on(gateway.clone(), work, stop.clone()));
                    continue;
                }
                Next::WaitUntil(at_ms) => Some(at_ms),
                Next::Wait => None,
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

    async fn work_on(self: Arc<Self>, gateway: Gateway, work: Work, stop: Stop) {
        let mut working =
            Working { invocations: self.clone(), id: work.id, not_before_ms: now_ms() + STALE_MS };
        let worked = match work.step {
            Step::Run => self.attempt(&gateway, &work, &stop).await,
            Step::CallBack => self.call_back(&gateway, &work, &stop).await,
            Step::Forget => Ok(Worked::Stale),
        };
        match worked {
            Ok(Worked::Written(revision)) => {
                self.heard.wait(revision).await;
                working.not_before_ms = 0;
            }
            Ok(Worked::Stale) => {}
            Err(AsyncError::Datastore(weir_datastore::Error::Closed)) => {}
            Err(error @ AsyncError::Damaged { .. }) => {
                tracing::error!(%error, "an asynchronous invocation is left alone");
                working.not_before_ms = now_ms() + DAMAGED_MS;
            }
            Err(error) => {
                tracing::warn!(%error, id = %work.id, "cannot work on an asynchronous invocation now");
                working.not_before_ms = now_ms() + OUT_OF_REACH_MS;
            }
        }
    }
}

/// Work that goes on; the index is told when that is over, also where it panics.
struct Working {
    invocations: Arc<Invocations>,
    id: AsyncId,
    not_before_ms: u64,
}

impl Drop for Working {
    fn drop(&mut self) {
        self.invocations.lock().done(self.id, self.not_before_ms);
        self.invocations.count();
        self.invocations.news.notify_one();
    }
}

/// Returns at a time in Unix milliseconds; never where there is none.
async fn due(at_ms: Option<u64>) {
    match at_ms {
        Some(at_ms) => tokio::time::sleep(Duration::from_millis(at_ms.saturating_sub(now_ms()))).await,
        None => std::future::pending().await,
    }
}
