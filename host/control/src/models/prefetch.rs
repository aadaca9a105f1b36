//! Fetches the files of models to the node's disk before their first use, so that the node can serve
//! a pushed model as soon as the other nodes are busy.
//!
//! The latest push goes first. A model leaves the queue once its files are here, and when it is
//! deleted, which also cancels its fetch. Failed fetches are repeated.

use super::{ModelEntry, Models};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use weir_cluster::{Placements, PrefetchConfig};
use weir_inference::ModelKey;
use weir_types::{ModelId, Platform};

/// The interval at which fetches are repeated that failed, or that had no room.
const RETRY_EVERY: Duration = Duration::from_secs(30);

/// The models to fetch. Has at most one entry for each model that the node knows.
#[derive(Default)]
pub(super) struct PrefetchQueue {
    state: Mutex<QueueState>,
    notify: Notify,
}

#[derive(Default)]
struct QueueState {
    /// By the time of the push, the latest first.
    waiting: BTreeMap<(Reverse<u64>, u64), ModelKey>,
    /// Fetches in progress.
    running: HashMap<ModelKey, CancellationToken>,
    /// Fetches that wait for the next retry.
    failed: Vec<QueuedModel>,
}

/// A model in the queue.
#[derive(Debug, Clone)]
struct QueuedModel {
    key: ModelKey,
    pushed_at_ms: u64,
}

/// The end of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PrefetchOutcome {
    /// The files were here, or runs use another version of the model.
    NotNeeded,
    Fetched,
    NoRoom,
    Failed,
    Cancelled,
}

impl PrefetchOutcome {
    fn label(self) -> Option<&'static str> {
        match self {
            Self::NotNeeded => None,
            Self::Fetched => Some("fetched"),
            Self::NoRoom => Some("no-room"),
            Self::Failed => Some("failed"),
            Self::Cancelled => Some("cancelled"),
        }
    }
}

impl QueuedModel {
    fn new(entry: &ModelEntry) -> Self {
        Self { key: entry.source.key.clone(), pushed_at_ms: entry.record.pushed_at_ms }
    }

    fn rank(&self) -> (Reverse<u64>, u64) {
        (Reverse(self.pushed_at_ms), self.key.generation)
    }
}

impl PrefetchQueue {
    fn add(&self, model: QueuedModel) {
        self.state.lock().waiting.insert(model.rank(), model.key);
        self.notify.notify_one();
    }

    /// Removes a model, and cancels its fetch.
    fn remove(&self, model: &QueuedModel) {
        let mut state = self.state.lock();
        state.waiting.remove(&model.rank());
        state.failed.retain(|failed| failed.key != model.key);
        if let Some(running) = state.running.remove(&model.key) {
            running.cancel();
        }
    }

    /// Begins the next fetch.
    fn begin(&self) -> Option<(QueuedModel, CancellationToken)> {
        let mut state = self.state.lock();
        let ((Reverse(pushed_at_ms), _), key) = state.waiting.pop_first()?;
        let cancelled = CancellationToken::new();
        state.running.insert(key.clone(), cancelled.clone());
        Some((QueuedModel { key, pushed_at_ms }, cancelled))
    }

    fn end(&self, model: QueuedModel, outcome: PrefetchOutcome) {
        let mut state = self.state.lock();
        let was_running = state.running.remove(&model.key).is_some();
        if was_running && matches!(outcome, PrefetchOutcome::Failed | PrefetchOutcome::NoRoom) {
            state.failed.push(model);
        }
    }

    fn retry(&self) {
        let mut state = self.state.lock();
        let failed = std::mem::take(&mut state.failed);
        state.waiting.extend(failed.into_iter().map(|model| (model.rank(), model.key)));
    }
}

/// Fetches the files of pushed models, until `models` is dropped. Returns at once if the node fetches
/// nothing ahead.
pub async fn prefetch_models(models: Weak<Models>, placements: Arc<Placements>, config: PrefetchConfig) {
    let is_on = config.concurrency > 0;
    let Some(queue) = models.upgrade().filter(|_| is_on).and_then(|models| models.begin_prefetching()) else {
        return;
    };
    let mut running = FuturesUnordered::new();
    let mut retry = tokio::time::interval(RETRY_EVERY);
    retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut has_room = true;
    loop {
        while has_room && running.len() < config.concurrency {
            let Some(current) = models.upgrade() else { return };
            let Some((model, cancelled)) = queue.begin() else { break };
            running.push(current.prefetch(model, cancelled, queue.clone(), placements.clone(), config));
        }
        tokio::select! {
            Some(outcome) = running.next() => has_room &= outcome != PrefetchOutcome::NoRoom,
            () = queue.notify.notified() => {}
            _ = retry.tick() => {
                has_room = true;
                queue.retry();
            }
        }
        if models.strong_count() == 0 {
            return;
        }
    }
}

impl Models {
    /// Creates the queue, with all models; `None` if the node has all files that there are.
    fn begin_prefetching(&self) -> Option<Arc<PrefetchQueue>> {
        if !self.blobs().is_shared() {
            return None;
        }
        let queue = self.prefetching.get_or_init(Arc::default).clone();
        for entry in self.read_known().entries() {
            queue.add(QueuedModel::new(entry));
        }
        Some(queue)
    }

    /// Queues a model that was pushed, here or on another node.
    pub(super) fn prefetch_soon(&self, entry: &ModelEntry) {
        if let Some(queue) = self.prefetching.get() {
            queue.add(QueuedModel::new(entry));
        }
    }

    /// Ends the fetch of a model that was deleted or replaced.
    pub(super) fn prefetch_no_more(&self, entry: &ModelEntry) {
        if let Some(queue) = self.prefetching.get() {
            queue.remove(&QueuedModel::new(entry));
        }
    }

    async fn prefetch(
        self: Arc<Self>,
        model: QueuedModel,
        cancelled: CancellationToken,
        queue: Arc<PrefetchQueue>,
        placements: Arc<Placements>,
        config: PrefetchConfig,
    ) -> PrefetchOutcome {
        let outcome = tokio::select! {
            biased;
            () = cancelled.cancelled() => PrefetchOutcome::Cancelled,
            outcome = self.fetch_ahead(&model.key, &placements, config) => outcome,
        };
        if let Some(label) = outcome.label() {
            self.metrics.devices.prefetched(label);
        }
        queue.end(model, outcome);
        outcome
    }

    /// Fetches the files that loads on the node's devices read, if the version is active or a canary.
    async fn fetch_ahead(
        &self,
        key: &ModelKey,
        placements: &Placements,
        config: PrefetchConfig,
    ) -> PrefetchOutcome {
        let ModelId { tenant, name, version } = &key.id;
        let serves = self.roles(tenant, name).serves(*version);
        let entry = self.get(tenant, name, Some(*version)).ok().filter(|_| serves);
        let Some(entry) = entry.filter(|entry| entry.source.key == *key) else {
            return PrefetchOutcome::NotNeeded;
        };
        let platforms: BTreeSet<Platform> = self.devices.iter().map(|device| device.platform).collect();
        let mut outcome = PrefetchOutcome::NotNeeded;
        for platform in platforms {
            if !self.lacks(&entry, platform).await {
                continue;
            }
            let bytes = entry.source.prepared.weight_bytes;
            let PrefetchConfig { cache_percent_max, free_bytes_min, .. } = config;
            if !self.blobs().has_room_ahead(bytes, cache_percent_max, free_bytes_min).await {
                return PrefetchOutcome::NoRoom;
            }
            if let Err(error) = self.fetch(&entry, platform, placements).await {
                tracing::warn!(model = %key.id, %error, "a model was not fetched ahead: the node tries again");
                return PrefetchOutcome::Failed;
            }
            outcome = PrefetchOutcome::Fetched;
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::{Name, TenantId, Version};

    fn model(name: &str, pushed_at_ms: u64, generation: u64) -> QueuedModel {
        let name = Name::new(name).unwrap();
        let id = ModelId { tenant: TenantId::default(), name, version: Version(1) };
        QueuedModel { key: ModelKey { id, generation }, pushed_at_ms }
    }

    fn next(queue: &PrefetchQueue) -> Option<String> {
        queue.begin().map(|(model, _)| model.key.id.name.to_string())
    }

    #[test]
    fn latest_push_is_fetched_first_and_failures_wait_for_the_retry() {
        let queue = PrefetchQueue::default();
        for (name, pushed_at_ms) in [("old", 1), ("new", 3), ("middle", 2)] {
            queue.add(model(name, pushed_at_ms, pushed_at_ms));
        }
        let (first, _) = queue.begin().unwrap();
        assert_eq!(first.key.id.name.to_string(), "new");
        queue.end(first, PrefetchOutcome::Failed);
        let (second, _) = queue.begin().unwrap();
        assert_eq!(second.key.id.name.to_string(), "middle");
        queue.end(second, PrefetchOutcome::Fetched);
        queue.retry();
        assert_eq!(
            [next(&queue), next(&queue), next(&queue)],
            [Some("new".into()), Some("old".into()), None]
        );
    }

    #[test]
    fn deletion_cancels_a_fetch_and_the_next_push_is_fetched() {
        let queue = PrefetchQueue::default();
        let before = model("m", 1, 1);
        queue.add(before.clone());
        let (running, cancelled) = queue.begin().unwrap();
        let again = model("m", 2, 2);
        queue.remove(&before);
        queue.add(again.clone());
        assert!(cancelled.is_cancelled());
        queue.end(running, PrefetchOutcome::Failed);
        queue.retry();
        assert_eq!(queue.begin().unwrap().0.key, again.key);
        assert!(queue.begin().is_none(), "a deleted model is not fetched again");
        // Also while the model waits, or waits for the retry.
        queue.add(before.clone());
        queue.remove(&before);
        assert!(queue.begin().is_none());
        queue.end(again.clone(), PrefetchOutcome::NoRoom);
        queue.remove(&again);
        queue.retry();
        assert!(queue.begin().is_none());
    }
}
