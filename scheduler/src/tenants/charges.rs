//! Memory charged to a tenant for its models, over all devices. A part shared by several models is
//! stored once per device and charged once.

use crate::policy::OpenableModel;
use crate::{DeviceKey, DeviceView, ModelParts, PartId};
use std::collections::BTreeMap;

/// The charges of one tenant.
#[derive(Debug, Default)]
pub(super) struct Charges {
    bytes: u64,
    parts: BTreeMap<(DeviceKey, PartId), Charge>,
}

/// The charge for a part on one device.
#[derive(Debug, Default)]
struct Charge {
    /// The size reported by the first model that contains the part.
    bytes: u64,
    models: u32,
}

impl Charges {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Charges a model of `bytes` on a device.
    pub(super) fn add(&mut self, device: DeviceKey, bytes: u64, parts: &ModelParts) {
        let mut sum = parts.own_bytes(bytes);
        for part in parts.iter() {
            let charge = self.parts.entry((device, part.id)).or_default();
            if charge.models == 0 {
                charge.bytes = part.bytes;
                sum = sum.saturating_add(part.bytes);
            }
            charge.models += 1;
        }
        self.bytes = self.bytes.saturating_add(sum);
    }

    /// Removes the charge of a model that was added with the same arguments.
    pub(super) fn remove(&mut self, device: DeviceKey, bytes: u64, parts: &ModelParts) {
        let mut sum = parts.own_bytes(bytes);
        for part in parts.iter() {
            let Some(charge) = self.parts.get_mut(&(device, part.id)) else { continue };
            charge.models -= 1;
            if charge.models == 0 {
                sum = sum.saturating_add(charge.bytes);
                self.parts.remove(&(device, part.id));
            }
        }
        self.bytes = self.bytes.saturating_sub(sum);
    }

    /// Bytes that holding `demands` on a device would add.
    pub(super) fn added_bytes(&self, key: DeviceKey, device: &DeviceView, demands: &[OpenableModel]) -> u64 {
        let mut more = Self::default();
        for demand in device.own(demands).filter(|demand| !device.holds(demand.model)) {
            more.add(key, demand.bytes, &demand.parts);
        }
        let is_charged = |(at, charge): (&(DeviceKey, PartId), &Charge)| {
            self.parts.contains_key(at).then_some(charge.bytes)
        };
        more.bytes.saturating_sub(more.parts.iter().filter_map(is_charged).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Part;

    #[test]
    fn shared_parts_are_charged_once_per_device() {
        let here = DeviceKey(0);
        let there = DeviceKey(1);
        let common = Part { id: PartId(1), bytes: 90 };
        let parts = ModelParts::new(100, &[common]);
        let mut charges = Charges::default();
        let mut after = |step: &dyn Fn(&mut Charges)| {
            step(&mut charges);
            charges.bytes()
        };
        assert_eq!(after(&|charges| charges.add(here, 100, &parts)), 100);
        assert_eq!(after(&|charges| charges.add(here, 100, &parts)), 110);
        assert_eq!(after(&|charges| charges.add(there, 100, &parts)), 210);
        assert_eq!(after(&|charges| charges.add(here, 30, &ModelParts::default())), 240);
        assert_eq!(after(&|charges| charges.remove(here, 100, &parts)), 230);
        assert_eq!(after(&|charges| charges.remove(here, 100, &parts)), 130);
        assert_eq!(after(&|charges| charges.remove(there, 100, &parts)), 30);
        assert_eq!(after(&|charges| charges.remove(here, 30, &ModelParts::default())), 0);
        assert!(charges.parts.is_empty());
    }
}
