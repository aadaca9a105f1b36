//! Per-device residency of this node: loaded, evictable and pinned models.

use crate::cluster::wire::{Granted, Resident};
use crate::devices::Ordinal;
use std::collections::BTreeMap;
use weir_scheduler::{DeviceSpec, Evictable};
use weir_types::{InvocationId, ModelId};

/// The residency of all devices, by ordinal. Unknown ordinals are ignored.
pub(super) struct Books(Vec<Book>);

#[derive(Default)]
struct Book {
    evictable: Evictable,
    /// The resident models, as reported to the placer.
    resident: BTreeMap<ModelId, Resident>,
    is_down: bool,
    /// The memory for models, once it differs from the initial capacity.
    capacity_bytes: Option<u64>,
}

/// A resident model to report.
pub(super) struct Come {
    pub(super) resident: Resident,
    /// The model was not resident before.
    pub(super) is_new: bool,
}

impl Books {
    pub(super) fn new(devices: usize) -> Self {
        Self(std::iter::repeat_with(Book::default).take(devices).collect())
    }

    /// Records that an invocation starts here with its grant.
    pub(super) fn begin(&mut self, invocation: InvocationId, Granted { device, models, evict }: Granted) {
        if let Some(book) = device.and_then(|device| self.get_mut(device))
            && (!models.is_empty() || !evict.is_empty())
        {
            book.evictable.start(invocation, models, evict);
        }
    }

    /// Records that an invocation uses one more model, on this device.
    pub(super) fn add(&mut self, invocation: InvocationId, device: Ordinal, model: ModelId) {
        if let Some(book) = self.get_mut(device) {
            book.evictable.add(invocation, model);
        }
    }

    /// Records that an invocation is over, on all devices.
    pub(super) fn finish(&mut self, invocation: InvocationId) {
        for book in &mut self.0 {
            book.evictable.finish(invocation);
        }
    }

    /// Marks these models as evictable.
    pub(super) fn allow(&mut self, device: Ordinal, evict: Vec<ModelId>) {
        if let Some(book) = self.get_mut(device) {
            book.evictable.allow(evict);
        }
    }

    /// Whether evictable models are held up by running invocations.
    pub(super) fn is_held_up(&self, device: Ordinal) -> bool {
        self.get(device).is_some_and(|book| book.evictable.is_held_up())
    }

    /// The models that may be evicted now, in the order of eviction.
    pub(super) fn victims(&self, device: Ordinal) -> Vec<ModelId> {
        self.get(device).map(|book| book.evictable.victims()).unwrap_or_default()
    }

    /// The resident models that are neither granted to an invocation here nor marked as evictable.
    pub(super) fn unneeded(&self, device: Ordinal) -> Vec<ModelId> {
        self.get(device).map(|book| book.evictable.unneeded(book.resident.keys())).unwrap_or_default()
    }

    /// The models in a device's memory.
    pub(super) fn residents(&self, device: Ordinal) -> Vec<ModelId> {
        self.get(device).map(|book| book.resident.keys().cloned().collect()).unwrap_or_default()
    }

    /// The models in the memory of all devices.
    pub(super) fn all_resident(&self) -> Vec<Resident> {
        self.0.iter().flat_map(|book| book.resident.values()).cloned().collect()
    }

    /// Sets the contents of a device's memory. Returns the models that have left it, and the models
    /// that are new or whose shared parts have changed.
    pub(super) fn settle(&mut self, device: Ordinal, now: Vec<Resident>) -> (Vec<ModelId>, Vec<Come>) {
        let Some(book) = self.get_mut(device) else { return Default::default() };
        let now: BTreeMap<_, _> =
            now.into_iter().map(|resident| (resident.model.clone(), resident)).collect();
        let before = std::mem::replace(&mut book.resident, now.clone());
        let gone: Vec<_> = before.keys().filter(|model| !now.contains_key(model)).cloned().collect();
        for model in &gone {
            book.evictable.evicted(model);
        }
        let news = |resident: Resident| match before.get(&resident.model) {
            None => Some(Come { resident, is_new: true }),
            Some(before) if before.parts != resident.parts => Some(Come { resident, is_new: false }),
            Some(_) => None,
        };
        (gone, now.into_values().filter_map(news).collect())
    }

    /// Sets whether a device is up. Returns false if nothing changes.
    pub(super) fn set_up(&mut self, device: Ordinal, is_up: bool) -> bool {
        let Some(book) = self.get_mut(device) else { return false };
        std::mem::replace(&mut book.is_down, !is_up) == is_up
    }

    /// Sets the memory for models of one of `devices`. Returns false if nothing changes.
    pub(super) fn set_capacity(
        &mut self,
        device: Ordinal,
        capacity_bytes: u64,
        devices: &[DeviceSpec],
    ) -> bool {
        let at_start = usize::try_from(device).ok().and_then(|at| devices.get(at));
        let Some(book) = self.get_mut(device) else { return false };
        let before = book.capacity_bytes.replace(capacity_bytes);
        before.or(at_start.map(|device| device.capacity_bytes)) != Some(capacity_bytes)
    }

    /// The devices, with their current memory for models.
    pub(super) fn resized(&self, devices: &[DeviceSpec]) -> Vec<DeviceSpec> {
        let capacities = self.0.iter().map(|book| book.capacity_bytes).chain(std::iter::repeat(None));
        let resized = |(device, capacity_bytes): (&DeviceSpec, Option<u64>)| DeviceSpec {
            capacity_bytes: capacity_bytes.unwrap_or(device.capacity_bytes),
            ..device.clone()
        };
        devices.iter().zip(capacities).map(resized).collect()
    }

    /// The devices that are lost.
    pub(super) fn down(&self) -> Vec<Ordinal> {
        (0..).zip(&self.0).filter(|(_, book)| book.is_down).map(|(device, _)| device).collect()
    }

    fn get(&self, device: Ordinal) -> Option<&Book> {
        self.0.get(usize::try_from(device).ok()?)
    }

    fn get_mut(&mut self, device: Ordinal) -> Option<&mut Book> {
        self.0.get_mut(usize::try_from(device).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_scheduler::{Part, PartId};
    use weir_types::{Name, TenantId, Version};

    fn model(name: &str) -> ModelId {
        ModelId { tenant: TenantId::default(), name: Name::new(name).unwrap(), version: Version(1) }
    }

    fn resident(name: &str) -> Resident {
        Resident { device: 0, model: model(name), bytes: 1, parts: Vec::new() }
    }

    #[test]
    fn devices_are_tracked_separately() {
        let mut books = Books::new(2);
        let (gone, come) = books.settle(0, vec![resident("a"), resident("b")]);
        assert_eq!((gone, come.len()), (vec![], 2));
        books.settle(1, vec![resident("a")]);
        assert_eq!((books.residents(0).len(), books.residents(1)), (2, vec![model("a")]));
        // An eviction allowed on one device does not apply to the other, and neither does a grant.
        let granted = Granted { device: Some(1), models: vec![model("a")], evict: vec![] };
        books.begin(InvocationId(1), granted);
        books.allow(0, vec![model("a")]);
        books.allow(1, vec![model("a")]);
        assert_eq!((books.victims(0), books.victims(1)), (vec![model("a")], vec![]));
        assert_eq!((books.is_held_up(0), books.is_held_up(1)), (false, true));
        // A model used in addition to the grant is pinned, too, until the invocation is over.
        books.add(InvocationId(1), 0, model("a"));
        assert_eq!(books.victims(0), []);
        books.finish(InvocationId(1));
        // A model that was used again needs a new permission to be evicted.
        assert_eq!((books.victims(0), books.victims(1)), (vec![], vec![model("a")]));
        assert_eq!(books.settle(0, vec![resident("b")]).0, [model("a")]);
        assert_eq!((books.victims(0), books.unneeded(0)), (vec![], vec![model("b")]));
    }

    #[test]
    fn changed_shared_parts_are_reported_once() {
        let mut books = Books::new(1);
        books.settle(0, vec![resident("a"), resident("b")]);
        let shared = || Resident { parts: vec![Part { id: PartId(1), bytes: 1 }], ..resident("a") };
        for news in [1, 0] {
            let (gone, come) = books.settle(0, vec![shared(), resident("b")]);
            assert_eq!((gone, come.len()), (vec![], news));
        }
        assert_eq!(books.all_resident().len(), 2);
    }

    #[test]
    fn device_loss_is_reported_once() {
        let mut books = Books::new(2);
        assert!(!books.set_up(0, true) && !books.set_up(7, false));
        assert!(books.set_up(1, false) && !books.set_up(1, false));
        assert_eq!(books.down(), [1]);
        assert!(books.set_up(1, true));
        assert!(books.down().is_empty());
        books.allow(7, vec![model("a")]);
        assert_eq!((books.victims(7), books.residents(7)), (vec![], vec![]));
    }
}
