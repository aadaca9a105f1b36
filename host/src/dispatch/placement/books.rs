//! What is kept of each of this node's devices: what is in its memory, what of that may go, and for whom it has to stay.

use crate::cluster::wire::{Granted, Resident};
use crate::devices::Ordinal;
use std::collections::BTreeMap;
use weir_scheduler::{DeviceSpec, Evictable};
use weir_types::{InvocationId, ModelId};

/// The books of all devices, by ordinal. What is said of a device that there is not says nothing.
pub(super) struct Books(Vec<Book>);

#[derive(Default)]
struct Book {
    evictable: Evictable,
    /// What the placer has been told is in memory.
    resident: BTreeMap<ModelId, Resident>,
    is_down: bool,
    /// Memory for models, once it has changed.
    capacity_bytes: Option<u64>,
}

/// What is to be told of a model in memory.
pub(super) struct Come {
    pub(super) resident: Resident,
    /// It was not there before.
    pub(super) is_new: bool,
}

impl Books {
    pub(super) fn new(devices: usize) -> Self {
        Self(std::iter::repeat_with(Book::default).take(devices).collect())
    }

    /// An invocation begins here with what it was granted.
    pub(super) fn begin(&mut self, invocation: InvocationId, Granted { device, models, evict }: Granted) {
        if let Some(book) = device.and_then(|device| self.get_mut(device))
            && (!models.is_empty() || !evict.is_empty())
        {
            book.evictable.start(invocation, models, evict);
        }
    }

    /// An invocation uses one more model, on this device.
    pub(super) fn add(&mut self, invocation: InvocationId, device: Ordinal, model: ModelId) {
        if let Some(book) = self.get_mut(device) {
            book.evictable.add(invocation, model);
        }
    }

    /// An invocation is over, wherever it had something.
    pub(super) fn finish(&mut self, invocation: InvocationId) {
        for book in &mut self.0 {
            book.evictable.finish(invocation);
        }
    }

    /// These may go, whoever runs.
    pub(super) fn allow(&mut self, device: Ordinal, evict: Vec<ModelId>) {
        if let Some(book) = self.get_mut(device) {
            book.evictable.allow(evict);
        }
    }

    /// Whether something may go as soon as those who hold it are done.
    pub(super) fn is_held_up(&self, device: Ordinal) -> bool {
        self.get(device).is_some_and(|book| book.evictable.is_held_up())
    }

    /// What may go now, first to go first.
    pub(super) fn victims(&self, device: Ordinal) -> Vec<ModelId> {
        self.get(device).map(|book| book.evictable.victims()).unwrap_or_default()
    }

    /// What is in memory that no invocation here was granted, and that nobody has allowed to go.
    pub(super) fn unneeded(&self, device: Ordinal) -> Vec<ModelId> {
        self.get(device).map(|book| book.evictable.unneeded(book.resident.keys())).unwrap_or_default()
    }

    /// What is in a device's memory.
    pub(super) fn residents(&self, device: Ordinal) -> Vec<ModelId> {
        self.get(device).map(|book| book.resident.keys().cloned().collect()).unwrap_or_default()
    }

    /// The same of all devices.
    pub(super) fn all_resident(&self) -> Vec<Resident> {
        self.0.iter().flat_map(|book| book.resident.values()).cloned().collect()
    }

    /// A device's memory holds this now: what has left it, and what has come or has something else in common with others than before.
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

    /// A device is there, or not. False if that is no news.
    pub(super) fn set_up(&mut self, device: Ordinal, is_up: bool) -> bool {
        let Some(book) = self.get_mut(device) else { return false };
        std::mem::replace(&mut book.is_down, !is_up) == is_up
    }

    /// One of `devices` has so much memory for models. False if that is no news.
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

    /// The devices, with the memory for models that they have now.
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
    fn each_device_has_books_of_its_own() {
        let mut books = Books::new(2);
        let (gone, come) = books.settle(0, vec![resident("a"), resident("b")]);
        assert_eq!((gone, come.len()), (vec![], 2));
        books.settle(1, vec![resident("a")]);
        assert_eq!((books.residents(0).len(), books.residents(1)), (2, vec![model("a")]));
        // What may go on one device stays on the other, and so does what is granted there.
        let granted = Granted { device: Some(1), models: vec![model("a")], evict: vec![] };
        books.begin(InvocationId(1), granted);
        books.allow(0, vec![model("a")]);
        books.allow(1, vec![model("a")]);
        assert_eq!((books.victims(0), books.victims(1)), (vec![model("a")], vec![]));
        assert_eq!((books.is_held_up(0), books.is_held_up(1)), (false, true));
        // What is used besides stays, too, until the invocation is over.
        books.add(InvocationId(1), 0, model("a"));
        assert_eq!(books.victims(0), []);
        books.finish(InvocationId(1));
        // What was used again has to be allowed to go again.
        assert_eq!((books.victims(0), books.victims(1)), (vec![], vec![model("a")]));
        assert_eq!(books.settle(0, vec![resident("b")]).0, [model("a")]);
        assert_eq!((books.victims(0), books.unneeded(0)), (vec![], vec![model("b")]));
    }

    #[test]
    fn one_that_has_something_else_in_common_is_news_once() {
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
    fn a_device_is_lost_once_and_one_that_there_is_not_never() {
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
