//! What resident models share: the files of their weights, mapped once however many models have them, and the same weights in the form that
//! kernels want them.
//!
//! A file is mapped from the first model that has it to the last. The other form is ONNX Runtime's: it finds equal weights by their contents,
//! but gives nothing back before all of it goes. So models share it in families: those of one tenant that have most of their weights in
//! common. A family ends with its last model; one that has outlived too many takes no more, so that what they left behind stays bounded.
//! ONNX Runtime tells contents apart by a hash that can be led astray, which is why tenants do not share this form.

use crate::integrity::Verified;
use crate::mapping::Mapping;
use crate::prepare::Variant;
use ort::session::builder::PrepackedWeights;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use weir_types::{ContentHash, TenantId};

/// A model joins a family that has at least one part in so many of its weights.
const COMMON_SHARE: u64 = 2;
/// What members that are gone have left behind may be one part in so many of what those that are there have.
const LEFT_SHARE: u64 = 4;

/// The weights of all resident models of a backend. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct TensorStore(Arc<Inner>);

#[derive(Default)]
struct Inner {
    files: Mutex<HashMap<PathBuf, Weak<Mapping>>>,
    families: Mutex<Vec<Weak<Family>>>,
    families_made: AtomicU64,
    verified: Verified,
}

/// Models that share weights in the form that kernels want.
struct Family {
    number: u64,
    tenant: TenantId,
    prepacked: PrepackedWeights,
    /// Everything that was ever put there.
    weights: Mutex<HashMap<ContentHash, Packed>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Packed {
    bytes: u64,
    members: usize,
}

/// A model's place in its family.
pub(super) struct Member {
    family: Arc<Family>,
    weights: BTreeMap<ContentHash, u64>,
}

impl TensorStore {
    /// The file, in memory.
    pub(super) fn file(&self, path: PathBuf) -> io::Result<Arc<Mapping>> {
        let mut files = lock(&self.0.files);
        if let Some(mapped) = files.get(&path).and_then(Weak::upgrade) {
            return Ok(mapped);
        }
        // Held while the file is read: models are loaded one at a time.
        let mapped = Arc::new(Mapping::of(&path)?);
        if files.len() == files.capacity() {
            files.retain(|_, mapped| mapped.strong_count() > 0);
        }
        files.insert(path, Arc::downgrade(&mapped));
        Ok(mapped)
    }

    /// The files that are known to be what they are named by.
    pub(super) fn verified(&self) -> &Verified {
        &self.0.verified
    }

    /// The number of the family that a model would join; none if it would begin one.
    pub(super) fn family_of(&self, tenant: &TenantId, variant: &Variant) -> Option<u64> {
        self.find(tenant, &variant.weight_files()).map(|family| family.number)
    }

    /// Make a model a member of its family, or of a new one.
    pub(super) fn join(&self, tenant: &TenantId, variant: &Variant) -> Member {
        let weights = variant.weight_files();
        let family = self.find(tenant, &weights).unwrap_or_else(|| self.begin(tenant));
        let mut all = lock(&family.weights);
        for (hash, bytes) in &weights {
            let packed = all.entry(*hash).or_default();
            packed.bytes = *bytes;
            packed.members += 1;
        }
        drop(all);
        Member { family, weights }
    }

    fn find(&self, tenant: &TenantId, weights: &BTreeMap<ContentHash, u64>) -> Option<Arc<Family>> {
        let families = lock(&self.0.families);
        let families = families.iter().filter_map(Weak::upgrade).filter(|family| family.tenant == *tenant);
        let common = families.filter_map(|family| Some((family.common_bytes(weights)?, family)));
        common.max_by_key(|(bytes, _)| *bytes).map(|(_, family)| family)
    }

    fn begin(&self, tenant: &TenantId) -> Arc<Family> {
        let family = Arc::new(Family {
            number: self.0.families_made.fetch_add(1, Ordering::Relaxed),
            tenant: tenant.clone(),
            prepacked: PrepackedWeights::new(),
            weights: Mutex::default(),
        });
        let mut families = lock(&self.0.families);
        families.retain(|family| family.strong_count() > 0);
        families.push(Arc::downgrade(&family));
        family
    }
}

impl Family {
    /// How much of a model's weights its members have; none if the model does not belong there.
    fn common_bytes(&self, weights: &BTreeMap<ContentHash, u64>) -> Option<u64> {
        let all = lock(&self.weights);
        let (there, left): (Vec<_>, Vec<_>) = all.values().partition(|packed| packed.members > 0);
        let bytes = |packed: Vec<&Packed>| packed.iter().map(|packed| packed.bytes).sum::<u64>();
        let is_there = |hash: &ContentHash| all.get(hash).is_some_and(|packed| packed.members > 0);
        let common: u64 = weights.iter().filter(|(hash, _)| is_there(hash)).map(|(_, bytes)| bytes).sum();
        let is_close = common > 0 && common * COMMON_SHARE >= weights.values().sum();
        (is_close && bytes(left) * LEFT_SHARE <= bytes(there)).then_some(common)
    }
}

impl Member {
    /// Weights in the form that the kernels want, where that is another.
    pub(super) fn prepacked(&self) -> &PrepackedWeights {
        &self.family.prepacked
    }

    /// Which family it is.
    pub(super) fn family(&self) -> u64 {
        self.family.number
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut all = lock(&self.family.weights);
        for hash in self.weights.keys() {
            if let Some(packed) = all.get_mut(hash) {
                packed.members -= 1;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
