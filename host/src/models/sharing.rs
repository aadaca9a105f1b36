//! What the models of a tenant have in common, as the scheduler is told: weights that are in a device's memory once, however many of the models
//! there have them (seed 004, section 4).
//!
//! Weights that the same models have are one [`Part`], so that a model has a few parts and not hundreds of weights. Parts follow from what is
//! pushed and from nothing else: all nodes of a cluster have the same.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use weir_inference::{Prepared, Shareable};
use weir_scheduler::{Part, PartId};
use weir_types::{ContentHash, Hasher, ModelId, Platform, TenantId};

/// Parts smaller than this are not worth telling.
const PART_BYTES_MIN: u64 = 64 << 10;

/// The largest parts of a model that are told; the others count as its own.
const PARTS_MAX: usize = 8;

/// A model's parts, as they are at the moment.
#[derive(Debug, Default)]
pub(crate) struct Shared(RwLock<Arc<[Part]>>);

impl Shared {
    pub(crate) fn get(&self) -> Arc<[Part]> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, parts: Vec<Part>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = parts.into();
    }
}

/// Who has which weights.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// By tenant and weights: the models that have them.
    holders: HashMap<(TenantId, ContentHash), Vec<ModelId>>,
    models: HashMap<ModelId, (Arc<Shared>, Vec<Shareable>)>,
}

impl Sharing {
    /// A model is there, or is another than before. Returns what its parts can be read from.
    pub(super) fn add(&mut self, id: &ModelId, prepared: &Prepared) -> Arc<Shared> {
        self.remove(id);
        let weights = weights_of(prepared);
        for weight in &weights {
            self.holders.entry((id.tenant.clone(), weight.hash)).or_default().push(id.clone());
        }
        let shared = Arc::<Shared>::default();
        self.models.insert(id.clone(), (shared.clone(), weights));
        self.tell_those_like(id);
        shared
    }

    /// A model is not there any more.
    pub(super) fn remove(&mut self, id: &ModelId) {
        let like = self.like(id);
        let Some((_, weights)) = self.models.remove(id) else { return };
        for weight in weights {
            let key = (id.tenant.clone(), weight.hash);
            if let Some(holders) = self.holders.get_mut(&key) {
                holders.retain(|holder| holder != id);
                if holders.is_empty() {
                    self.holders.remove(&key);
                }
            }
        }
        like.iter().for_each(|other| self.tell(other));
    }

    fn tell_those_like(&self, id: &ModelId) {
        self.like(id).iter().chain([id]).for_each(|model| self.tell(model));
    }

    /// The other models that have weights of this one.
    fn like(&self, id: &ModelId) -> Vec<ModelId> {
        let Some((_, weights)) = self.models.get(id) else { return Vec::new() };
        let holders =
            weights.iter().filter_map(|weight| self.holders.get(&(id.tenant.clone(), weight.hash))).flatten();
        let mut like: Vec<ModelId> = holders.filter(|other| *other != id).cloned().collect();
        like.sort_unstable();
        like.dedup();
        like
    }

    fn tell(&self, id: &ModelId) {
        if let Some((shared, weights)) = self.models.get(id) {
            shared.set(self.parts(id, weights));
        }
    }

    /// Those weights of a model that others have too, by who has them.
    fn parts(&self, id: &ModelId, weights: &[Shareable]) -> Vec<Part> {
        let mut groups: HashMap<&[ModelId], Vec<&Shareable>> = HashMap::new();
        for weight in weights {
            match self.holders.get(&(id.tenant.clone(), weight.hash)) {
                Some(holders) if holders.len() > 1 => groups.entry(holders).or_default().push(weight),
                _ => {}
            }
        }
        let mut parts: Vec<Part> =
            groups.into_iter().map(|(holders, weights)| self.part(holders, &weights)).collect();
        parts.retain(|part| part.bytes >= PART_BYTES_MIN);
        parts.sort_unstable_by_key(|part| (std::cmp::Reverse(part.bytes), part.id));
        parts.truncate(PARTS_MAX);
        parts
    }

    /// What these models have in common, which is at least these weights.
    fn part(&self, holders: &[ModelId], weights: &[&Shareable]) -> Part {
        let mut name = Hasher::default();
        weights.iter().for_each(|weight| name.update(weight.hash.to_string().as_bytes()));
        let bytes = sum(weights.iter().map(|weight| weight.bytes));
        // The other form is shared by those that have most of their weights in common, and by no others.
        let is_most = |model: &ModelId| {
            let all =
                self.models.get(model).map(|(_, weights)| sum(weights.iter().map(|weight| weight.bytes)));
            all.is_some_and(|all| bytes >= all / 2)
        };
        let packed_bytes = match holders.iter().all(is_most) {
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
    use weir_types::{ElementType, Name, Signature, Version};

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
        let one = sharing.add(&id("one"), &prepared(&[1, 2, 3, 4]));
        assert_eq!(bytes(&one), [0; 0]);
        let other = sharing.add(&id("other"), &prepared(&[5, 1, 2, 3]));
        assert_eq!((bytes(&one), one.get()), (vec![6], other.get()));
        // A part comes in two where a third model has only some of it. Of that, no form for kernels is shared: it is less than half.
        let third = sharing.add(&id("third"), &prepared(&[1, 6, 7, 8]));
        assert_eq!((bytes(&one), bytes(&other), bytes(&third)), (vec![4, 1], vec![4, 1], vec![1]));
        assert!(one.get().contains(&third.get()[0]));
        sharing.remove(&id("third"));
        assert_eq!((bytes(&one), one.get()), (vec![6], other.get()));
        sharing.remove(&id("one"));
        sharing.remove(&id("one"));
        assert_eq!(bytes(&other), [0; 0]);
    }

    #[test]
    fn names_are_the_same_on_all_nodes_and_tenants_share_nothing() {
        let (mut here, mut there) = (Sharing::default(), Sharing::default());
        let one = here.add(&id("one"), &prepared(&[1, 2]));
        here.add(&id("other"), &prepared(&[2, 1]));
        there.add(&id("other"), &prepared(&[2, 1]));
        assert_eq!(there.add(&id("one"), &prepared(&[1, 2])).get(), one.get());
        let stranger = ModelId { tenant: TenantId::new("stranger").unwrap(), ..id("one") };
        assert_eq!(bytes(&here.add(&stranger, &prepared(&[1, 2]))), [0; 0]);
    }
}
