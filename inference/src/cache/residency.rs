//! Charges for device memory, by model and time. Pure: the caller passes the time.
//!
//! A model is charged for its own memory, and for its share of the parts that it shares with other
//! resident models. The tenants with a part bear equal shares of it, and a tenant's models divide
//! the tenant's share equally. Shares are exact to the byte: remainders go to some of the models,
//! so that the sum of all shares is the memory taken.

use super::super::backend::ModelKey;
use crate::footprint::{Footprint, SharedPart};
use crate::meter::{Meter, Used, parted};
use std::collections::{BTreeMap, HashMap};
use weir_device::Device;
use weir_types::TenantId;

/// The models in the memory of one device.
pub(super) struct Residency {
    device: Device,
    /// Models by order of entry.
    holders: HashMap<u64, Holder>,
    keys: HashMap<ModelKey, u64>,
    parts: HashMap<SharedPart, Holding>,
    count: u64,
}

/// One model.
struct Holder {
    tenant: TenantId,
    meter: Meter,
    footprint: Footprint,
    /// Bytes that the model is currently charged for.
    bytes: u64,
    /// Time up to which the model has been charged.
    settled_ns: u64,
}

/// Holders of a part, by tenant; each with the size of the part that it states.
type Holding = BTreeMap<TenantId, BTreeMap<u64, u64>>;

impl Residency {
    pub(super) fn new(device: Device) -> Self {
        Self { device, holders: HashMap::new(), keys: HashMap::new(), parts: HashMap::new(), count: 0 }
    }

    /// Adds a model, and starts charging `meter`.
    pub(super) fn enter(&mut self, now_ns: u64, key: &ModelKey, footprint: &Footprint, meter: &Meter) {
        self.leave(now_ns, key);
        self.count += 1;
        let number = self.count;
        let tenant = key.id.tenant.clone();
        let meter = meter.clone();
        let footprint = footprint.clone();
        let bytes = footprint.own_bytes();
        let parts = footprint.clone();
        let holder = Holder { tenant: tenant.clone(), meter, footprint, bytes, settled_ns: now_ns };
        self.keys.insert(key.clone(), number);
        self.holders.insert(number, holder);
        for (part, bytes) in parts.parts() {
            self.change(now_ns, part, |holding| {
                holding.entry(tenant.clone()).or_default().insert(number, *bytes);
            });
        }
    }

    /// Removes a model, if it is present.
    pub(super) fn leave(&mut self, now_ns: u64, key: &ModelKey) {
        let Some(number) = self.keys.remove(key) else { return };
        let Some(holder) = self.holders.get(&number) else { return };
        let tenant = holder.tenant.clone();
        let footprint = holder.footprint.clone();
        for (part, _) in footprint.parts() {
            self.change(now_ns, part, |holding| {
                let Some(own) = holding.get_mut(&tenant) else { return };
                own.remove(&number);
                if own.is_empty() {
                    holding.remove(&tenant);
                }
            });
        }
        if let Some(mut holder) = self.holders.remove(&number) {
            holder.settle(now_ns, self.device);
        }
    }

    /// Bytes that each model is charged for now.
    pub(super) fn charged(&self) -> impl Iterator<Item = (&ModelKey, u64)> {
        self.keys.iter().filter_map(|(key, number)| Some((key, self.holders.get(number)?.bytes)))
    }

    /// Charges the meters of all models up to now.
    pub(super) fn settle(&mut self, now_ns: u64) {
        let device = self.device;
        self.holders.values_mut().for_each(|holder| holder.settle(now_ns, device));
    }

    /// Withdraws the shares in a part, changes its holders, and distributes the shares again.
    fn change(&mut self, now_ns: u64, part: &SharedPart, change: impl FnOnce(&mut Holding)) {
        let holders = &mut self.holders;
        let device = self.device;
        let holding = self.parts.entry(*part).or_default();
        let mut share_out = |holding: &Holding, charge: fn(&mut u64, u64)| {
            for (number, share) in shares(holding) {
                if let Some(holder) = holders.get_mut(&number) {
                    holder.settle(now_ns, device);
                    charge(&mut holder.bytes, share);
                }
            }
        };
        share_out(holding, |bytes, share| *bytes = bytes.saturating_sub(share));
        change(holding);
        share_out(holding, |bytes, share| *bytes = bytes.saturating_add(share));
        if holding.is_empty() {
            self.parts.remove(part);
        }
    }
}

impl Holder {
    fn settle(&mut self, now_ns: u64, device: Device) {
        let time_ns = now_ns.saturating_sub(self.settled_ns);
        self.settled_ns = self.settled_ns.max(now_ns);
        if time_ns > 0 {
            let resident_byte_ns = u128::from(self.bytes) * u128::from(time_ns);
            self.meter.add(device, &Used { resident_byte_ns, ..Used::default() });
        }
    }
}

/// Bytes that each holder of a part is charged for it.
fn shares(holding: &Holding) -> Vec<(u64, u64)> {
    // The same weights have the same size.
    let bytes = holding.values().flat_map(BTreeMap::values).max().copied().unwrap_or_default();
    let by_tenant = parted(bytes, &vec![1; holding.len()]);
    let of_tenant = |(own, bytes): (&BTreeMap<u64, u64>, u64)| {
        let shares = parted(bytes, &vec![1; own.len()]);
        own.keys().copied().zip(shares).collect::<Vec<_>>()
    };
    holding.values().zip(by_tenant).flat_map(of_tenant).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::footprint::CombinedSize;
    use proptest::prelude::*;
    use weir_types::{ContentHash, ModelId, Name, Version};

    const TENANTS: [&str; 3] = ["acme", "bold", "core"];

    fn key(tenant: &str, number: u64) -> ModelKey {
        let name = Name::new(&format!("m{number}")).unwrap();
        let id = ModelId { tenant: TenantId::new(tenant).unwrap(), name, version: Version(1) };
        ModelKey { id, generation: 1 }
    }

    fn part(number: u8) -> (SharedPart, u64) {
        (SharedPart { hash: ContentHash::from_content(&[number]), family: None }, 10 * u64::from(number) + 7)
    }

    fn byte_ns(meter: &Meter) -> u128 {
        meter.used().iter().map(|(_, used)| used.resident_byte_ns).sum()
    }

    #[test]
    fn shared_memory_is_charged_equally_to_tenants_then_models() {
        let mut residency = Residency::new(Device::Cpu);
        let [first, second, other] = [(); 3].map(|()| Meter::default());
        let common = |own| Footprint::new(own, [(part(0).0, 100)]);
        residency.enter(0, &key("acme", 1), &common(10), &first);
        residency.enter(10, &key("acme", 2), &common(20), &second);
        residency.enter(20, &key("bold", 1), &common(0), &other);
        residency.leave(30, &key("acme", 2));
        residency.settle(40);
        assert_eq!(byte_ns(&first), 10 * (110 + (10 + 50) + (10 + 25) + (10 + 50)));
        assert_eq!(byte_ns(&second), 10 * ((20 + 50) + (20 + 25)));
        assert_eq!(byte_ns(&other), 10 * (50 + 50));
        residency.leave(40, &key("bold", 1));
        residency.leave(40, &key("acme", 1));
        residency.settle(1_000);
        assert_eq!(byte_ns(&first) + byte_ns(&second) + byte_ns(&other), 40 * 100 + 40 * 10 + 20 * 20);
    }

    /// A model enters or leaves, or its meter is read, after a time.
    #[derive(Debug, Clone)]
    enum ResidencyEvent {
        Enter(usize, u64, u64, Vec<u8>),
        Leave(usize, u64),
        Settle,
    }

    fn events() -> impl Strategy<Value = Vec<(u64, ResidencyEvent)>> {
        let parts = prop::collection::btree_set(0..12_u8, 0..6).prop_map(|parts| parts.into_iter().collect());
        let event = prop_oneof![
            3 => (0..TENANTS.len(), 0..4_u64, 0..1_000_u64, parts)
                .prop_map(|(tenant, model, own, parts)| ResidencyEvent::Enter(tenant, model, own, parts)),
            2 => (0..TENANTS.len(), 0..4_u64).prop_map(|(tenant, model)| ResidencyEvent::Leave(tenant, model)),
            1 => Just(ResidencyEvent::Settle),
        ];
        prop::collection::vec((0..1_000_u64, event), 1..60)
    }

    proptest! {
        #[test]
        fn charges_sum_to_memory_taken(events in events()) {
            let mut residency = Residency::new(Device::Cpu);
            let whole = Meter::default();
            let tenants = TENANTS.map(|_| Meter::within(&whole));
            let mut there: HashMap<ModelKey, Footprint> = HashMap::new();
            let mut now_ns = 0;
            let mut taken = 0_u128;
            for (time_ns, event) in events {
                now_ns += time_ns;
                // Reference computation.
                taken += u128::from(there.values().collect::<CombinedSize>().bytes()) * u128::from(time_ns);
                match event {
                    ResidencyEvent::Enter(tenant, model, own, parts) => {
                        let key = key(TENANTS[tenant], model);
                        let footprint = Footprint::new(own, parts.into_iter().map(part));
                        residency.enter(now_ns, &key, &footprint, &tenants[tenant]);
                        there.insert(key, footprint);
                    }
                    ResidencyEvent::Leave(tenant, model) => {
                        let key = key(TENANTS[tenant], model);
                        residency.leave(now_ns, &key);
                        there.remove(&key);
                    }
                    ResidencyEvent::Settle => residency.settle(now_ns),
                }
                let charged: u64 = residency.holders.values().map(|holder| holder.bytes).sum();
                prop_assert_eq!(charged, there.values().collect::<CombinedSize>().bytes());
            }
            residency.settle(now_ns);
            prop_assert_eq!(tenants.iter().map(byte_ns).sum::<u128>(), taken);
            prop_assert_eq!(byte_ns(&whole), taken);
            // No state remains of models that left.
            there.into_keys().for_each(|key| residency.leave(now_ns, &key));
            prop_assert!(residency.holders.is_empty() && residency.keys.is_empty() && residency.parts.is_empty());
        }
    }
}
