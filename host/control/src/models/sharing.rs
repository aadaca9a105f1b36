//! The weights that a tenant's models share, as reported to the scheduler: a device's memory holds
//! shared weights once for all its models (the Tetris paper, section 4).
//!
//! Weights with the same set of models form one [`Part`], so that a model has a few parts instead
//! of hundreds of weights. Parts depend on the pushed models only, so all nodes of a cluster
//! compute the same parts. Parts are computed on request, once per change of the tenant's models,
//! and not when a model is added or removed: a node starts with thousands of models.

use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_inference::{Prepared, Shareable};
use weir_scheduler::{Part, PartId};
use weir_types::{ContentHash, Hasher, ModelId, Platform, TenantId};

/// Smaller parts are not reported.
const PART_BYTES_MIN: u64 = 64 << 10;

/// The number of parts reported per model, largest first; the rest counts as the model's own.
const PARTS_MAX: usize = 8;

/// A model's current parts.
#[derive(Debug)]
pub struct SharedModelParts {
    tenant: TenantId,
    weights: Vec<Shareable>,
    holdings: Arc<Holdings>,
    known: RwLock<PartsSnapshot>,
}

/// Parts, and the change after which they were computed; 0: never.
#[derive(Debug, Default)]
struct PartsSnapshot {
    change: u64,
    parts: Arc<[Part]>,
}

/// The sharing of weights among all models.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    tenants: HashMap<TenantId, Arc<Holdings>>,
    models: HashMap<ModelId, (Holder, Arc<SharedModelParts>)>,
}

/// The weights of one tenant's models.
#[derive(Debug, Default)]
struct Holdings {
    /// The number of additions and removals. Modified only while `weights` is locked.
    changes: AtomicU64,
    weights: Mutex<HashMap<ContentHash, Holders>>,
    /// The number of weight lookups, for tests of the cost.
    #[cfg(test)]
    lookups: AtomicU64,
}

/// A model, from the point of view of its weights.
#[derive(Debug, Clone, Copy)]
struct Holder {
    /// A random number: the sum over a set of models identifies the set.
    lot: u128,
    /// The total size of the model's weights.
    bytes: u64,
}

/// Whether a removal has left entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Some,
    Nothing,
}

/// The models that have a weight, summarised so that weights with the same set of models can be
/// recognised.
#[derive(Debug, Default)]
struct Holders {
    count: usize,
    lots: u128,
    /// The number of models of each total size.
    sizes: BTreeMap<u64, usize>,
}

impl SharedModelParts {
    pub fn get(&self) -> Arc<[Part]> {
        let known = self.known.read();
        if known.change == self.holdings.changes.load(Ordering::Acquire) {
            return known.parts.clone();
        }
        drop(known);
        let mut known = self.known.write();
        *known = self.holdings.parts(&self.tenant, &self.weights);
        known.parts.clone()
    }
}

impl Sharing {
    /// Adds or replaces a model. `worker_bytes` is the memory of its tenant's worker process, if it
    /// runs in one. Returns the handle for reading its parts.
    pub(super) fn add(
        &mut self,
        id: &ModelId,
        prepared: &Prepared,
        worker_bytes: u64,
    ) -> Arc<SharedModelParts> {
        self.remove(id);
        let mut weights = weights_of(prepared);
        if worker_bytes > 0 {
            // Equivalent to a weight that all of the tenant's graphs share.
            let hash = ContentHash::from_content(b"the worker for kernels of a tenant");
            weights.push(Shareable { hash, bytes: worker_bytes, packed_bytes: 0 });
        }
        let holder = Holder { lot: rand::random(), bytes: sum(weights.iter().map(|weight| weight.bytes)) };
        let holdings = self.tenants.entry(id.tenant.clone()).or_default().clone();
        holdings.add(holder, &weights);
        let shared = Arc::new(SharedModelParts {
            tenant: id.tenant.clone(),
            weights,
            holdings,
            known: RwLock::default(),
        });
        self.models.insert(id.clone(), (holder, shared.clone()));
        shared
    }

    /// Removes a model.
    pub(super) fn remove(&mut self, id: &ModelId) {
        let Some((holder, shared)) = self.models.remove(id) else { return };
        if shared.holdings.remove(holder, &shared.weights) == Left::Nothing {
            self.tenants.remove(&id.tenant);
        }
    }
}

impl Holdings {
    fn add(&self, holder: Holder, weights: &[Shareable]) {
        let mut all = self.change();
        weights.iter().for_each(|weight| all.entry(weight.hash).or_default().add(holder));
    }

    /// Returns whether any weights are left.
    fn remove(&self, holder: Holder, weights: &[Shareable]) -> Left {
        let mut all = self.change();
        for weight in weights {
            if all.get_mut(&weight.hash).is_some_and(|holders| holders.remove(holder) == Left::Nothing) {
                all.remove(&weight.hash);
            }
        }
        if all.is_empty() { Left::Nothing } else { Left::Some }
    }

    fn change(&self) -> MutexGuard<'_, HashMap<ContentHash, Holders>> {
        let weights = self.weights.lock();
        self.changes.fetch_add(1, Ordering::Release);
        weights
    }

    /// Computes a model's parts: its weights that other models share, grouped by the set of those
    /// models.
    fn parts(&self, tenant: &TenantId, weights: &[Shareable]) -> PartsSnapshot {
        #[cfg(test)]
        self.lookups.fetch_add(weights.len() as u64, Ordering::Relaxed);
        let all = self.weights.lock();
        let change = self.changes.load(Ordering::Acquire);
        let mut groups: HashMap<u128, (&Holders, Vec<&Shareable>)> = HashMap::new();
        for weight in weights {
            if let Some(holders) = all.get(&weight.hash).filter(|holders| holders.count > 1) {
                groups.entry(holders.lots).or_insert((holders, Vec::new())).1.push(weight);
            }
        }
        let mut parts: Vec<Part> =
            groups.into_values().map(|(holders, weights)| holders.part(tenant, &weights)).collect();
        parts.retain(|part| part.bytes >= PART_BYTES_MIN);
        parts.sort_unstable_by_key(|part| (std::cmp::Reverse(part.bytes), part.id));
        parts.truncate(PARTS_MAX);
        PartsSnapshot { change, parts: parts.into() }
    }
}

impl Holders {
    fn add(&mut self, holder: Holder) {
        self.count += 1;
        self.lots = self.lots.wrapping_add(holder.lot);
        *self.sizes.entry(holder.bytes).or_default() += 1;
    }

    /// Returns whether any holders are left.
    fn remove(&mut self, holder: Holder) -> Left {
        self.count = self.count.saturating_sub(1);
        self.lots = self.lots.wrapping_sub(holder.lot);
        if let Some(count) = self.sizes.get_mut(&holder.bytes) {
            *count -= 1;
            if *count == 0 {
                self.sizes.remove(&holder.bytes);
            }
        }
        if self.count == 0 { Left::Nothing } else { Left::Some }
    }

    /// The part that consists of these weights. Equal weights of different tenants are different
    /// parts, because tenants do not share the packed form.
    fn part(&self, tenant: &TenantId, weights: &[&Shareable]) -> Part {
        let mut name = Hasher::default();
        name.update(ContentHash::from_content(tenant.as_str().as_bytes()).to_string().as_bytes());
        weights.iter().for_each(|weight| name.update(weight.hash.to_string().as_bytes()));
        let bytes = sum(weights.iter().map(|weight| weight.bytes));
        // The packed form is shared only by models that have most of their weights in common.
        let largest = self.sizes.last_key_value().map_or(0, |(bytes, _)| *bytes);
        let packed_bytes = match bytes >= largest / 2 {
            true => sum(weights.iter().map(|weight| weight.packed_bytes)),
            false => 0,
        };
        Part { id: PartId(name.finish().prefix()), bytes: bytes.saturating_add(packed_bytes) }
    }
}

fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

/// A model's weights, by hash, in the form for most devices.
fn weights_of(prepared: &Prepared) -> Vec<Shareable> {
    let forms = [Platform::Cpu, Platform::Cuda, Platform::Fake].map(|platform| prepared.shareable(platform));
    forms.into_iter().find(|weights| !weights.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_inference::{Content, Variant, Weight};
    use weir_types::{ElementType, Name, Precision, Signature, Version};

    const MIB: u64 = 1 << 20;

    fn id(name: &str) -> ModelId {
        ModelId { tenant: TenantId::default(), name: Name::new(name).unwrap(), version: Version(1) }
    }

    /// A model with these weights of 1 MiB each.
    fn prepared(weights: &[u8]) -> Prepared {
        let weight = |number: &u8| Weight {
            name: number.to_string(),
            element_type: ElementType::Fp32,
            dimensions: vec![1 << 18],
            hash: ContentHash::from_content(&[*number]),
            offset: 0,
            bytes: MIB,
        };
        let weight_bytes = weights.len() as u64 * MIB;
        let variant = Variant {
            platform: Platform::Cpu,
            content: Content::default(),
            only_on: None,
            precision: Precision::default(),
            skeleton: ContentHash::from_content(b"skeleton"),
            weights: weights.iter().map(weight).collect(),
            placeholder: None,
            weight_bytes,
            // The same size again for the packed form, and a little for a session.
            resident_bytes: 2 * weight_bytes + 1000,
            session_bytes: Some(1000),
        };
        Prepared {
            signature: Signature::default(),
            weight_bytes,
            resident_bytes: variant.resident_bytes,
            variants: vec![variant],
            unsupported: Vec::new(),
        }
    }

    fn bytes(shared: &SharedModelParts) -> Vec<u64> {
        shared.get().iter().map(|part| part.bytes / MIB).collect()
    }

    #[test]
    fn weights_with_the_same_holders_form_one_part() {
        let mut sharing = Sharing::default();
        let one = sharing.add(&id("one"), &prepared(&[1, 2, 3, 4]), 0);
        assert_eq!(bytes(&one), [0; 0]);
        let other = sharing.add(&id("other"), &prepared(&[5, 1, 2, 3]), 0);
        assert_eq!((bytes(&one), one.get()), (vec![6], other.get()));
        // A third model with a subset splits the part in two. Its packed form is not shared,
        // because the subset is less than half of its weights.
        let third = sharing.add(&id("third"), &prepared(&[1, 6, 7, 8]), 0);
        assert_eq!((bytes(&one), bytes(&other), bytes(&third)), (vec![4, 1], vec![4, 1], vec![1]));
        assert!(one.get().contains(&third.get()[0]));
        sharing.remove(&id("third"));
        assert_eq!((bytes(&one), one.get()), (vec![6], other.get()));
        sharing.remove(&id("one"));
        sharing.remove(&id("one"));
        assert_eq!(bytes(&other), [0; 0]);
    }

    /// Regression test: parts were recomputed for each model added to a family, which took
    /// quadratic time at startup.
    #[test]
    fn parts_are_computed_on_request_and_once_per_change() {
        const FAMILY: u8 = 100;
        let mut sharing = Sharing::default();
        let family: Vec<_> = (0..FAMILY)
            .map(|number| sharing.add(&id(&format!("m{number}")), &prepared(&[200, 201, 202, number]), 0))
            .collect();
        let lookups = || family[0].holdings.lookups.load(Ordering::Relaxed);
        assert_eq!(lookups(), 0, "nobody has asked");
        for _ in 0..2 {
            assert!(family.iter().all(|shared| bytes(shared) == [6]));
            assert_eq!(lookups(), u64::from(FAMILY) * 4);
        }
        sharing.remove(&id("m0"));
        assert_eq!((bytes(&family[1]), lookups()), (vec![6], u64::from(FAMILY) * 4 + 4));
    }

    #[test]
    fn part_ids_are_equal_on_all_nodes_and_differ_by_tenant() {
        let mut here = Sharing::default();
        let mut there = Sharing::default();
        let one = here.add(&id("one"), &prepared(&[1, 2]), 0);
        here.add(&id("other"), &prepared(&[2, 1]), 0);
        there.add(&id("other"), &prepared(&[2, 1]), 0);
        assert_eq!(there.add(&id("one"), &prepared(&[1, 2]), 0).get(), one.get());
        let stranger = ModelId { tenant: TenantId::new("stranger").unwrap(), ..id("one") };
        let theirs = here.add(&stranger, &prepared(&[1, 2]), 0);
        assert_eq!(bytes(&theirs), [0; 0]);
        // Equal weights of another tenant are a different part: memory holds them twice.
        here.add(&ModelId { name: Name::new("other").unwrap(), ..stranger }, &prepared(&[2, 1]), 0);
        assert_eq!(bytes(&theirs), bytes(&one));
        assert_ne!(theirs.get()[0].id, one.get()[0].id);
    }
}
