//! What the models of a tenant have in common, as the scheduler is told: weights that are in a device's memory once, however many of the models
//! there have them (seed 004, section 4).
//!
//! Weights that the same models have are one [`Part`], so that a model has a few parts and not hundreds of weights. Parts follow from what is
//! pushed and from nothing else: all nodes of a cluster have the same. They are worked out when they are asked for, once for each change of
//! the tenant's models, and not when models come and go: a node starts with thousands of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use weir_inference::{Prepared, Shareable};
use weir_scheduler::{Part, PartId};
use weir_types::{ContentHash, Hasher, ModelId, Platform, TenantId};

/// Parts smaller than this are not worth telling.
const PART_BYTES_MIN: u64 = 64 << 10;

/// The largest parts of a model that are told; the others count as its own.
const PARTS_MAX: usize = 8;

/// A model's parts, as they are at the moment.
#[derive(Debug)]
pub(crate) struct Shared {
    tenant: TenantId,
    weights: Vec<Shareable>,
    holdings: Arc<Holdings>,
    known: RwLock<Known>,
}

/// Parts, and after which change they were worked out; before the first they never were.
#[derive(Debug, Default)]
struct Known {
    change: u64,
    parts: Arc<[Part]>,
}

/// Who has which weights.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    tenants: HashMap<TenantId, Arc<Holdings>>,
    models: HashMap<ModelId, (Holder, Arc<Shared>)>,
}

/// The weights of one tenant's models.
#[derive(Debug, Default)]
struct Holdings {
    /// How often models have come and gone. Changes only while the weights are locked.
    changes: AtomicU64,
    weights: Mutex<HashMap<ContentHash, Holders>>,
    /// How many weights were looked up, so that tests see what it costs.
    #[cfg(test)]
    lookups: AtomicU64,
}

/// A model, as its weights know it.
#[derive(Debug, Clone, Copy)]
struct Holder {
    /// A number that is drawn: the sum of some says which models those are.
    lot: u128,
    /// What all of its weights take.
    bytes: u64,
}

/// Whether something is left after a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Some,
    Nothing,
}

/// The models that have a weight: as much of them as it takes to tell whether another weight has the same.
#[derive(Debug, Default)]
struct Holders {
    count: usize,
    lots: u128,
    /// How many there are of each size.
    sizes: BTreeMap<u64, usize>,
}

impl Shared {
    pub(crate) fn get(&self) -> Arc<[Part]> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if known.change == self.holdings.changes.load(Ordering::Acquire) {
            return known.parts.clone();
        }
        drop(known);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        *known = self.holdings.parts(&self.tenant, &self.weights);
        known.parts.clone()
    }
}

impl Sharing {
    /// A model is there, or is another than before; where it runs in a worker of its tenant's, that takes `worker_bytes`. Returns what its parts can be
    /// read from.
    pub(super) fn add(&mut self, id: &ModelId, prepared: &Prepared, worker_bytes: u64) -> Arc<Shared> {
        self.remove(id);
        let mut weights = weights_of(prepared);
        if worker_bytes > 0 {
            // As good as a weight that all graphs of the tenant have.
            let hash = ContentHash::of(b"the worker for kernels of a tenant");
            weights.push(Shareable { hash, bytes: worker_bytes, packed_bytes: 0 });
        }
        let holder = Holder { lot: rand::random(), bytes: sum(weights.iter().map(|weight| weight.bytes)) };
        let holdings = self.tenants.entry(id.tenant.clone()).or_default().clone();
        holdings.add(holder, &weights);
        let shared =
            Arc::new(Shared { tenant: id.tenant.clone(), weights, holdings, known: RwLock::default() });
        self.models.insert(id.clone(), (holder, shared.clone()));
        shared
    }

    /// A model is not there any more.
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

    /// Says whether anything is left.
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
        let weights = self.lock();
        self.changes.fetch_add(1, Ordering::Release);
        weights
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ContentHash, Holders>> {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those weights of a model that others have too, by who has them.
    fn parts(&self, tenant: &TenantId, weights: &[Shareable]) -> Known {
        #[cfg(test)]
        self.lookups.fetch_add(weights.len() as u64, Ordering::Relaxed);
        let all = self.lock();
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
        Known { change, parts: parts.into() }
    }
}

impl Holders {
    fn add(&mut self, holder: Holder) {
        self.count += 1;
        self.lots = self.lots.wrapping_add(holder.lot);
        *self.sizes.entry(holder.bytes).or_default() += 1;
    }

    /// Says whether any is left.
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

    /// What these models have in common, which is at least these weights. What another tenant has of the same is something else: tenants do not
    /// share the form that kernels want.
    fn part(&self, tenant: &TenantId, weights: &[&Shareable]) -> Part {
        let mut name = Hasher::default();
        name.update(ContentHash::of(tenant.as_str().as_bytes()).to_string().as_bytes());
        weights.iter().for_each(|weight| name.update(weight.hash.to_string().as_bytes()));
        let bytes = sum(weights.iter().map(|weight| weight.bytes));
        // The other form is shared by those that have most of their weights in common, and by no others.
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

/// A model's weights, by hash, in the form that it takes on most devices.
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
            hash: ContentHash::of(&[*number]),
            offset: 0,
            bytes: MIB,
        };
        let weight_bytes = weights.len() as u64 * MIB;
        let variant = Variant {
            platform: Platform::Cpu,
            content: Content::default(),
            only_on: None,
            precision: Precision::default(),
            skeleton: ContentHash::of(b"skeleton"),
            weights: weights.iter().map(weight).collect(),
            placeholder: None,
            weight_bytes,
            // As much again in another form, and a little for a session.
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

    fn bytes(shared: &Shared) -> Vec<u64> {
        shared.get().iter().map(|part| part.bytes / MIB).collect()
    }

    #[test]
    fn what_the_same_models_have_is_one_part_with_one_name() {
        let mut sharing = Sharing::default();
        let one = sharing.add(&id("one"), &prepared(&[1, 2, 3, 4]), 0);
        assert_eq!(bytes(&one), [0; 0]);
        let other = sharing.add(&id("other"), &prepared(&[5, 1, 2, 3]), 0);
        assert_eq!((bytes(&one), one.get()), (vec![6], other.get()));
        // A part comes in two where a third model has only some of it. Of that, no form for kernels is shared: it is less than half.
        let third = sharing.add(&id("third"), &prepared(&[1, 6, 7, 8]), 0);
        assert_eq!((bytes(&one), bytes(&other), bytes(&third)), (vec![4, 1], vec![4, 1], vec![1]));
        assert!(one.get().contains(&third.get()[0]));
        sharing.remove(&id("third"));
        assert_eq!((bytes(&one), one.get()), (vec![6], other.get()));
        sharing.remove(&id("one"));
        sharing.remove(&id("one"));
        assert_eq!(bytes(&other), [0; 0]);
    }

    /// A family was worked out anew for each model that came to it: at a start, in the square of its size.
    #[test]
    fn parts_of_a_family_are_worked_out_once_and_only_for_those_who_ask() {
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
    fn names_are_the_same_on_all_nodes_and_tenants_share_nothing() {
        let (mut here, mut there) = (Sharing::default(), Sharing::default());
        let one = here.add(&id("one"), &prepared(&[1, 2]), 0);
        here.add(&id("other"), &prepared(&[2, 1]), 0);
        there.add(&id("other"), &prepared(&[2, 1]), 0);
        assert_eq!(there.add(&id("one"), &prepared(&[1, 2]), 0).get(), one.get());
        let stranger = ModelId { tenant: TenantId::new("stranger").unwrap(), ..id("one") };
        let theirs = here.add(&stranger, &prepared(&[1, 2]), 0);
        assert_eq!(bytes(&theirs), [0; 0]);
        // Nor where they have the same: in memory it is there twice.
        here.add(&ModelId { name: Name::new("other").unwrap(), ..stranger }, &prepared(&[2, 1]), 0);
        assert_eq!(bytes(&theirs), bytes(&one));
        assert_ne!(theirs.get()[0].id, one.get()[0].id);
    }
}
