//! Per-device residency of this node: loaded, evictable and pinned models.

use crate::wire::{AnnouncedModel, Granted};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use weir_scheduler::{DeviceSpec, Evictable, StorageTier};
use weir_types::{InvocationId, ModelId, Ordinal};

/// The time within which the next scheduler requires models that the scheduler before required.
const REQUIRED_AGAIN_MAX: Duration = Duration::from_secs(60);

/// A model in the memory of one of this node's devices, with its load.
pub struct ResidentLoad {
    /// The model.
    pub resident: AnnouncedModel,
    /// The duration of the load.
    pub time: Duration,
    /// Bytes of the model's files by the tier that the load read them from.
    pub from: Vec<(StorageTier, u64)>,
}

/// The changes of a device's memory since the last report.
#[derive(Default)]
pub struct ResidencyChanges {
    /// Loaded models.
    pub loaded: Vec<ResidentLoad>,
    /// Models that have left the memory.
    pub gone: Vec<ModelId>,
}

/// A change of a device's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthChange {
    /// The device was lost, with the contents of its memory.
    Lost,
    /// The device works again.
    Recovered,
}

/// The residency of all devices, by ordinal. Unknown ordinals are ignored.
pub(super) struct ResidencyTable(Vec<DeviceResidency>);

#[derive(Default)]
struct DeviceResidency {
    evictable: Evictable,
    /// The resident models, as reported to the placer.
    resident: BTreeMap<ModelId, AnnouncedModel>,
    is_down: bool,
    /// When the scheduler was replaced, and the models that it required the device to keep.
    required_before: Option<(Instant, Vec<ModelId>)>,
    /// The memory for models; `None` while it is the capacity from the start of the node.
    capacity_bytes: Option<u64>,
}

/// A resident model to report.
pub(super) struct ReportedModel {
    pub(super) resident: AnnouncedModel,
    /// The model was not resident before.
    pub(super) is_new: bool,
}

impl ResidencyTable {
    pub(super) fn new(devices: usize) -> Self {
        Self(std::iter::repeat_with(DeviceResidency::default).take(devices).collect())
    }

    /// Records that an invocation starts here with its grant.
    pub(super) fn begin(&mut self, invocation: InvocationId, Granted { device, models, evict, .. }: Granted) {
        if let Some(device_residency) = device.and_then(|device| self.get_mut(device))
            && (!models.is_empty() || !evict.is_empty())
        {
            device_residency.evictable.start(invocation, models, evict);
        }
    }

    /// Records that an invocation uses one more model, on this device.
    pub(super) fn add(&mut self, invocation: InvocationId, device: Ordinal, model: ModelId) {
        if let Some(device_residency) = self.get_mut(device) {
            device_residency.evictable.add(invocation, model);
        }
    }

    /// Records that an invocation is over, on all devices.
    pub(super) fn finish(&mut self, invocation: InvocationId) {
        for device_residency in &mut self.0 {
            device_residency.evictable.finish(invocation);
        }
    }

    /// Requires a device to keep a model, and marks `evict` as evictable.
    pub(super) fn require(&mut self, device: Ordinal, model: ModelId, evict: Vec<ModelId>) {
        if let Some(device_residency) = self.get_mut(device) {
            device_residency.evictable.require(model, evict);
        }
    }

    /// Ends the requirement. Returns false if there was none.
    pub(super) fn release_required(&mut self, device: Ordinal, model: &ModelId) -> bool {
        self.get_mut(device).is_some_and(|device| device.evictable.release_required(model))
    }

    /// Ends the requirements of all devices, since the scheduler is replaced.
    pub(super) fn release_all_required(&mut self, now: Instant) {
        for device_residency in &mut self.0 {
            let required: Vec<_> = device_residency.evictable.required().cloned().collect();
            for model in &required {
                device_residency.evictable.release_required(model);
            }
            if !required.is_empty() {
                device_residency.required_before = Some((now, required));
            }
        }
    }

    /// Whether a device was required to keep a model by the scheduler before, until a moment ago.
    pub(super) fn was_required(&self, device: Ordinal, model: &ModelId, now: Instant) -> bool {
        let before = self.get(device).and_then(|device| device.required_before.as_ref());
        before.is_some_and(|(at, models)| {
            now.saturating_duration_since(*at) < REQUIRED_AGAIN_MAX && models.contains(model)
        })
    }

    /// Whether a device is required to keep a model.
    pub(super) fn is_required(&self, device: Ordinal, model: &ModelId) -> bool {
        self.get(device).is_some_and(|device| device.evictable.is_required(model))
    }

    /// The required models that are not in the memory of their device.
    pub(super) fn missing(&self) -> Vec<(Ordinal, ModelId)> {
        let missing = |(ordinal, device): (Ordinal, &DeviceResidency)| {
            let required = device.evictable.required();
            let missing = required.filter(|model| !device.resident.contains_key(*model));
            missing.map(|model| (ordinal, model.clone())).collect::<Vec<_>>()
        };
        (0..).zip(&self.0).flat_map(missing).collect()
    }

    /// Marks these models as evictable.
    pub(super) fn allow(&mut self, device: Ordinal, evict: Vec<ModelId>) {
        if let Some(device_residency) = self.get_mut(device) {
            device_residency.evictable.allow(evict);
        }
    }

    /// Whether a running invocation delays the eviction of a model that is marked as evictable.
    pub(super) fn is_held_up(&self, device: Ordinal) -> bool {
        self.get(device).is_some_and(|device_residency| device_residency.evictable.is_held_up())
    }

    /// Whether an invocation on this node holds a grant of a model on a device.
    pub(super) fn is_granted(&self, device: Ordinal, model: &ModelId) -> bool {
        self.get(device).is_some_and(|device_residency| device_residency.evictable.is_granted(model))
    }

    /// The models that may be evicted now, in the order of eviction.
    pub(super) fn victims(&self, device: Ordinal) -> Vec<ModelId> {
        self.get(device).map(|device_residency| device_residency.evictable.victims()).unwrap_or_default()
    }

    /// The resident models that are neither granted to an invocation here nor marked as evictable.
    pub(super) fn unneeded(&self, device: Ordinal) -> Vec<ModelId> {
        self.get(device)
            .map(|device_residency| device_residency.evictable.unneeded(device_residency.resident.keys()))
            .unwrap_or_default()
    }

    /// The models in a device's memory.
    pub(super) fn residents(&self, device: Ordinal) -> Vec<ModelId> {
        self.get(device)
            .map(|device_residency| device_residency.resident.keys().cloned().collect())
            .unwrap_or_default()
    }

    /// The models in the memory of all devices.
    pub(super) fn all_resident(&self) -> Vec<AnnouncedModel> {
        self.0.iter().flat_map(|device_residency| device_residency.resident.values()).cloned().collect()
    }

    /// Sets the contents of a device's memory. Returns the models that have left it, and the models
    /// that are new or whose shared parts have changed.
    pub(super) fn reconcile(
        &mut self,
        device: Ordinal,
        now: Vec<AnnouncedModel>,
    ) -> (Vec<ModelId>, Vec<ReportedModel>) {
        let Some(device_residency) = self.get_mut(device) else { return Default::default() };
        let now: BTreeMap<_, _> =
            now.into_iter().map(|resident| (resident.model.clone(), resident)).collect();
        let before = std::mem::replace(&mut device_residency.resident, now.clone());
        let gone: Vec<_> = before.keys().filter(|model| !now.contains_key(model)).cloned().collect();
        for model in &gone {
            device_residency.evictable.evicted(model);
        }
        let changed = |resident: AnnouncedModel| match before.get(&resident.model) {
            None => Some(ReportedModel { resident, is_new: true }),
            Some(before) if before.parts != resident.parts => Some(ReportedModel { resident, is_new: false }),
            Some(_) => None,
        };
        (gone, now.into_values().filter_map(changed).collect())
    }

    /// Sets whether a device is up. Returns false if nothing changes.
    pub(super) fn set_up(&mut self, device: Ordinal, is_up: bool) -> bool {
        let Some(device_residency) = self.get_mut(device) else { return false };
        std::mem::replace(&mut device_residency.is_down, !is_up) == is_up
    }

    /// Sets the memory for models of one of `devices`. Returns false if nothing changes.
    pub(super) fn set_capacity(
        &mut self,
        device: Ordinal,
        capacity_bytes: u64,
        devices: &[DeviceSpec],
    ) -> bool {
        let at_start = usize::try_from(device).ok().and_then(|at| devices.get(at));
        let Some(device_residency) = self.get_mut(device) else { return false };
        let before = device_residency.capacity_bytes.replace(capacity_bytes);
        before.or(at_start.map(|device| device.capacity_bytes)) != Some(capacity_bytes)
    }

    /// The devices, with their current memory for models.
    pub(super) fn resized(&self, devices: &[DeviceSpec]) -> Vec<DeviceSpec> {
        let capacities = self
            .0
            .iter()
            .map(|device_residency| device_residency.capacity_bytes)
            .chain(std::iter::repeat(None));
        let resized = |(device, capacity_bytes): (&DeviceSpec, Option<u64>)| DeviceSpec {
            capacity_bytes: capacity_bytes.unwrap_or(device.capacity_bytes),
            ..device.clone()
        };
        devices.iter().zip(capacities).map(resized).collect()
    }

    /// The devices that are lost.
    pub(super) fn down(&self) -> Vec<Ordinal> {
        (0..)
            .zip(&self.0)
            .filter(|(_, device_residency)| device_residency.is_down)
            .map(|(device, _)| device)
            .collect()
    }

    fn get(&self, device: Ordinal) -> Option<&DeviceResidency> {
        self.0.get(usize::try_from(device).ok()?)
    }

    fn get_mut(&mut self, device: Ordinal) -> Option<&mut DeviceResidency> {
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

    fn resident(name: &str) -> AnnouncedModel {
        AnnouncedModel { device: 0, model: model(name), bytes: 1, parts: Vec::new() }
    }

    #[test]
    fn devices_are_tracked_separately() {
        let mut residency = ResidencyTable::new(2);
        let (gone, come) = residency.reconcile(0, vec![resident("a"), resident("b")]);
        assert_eq!((gone, come.len()), (vec![], 2));
        residency.reconcile(1, vec![resident("a")]);
        assert_eq!((residency.residents(0).len(), residency.residents(1)), (2, vec![model("a")]));
        // An eviction allowed on one device does not apply to the other, and neither does a grant.
        let granted = Granted {
            device: Some(1),
            models: vec![model("a")],
            evict: vec![],
            origin: None,
            estimate_ns: None,
            is_fallback: false,
        };
        residency.begin(InvocationId(1), granted);
        residency.allow(0, vec![model("a")]);
        residency.allow(1, vec![model("a")]);
        assert_eq!((residency.victims(0), residency.victims(1)), (vec![model("a")], vec![]));
        assert_eq!((residency.is_held_up(0), residency.is_held_up(1)), (false, true));
        assert!(!residency.is_granted(0, &model("a")) && residency.is_granted(1, &model("a")));
        // A model used in addition to the grant is pinned, too, until the invocation is over.
        residency.add(InvocationId(1), 0, model("a"));
        assert_eq!(residency.victims(0), []);
        residency.finish(InvocationId(1));
        // A model that was used again needs a new permission to be evicted.
        assert_eq!((residency.victims(0), residency.victims(1)), (vec![], vec![model("a")]));
        assert_eq!(residency.reconcile(0, vec![resident("b")]).0, [model("a")]);
        assert_eq!((residency.victims(0), residency.unneeded(0)), (vec![], vec![model("b")]));
    }

    #[test]
    fn changed_shared_parts_are_reported_once() {
        let mut residency = ResidencyTable::new(1);
        residency.reconcile(0, vec![resident("a"), resident("b")]);
        let shared = || AnnouncedModel { parts: vec![Part { id: PartId(1), bytes: 1 }], ..resident("a") };
        for changed in [1, 0] {
            let (gone, come) = residency.reconcile(0, vec![shared(), resident("b")]);
            assert_eq!((gone, come.len()), (vec![], changed));
        }
        assert_eq!(residency.all_resident().len(), 2);
    }

    #[test]
    fn device_loss_is_reported_once() {
        let mut residency = ResidencyTable::new(2);
        assert!(!residency.set_up(0, true) && !residency.set_up(7, false));
        assert!(residency.set_up(1, false) && !residency.set_up(1, false));
        assert_eq!(residency.down(), [1]);
        assert!(residency.set_up(1, true));
        assert!(residency.down().is_empty());
        residency.allow(7, vec![model("a")]);
        assert_eq!((residency.victims(7), residency.residents(7)), (vec![], vec![]));
    }
}
