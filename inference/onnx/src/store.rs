//! State that resident models share: weight files, each mapped once for all models, and packed
//! weights, in the layout that the kernels want.
//!
//! A file is mapped from the first model that uses it to the last. Packed weights belong to ONNX
//! Runtime: it finds equal weights by their contents, but frees nothing before the whole container
//! is dropped. Models therefore share packed weights in families: models of one tenant with most of
//! their weights in common. A family ends with its last model. A family with too many leftovers of
//! departed models accepts no new members, which limits the leftovers. ONNX Runtime compares
//! contents by a hash that is not collision-resistant, so tenants do not share packed weights.

use ort::session::builder::PrepackedWeights;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use weir_inference::{MappedFile, Variant, VerifiedFiles};
use weir_types::{ContentHash, TenantId};

/// Denominator: a model joins only a family whose members have at least `1 / COMMON_SHARE` of the
/// model's weights, by bytes.
const COMMON_SHARE: u64 = 2;
/// Denominator: a family accepts new members while the leftovers of departed members take at most
/// `1 / LEFT_SHARE` of the bytes of its current members' weights.
const LEFT_SHARE: u64 = 4;

/// The weights of all resident models of a backend. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct WeightStore(Arc<Inner>);

#[derive(Default)]
struct Inner {
    files: Mutex<HashMap<PathBuf, Weak<MappedFile>>>,
    families: Mutex<Vec<Weak<Family>>>,
    families_made: AtomicU64,
    verified: VerifiedFiles,
}

/// Models that share packed weights.
struct Family {
    number: u64,
    tenant: TenantId,
    prepacked: PrepackedWeights,
    /// All weights that were ever packed in this family.
    weights: Mutex<HashMap<ContentHash, Packed>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Packed {
    bytes: u64,
    members: usize,
}

/// A model's membership of its family.
pub(crate) struct FamilyMember {
    family: Arc<Family>,
    weights: BTreeMap<ContentHash, u64>,
}

impl WeightStore {
    /// Maps the file, or returns the mapping of another model that uses the file.
    pub(crate) fn file(&self, path: PathBuf) -> io::Result<Arc<MappedFile>> {
        let mut files = self.0.files.lock();
        if let Some(mapped) = files.get(&path).and_then(Weak::upgrade) {
            return Ok(mapped);
        }
        // The lock is held while the file is read: models are loaded one at a time.
        let mapped = Arc::new(MappedFile::open(&path)?);
        if files.len() == files.capacity() {
            files.retain(|_, mapped| mapped.strong_count() > 0);
        }
        files.insert(path, Arc::downgrade(&mapped));
        Ok(mapped)
    }

    /// Files whose content is known to match their hash.
    pub(crate) fn verified(&self) -> &VerifiedFiles {
        &self.0.verified
    }

    /// Number of the family that a model would join; `None` if it would start a new one.
    pub(crate) fn family_of(&self, tenant: &TenantId, variant: &Variant) -> Option<u64> {
        self.find(tenant, &variant.weight_files()).map(|family| family.number)
    }

    /// Adds a model to its family, or to a new one.
    pub(crate) fn join(&self, tenant: &TenantId, variant: &Variant) -> FamilyMember {
        let weights = variant.weight_files();
        let family = self.find(tenant, &weights).unwrap_or_else(|| self.begin(tenant));
        let mut all = family.weights.lock();
        for (hash, bytes) in &weights {
            let packed = all.entry(*hash).or_default();
            packed.bytes = *bytes;
            packed.members += 1;
        }
        drop(all);
        FamilyMember { family, weights }
    }

    fn find(&self, tenant: &TenantId, weights: &BTreeMap<ContentHash, u64>) -> Option<Arc<Family>> {
        let families = self.0.families.lock();
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
        let mut families = self.0.families.lock();
        families.retain(|family| family.strong_count() > 0);
        families.push(Arc::downgrade(&family));
        family
    }
}

impl Family {
    /// Bytes of a model's weights that current members have; `None` if the model does not fit the
    /// family.
    fn common_bytes(&self, weights: &BTreeMap<ContentHash, u64>) -> Option<u64> {
        let all = self.weights.lock();
        let (there, left): (Vec<_>, Vec<_>) = all.values().partition(|packed| packed.members > 0);
        let bytes = |packed: Vec<&Packed>| packed.iter().map(|packed| packed.bytes).sum::<u64>();
        let is_there = |hash: &ContentHash| all.get(hash).is_some_and(|packed| packed.members > 0);
        let common: u64 = weights.iter().filter(|(hash, _)| is_there(hash)).map(|(_, bytes)| bytes).sum();
        let is_close = common > 0 && common * COMMON_SHARE >= weights.values().sum();
        (is_close && bytes(left) * LEFT_SHARE <= bytes(there)).then_some(common)
    }
}

impl FamilyMember {
    /// The family's packed weights.
    pub(crate) fn prepacked(&self) -> &PrepackedWeights {
        &self.family.prepacked
    }

    /// Number of the family.
    pub(crate) fn family(&self) -> u64 {
        self.family.number
    }
}

impl Drop for FamilyMember {
    fn drop(&mut self) {
        let mut all = self.family.weights.lock();
        for hash in self.weights.keys() {
            if let Some(packed) = all.get_mut(hash) {
                packed.members -= 1;
            }
        }
    }
}
