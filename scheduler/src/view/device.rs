//! The memory of one device, and the promises made about it.
//!
//! ```text
//! capacity_bytes  >=  held_bytes                            -  evictable_bytes
//!                     in memory, or granted and on its way     in memory, may go, granted to nobody
//! ```
//!
//! This holds after every grant. What changes between grants keeps it: a grant that ends leaves its models in memory or takes them out
//! of the sum, and an eviction takes its model out of both sums. Only a model that turns out larger than it was said to be can break it,
//! until enough is evicted.

use crate::{DeviceSpec, ModelDemand};
use std::collections::HashMap;
use weir_types::{ModelId, RunningMean};

/// One device.
#[derive(Debug)]
pub struct DeviceView {
    spec: DeviceSpec,
    models: HashMap<ModelId, Held>,
    held_bytes: u64,
    evictable_bytes: u64,
    /// Invocations with a grant here.
    running: u32,
    run_time_ns: RunningMean,
}

/// No device and no model is larger: 256 TiB, so that sums of them stay far from overflowing.
const BYTES_MAX: u64 = 1 << 48;

/// What a device holds, or has promised to hold.
#[derive(Debug)]
struct Held {
    bytes: u64,
    resident: bool,
    /// Running invocations that may open it.
    grants: u32,
    /// The node was told that it may go.
    evictable: bool,
    used: u64,
}

/// A model that could become a victim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Which one.
    pub model: &'a ModelId,
    /// The memory it takes.
    pub bytes: u64,
    /// When it was last granted or loaded; higher is later. Those granted together are equal.
    pub used: u64,
}

/// What granting models would take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    /// Bytes of those that are neither there nor on their way.
    pub(crate) missing_bytes: u64,
    /// Bytes that must be freed by victims beyond those that may go already.
    pub(crate) over_bytes: u64,
}

impl DeviceView {
    pub(crate) fn new(mut spec: DeviceSpec) -> Self {
        spec.capacity_bytes = spec.capacity_bytes.min(BYTES_MAX);
        let (models, run_time_ns) = Default::default();
        Self { spec, models, held_bytes: 0, evictable_bytes: 0, running: 0, run_time_ns }
    }

    /// What it can do.
    #[must_use]
    pub fn spec(&self) -> &DeviceSpec {
        &self.spec
    }

    /// Bytes of models in memory, and of those granted and on their way.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// The part of [`held_bytes`](Self::held_bytes) that may go and is granted to nobody.
    #[must_use]
    pub fn evictable_bytes(&self) -> u64 {
        self.evictable_bytes
    }

    /// Whether a model is in memory.
    #[must_use]
    pub fn is_resident(&self, model: &ModelId) -> bool {
        self.models.get(model).is_some_and(|held| held.resident)
    }

    /// Whether a running invocation may open a model here.
    #[must_use]
    pub fn is_granted(&self, model: &ModelId) -> bool {
        self.models.get(model).is_some_and(|held| held.grants > 0)
    }

    /// Invocations with a grant here.
    #[must_use]
    pub fn running(&self) -> u32 {
        self.running
    }

    /// How long invocations with a grant here take, as measured.
    #[must_use]
    pub fn run_time_ns(&self) -> RunningMean {
        self.run_time_ns
    }

    /// The models in memory that are granted to nobody and were not given up yet, in no order.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate<'_>> {
        let free =
            self.models.iter().filter(|(_, held)| held.resident && held.grants == 0 && !held.evictable);
        free.map(|(model, held)| Candidate { model, bytes: held.bytes, used: held.used })
    }

    /// What granting `demands` would take.
    pub(crate) fn need(&self, demands: &[ModelDemand]) -> Need {
        let (mut missing_bytes, mut kept_bytes) = (0_u64, 0);
        for demand in demands {
            match self.models.get(&demand.model) {
                None => missing_bytes = missing_bytes.saturating_add(demand.bytes.min(BYTES_MAX)),
                // To be granted, it must be taken off the list of those that may go.
                Some(held) if held.is_evictable_now() => kept_bytes += held.bytes,
                Some(_) => {}
            }
        }
        let evictable_bytes = self.evictable_bytes - kept_bytes;
        let wanted_bytes = self.held_bytes.saturating_sub(evictable_bytes).saturating_add(missing_bytes);
        Need { missing_bytes, over_bytes: wanted_bytes.saturating_sub(self.spec.capacity_bytes) }
    }

    /// Whether a model is neither in memory nor on its way.
    pub(crate) fn is_missing(&self, model: &ModelId) -> bool {
        !self.models.contains_key(model)
    }

    /// Grant `demands` to one more invocation, giving up `victims`.
    pub(crate) fn grant(&mut self, demands: &[ModelDemand], victims: &[ModelId], clock: u64) {
        self.running += 1;
        for demand in demands {
            if let Some(held) = self.models.get_mut(&demand.model) {
                if held.is_evictable_now() {
                    self.evictable_bytes -= held.bytes;
                }
                held.evictable = false;
                held.grants += 1;
                held.used = clock;
            } else {
                let bytes = demand.bytes.min(BYTES_MAX);
                self.held_bytes = self.held_bytes.saturating_add(bytes);
                let held = Held { bytes, resident: false, grants: 1, evictable: false, used: clock };
                self.models.insert(demand.model.clone(), held);
            }
        }
        for victim in victims {
            if let Some(held) = self
                .models
                .get_mut(victim)
                .filter(|held| held.resident && held.grants == 0 && !held.evictable)
            {
                held.evictable = true;
                self.evictable_bytes = self.evictable_bytes.saturating_add(held.bytes);
            }
        }
    }

    /// An invocation with a grant of `models` is over.
    pub(crate) fn release(&mut self, models: &[ModelId], run_time_ns: Option<u64>) {
        self.running = self.running.saturating_sub(1);
        if let Some(run_time_ns) = run_time_ns {
            self.run_time_ns.add(run_time_ns);
        }
        for model in models {
            let Some(held) = self.models.get_mut(model) else { continue };
            held.grants = held.grants.saturating_sub(1);
            if held.grants == 0 && !held.resident {
                self.remove(model);
            }
        }
    }

    /// A model is in memory. False if it was already.
    pub(crate) fn loaded(&mut self, model: ModelId, bytes: u64, clock: u64) -> bool {
        let bytes = bytes.min(BYTES_MAX);
        let held = self.models.entry(model).or_insert(Held {
            bytes: 0,
            resident: false,
            grants: 0,
            evictable: false,
            used: clock,
        });
        if held.is_evictable_now() {
            self.evictable_bytes = (self.evictable_bytes - held.bytes).saturating_add(bytes);
        }
        self.held_bytes = (self.held_bytes - held.bytes).saturating_add(bytes);
        held.bytes = bytes;
        held.used = clock;
        !std::mem::replace(&mut held.resident, true)
    }

    /// A model is not in memory any more. False if it was not.
    pub(crate) fn evicted(&mut self, model: &ModelId) -> bool {
        let Some(held) = self.models.get_mut(model).filter(|held| held.resident) else { return false };
        if held.grants == 0 {
            self.remove(model);
        } else {
            // Whoever it is granted to may have it loaded again.
            held.resident = false;
        }
        true
    }

    fn remove(&mut self, model: &ModelId) {
        let Some(held) = self.models.remove(model) else { return };
        self.held_bytes -= held.bytes;
        if held.is_evictable_now() {
            self.evictable_bytes -= held.bytes;
        }
    }
}

impl Held {
    fn is_evictable_now(&self) -> bool {
        self.evictable && self.grants == 0
    }
}
