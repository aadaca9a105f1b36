//! The storage tiers of models' files: memory, the node's disk, or the cluster's object store. The
//! scheduler estimates load times from the tiers.
//!
//! The system moves files between memory and disk without notice, so the node looks at the files:
//! immediately after a push, a fetch and a load, and periodically at files that were in memory or
//! on disk.

use super::{ModelEntry, Models};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use weir_cluster::{Placements, StagedModel};
use weir_inference::{FileBytes, Variant};
use weir_scheduler::{MeasuredTransfer, StorageTier};
use weir_storage::blobs::BlobError;
use weir_types::{ModelId, Platform};

/// The interval of periodic looks.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The number of models that a periodic look covers.
const LOOK_MODELS_MAX: usize = 500;

/// The models whose files move. Both sets have at most the models that the node knows.
#[derive(Default)]
pub(super) struct StagingWatch {
    /// Models to look at.
    moved: Mutex<HashSet<ModelId>>,
    notify: Notify,
    /// Models that are being fetched, each by the call that asked first.
    fetched: Mutex<HashSet<ModelId>>,
}

/// The first of the concurrent fetches of a model.
struct FirstFetch<'a>(&'a StagingWatch, &'a ModelId);

impl Drop for FirstFetch<'_> {
    fn drop(&mut self) {
        self.0.fetched.lock().remove(self.1);
    }
}

impl StagingWatch {
    /// Schedules a look at the files of a model.
    pub(super) fn note(&self, model: &ModelId) {
        self.moved.lock().insert(model.clone());
        self.notify.notify_one();
    }

    fn take(&self) -> Vec<ModelId> {
        std::mem::take(&mut *self.moved.lock()).into_iter().collect()
    }

    /// Begins a fetch of `model`. Returns `None` if another call is already fetching it. Only the
    /// first fetch is measured: a fetch that joins it takes less time than a transfer of all bytes,
    /// so its rate would be too high.
    fn first_fetch<'a>(&'a self, model: &'a ModelId) -> Option<FirstFetch<'a>> {
        let is_first = self.fetched.lock().insert(model.clone());
        is_first.then(|| FirstFetch(self, model))
    }
}

/// Reports the storage tiers of models' files to the scheduler, until `models` is dropped.
pub async fn watch_staging(models: Weak<Models>, placements: Arc<Placements>) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut next: Option<ModelId> = None;
    loop {
        let Some(current) = models.upgrade() else { return };
        let looked = current.look_at(current.staging.take()).await;
        placements.staged(looked);
        let watch = current.staging.clone();
        drop(current);
        tokio::select! {
            () = watch.notify.notified() => continue,
            _ = ticks.tick() => {}
        }
        let Some(current) = models.upgrade() else { return };
        let all = placements.staged_models().into_iter().map(|staged| staged.model).collect();
        let batch = batch_after(all, &mut next);
        placements.staged(current.look_at(batch).await);
    }
}

/// The models of the next periodic look, which begins after `next`, in turn.
fn batch_after(mut all: Vec<ModelId>, next: &mut Option<ModelId>) -> Vec<ModelId> {
    all.sort_unstable();
    let from = next.as_ref().map_or(0, |next| all.partition_point(|model| model <= next));
    let batch: Vec<_> = all[from..].iter().take(LOOK_MODELS_MAX).cloned().collect();
    // After the last model, the next look starts with the first.
    *next = batch.last().filter(|_| from + batch.len() < all.len()).cloned();
    batch
}

impl Models {
    /// The tier of models' files unless the node reports another tier.
    pub fn origin(&self) -> StorageTier {
        if self.blobs().is_shared() { StorageTier::ObjectStore } else { StorageTier::Disk }
    }

    /// Looks at the files of models. Reports no bytes for a removed model, so the scheduler assumes
    /// that its files are in the origin.
    async fn look_at(&self, models: Vec<ModelId>) -> Vec<StagedModel> {
        let mut looks = Vec::new();
        for model in models {
            let entry = self.get(&model.tenant, &model.name, Some(model.version)).ok();
            looks.push((model, entry.map(|entry| self.look(&entry))));
        }
        if looks.is_empty() {
            return Vec::new();
        }
        let staged = move || {
            let staged = looks.into_iter().map(|(model, look)| StagedModel {
                model,
                bytes: look.map(Look::tiers).unwrap_or_default(),
                moved: None,
            });
            staged.collect()
        };
        // A panic loses one look.
        tokio::task::spawn_blocking(staged).await.unwrap_or_default()
    }

    /// Bytes of a model's files by tier, as found by a load or a look.
    pub(super) fn tiers(&self, found: FileBytes) -> Vec<(StorageTier, u64)> {
        tiers(found, self.origin())
    }

    fn look(&self, entry: &ModelEntry) -> Look {
        let prepared = &entry.source.prepared;
        let forms = self.devices.iter().filter_map(|device| device.cache.backend().form(prepared));
        let folder = self.blobs().folder().to_owned();
        Look { forms: forms.cloned().collect(), folder, origin: self.origin() }
    }

    /// Whether the node lacks a file that a load of a model on this platform reads.
    pub(super) async fn lacks(&self, entry: &ModelEntry, platform: Platform) -> bool {
        let blobs = entry.source.prepared.blobs_for(platform);
        let paths = blobs.map(|hash| self.blobs().path(hash)).collect();
        !missing(paths).await.is_empty()
    }

    /// Fetches all files that a load of a model on this platform reads from the cluster's store, and
    /// reports the fetch to the scheduler.
    pub(super) async fn fetch(
        &self,
        entry: &ModelEntry,
        platform: Platform,
        placements: &Placements,
    ) -> Result<(), BlobError> {
        let prepared = &entry.source.prepared;
        let paths = prepared.blobs_for(platform).map(|hash| self.blobs().path(hash)).collect();
        let missing = missing(paths).await;
        if missing.is_empty() {
            // Also marks the files as used.
            return self.store.fetch(prepared, platform).await;
        }
        let first = self.staging.first_fetch(entry.source.id());
        let began = Instant::now();
        self.store.fetch(prepared, platform).await?;
        let time = began.elapsed();
        if first.is_none() {
            return Ok(());
        }
        let look = self.look(entry);
        let looked = tokio::task::spawn_blocking(move || {
            let bytes = missing.iter().filter_map(|path| std::fs::metadata(path).ok());
            (look.tiers(), bytes.map(|about| about.len()).sum::<u64>())
        });
        // The files are there: a failed look only loses the report.
        if let Ok((tiers, bytes)) = looked.await {
            let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            let moved = MeasuredTransfer { from: StorageTier::ObjectStore, bytes, time_ns };
            let model = entry.source.id().clone();
            placements.staged(vec![StagedModel { model, bytes: tiers, moved: Some(moved) }]);
            self.metrics.devices.transferred("object-store", "disk", bytes, time);
        }
        Ok(())
    }
}

/// A look at the files of a model, without the models' lock.
struct Look {
    forms: Vec<Variant>,
    folder: PathBuf,
    origin: StorageTier,
}

impl Look {
    /// Blocks.
    fn tiers(self) -> Vec<(StorageTier, u64)> {
        tiers(FileBytes::look(&self.forms, &self.folder), self.origin)
    }
}

/// Bytes by tier. Absent files are in the origin: without an object store, the node has set them
/// aside on its disk.
fn tiers(found: FileBytes, origin: StorageTier) -> Vec<(StorageTier, u64)> {
    let FileBytes { memory, disk, absent } = found;
    let tiers = [(StorageTier::Memory, memory), (StorageTier::Disk, disk), (origin, absent)];
    tiers.into_iter().filter(|(_, bytes)| *bytes > 0).collect()
}

/// Those of the paths without a file.
async fn missing(paths: Vec<PathBuf>) -> Vec<PathBuf> {
    let is_missing = |path: &PathBuf| !Path::is_file(path);
    let missing = move || paths.into_iter().filter(is_missing).collect();
    tokio::task::spawn_blocking(missing).await.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::{Name, TenantId, Version};

    #[test]
    fn periodic_looks_cover_all_models_in_turn() {
        let model = |number: usize| ModelId {
            tenant: TenantId::default(),
            name: Name::new(&format!("m{number:04}")).unwrap(),
            version: Version(1),
        };
        let all: Vec<_> = (0..LOOK_MODELS_MAX * 2 + 1).map(model).collect();
        let mut next = None;
        let mut looked = Vec::new();
        for expected in [LOOK_MODELS_MAX, LOOK_MODELS_MAX, 1] {
            let batch = batch_after(all.clone(), &mut next);
            assert_eq!(batch.len(), expected);
            looked.extend(batch);
        }
        assert_eq!(looked, all);
        assert_eq!(batch_after(all.clone(), &mut next)[0], all[0]);
        assert_eq!(batch_after(Vec::new(), &mut next), []);
    }
}
