//! A simulated device: memory, one copy engine, and run slots.
//!
//! With one invocation at a time, this is the LALB paper's device: a run ends at its start, plus
//! the load on a miss, plus the run time. With more invocations, loads overlap with computation,
//! and runs of one model that are ready together can form a batch.

use super::workload::ModelCosts;
use std::collections::{BTreeMap, VecDeque};

#[derive(Debug)]
pub(super) struct SimulatedDevice {
    /// Models in memory, with their grants.
    residents: BTreeMap<u32, Resident>,
    used_bytes: u64,
    copying_until_ns: u64,
    /// Jobs whose model is loaded and that wait to run.
    ready: VecDeque<SimulatedRequest>,
    /// Batches that run now, by number.
    computing: BTreeMap<u64, Vec<SimulatedRequest>>,
    /// Number of batches so far.
    batches: u64,
    /// Maximum number of batches that run at the same time.
    slots: usize,
}

#[derive(Debug, Default)]
struct Resident {
    there_at_ns: u64,
    grants: u32,
}

/// A request on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SimulatedRequest {
    pub(super) request: u32,
    pub(super) model: u32,
}

/// The result of starting a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Started {
    pub(super) hit: bool,
    /// When the model is loaded.
    pub(super) ready_at_ns: u64,
}

impl SimulatedDevice {
    pub(super) fn new(slots: u32) -> Self {
        let (residents, ready, computing) = Default::default();
        let slots = slots.max(1) as usize;
        Self { residents, used_bytes: 0, copying_until_ns: 0, ready, computing, batches: 0, slots }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// The models in memory.
    pub(super) fn models(&self) -> impl Iterator<Item = u32> {
        self.residents.keys().copied()
    }

    pub(super) fn holds(&self, model: u32) -> bool {
        self.residents.contains_key(&model)
    }

    pub(super) fn is_granted(&self, model: u32) -> bool {
        self.residents.get(&model).is_some_and(|resident| resident.grants > 0)
    }

    /// Evicts a model. Returns false if it is not in memory.
    pub(super) fn evict(&mut self, model: u32, costs: &ModelCosts) -> bool {
        let there = self.residents.remove(&model).is_some();
        if there {
            self.used_bytes -= costs.bytes;
        }
        there
    }

    /// Starts a request: loads its model unless it is resident or loading.
    pub(super) fn start(&mut self, now_ns: u64, job: SimulatedRequest, costs: &ModelCosts) -> Started {
        if let Some(resident) = self.residents.get_mut(&job.model) {
            resident.grants += 1;
            return Started { hit: true, ready_at_ns: resident.there_at_ns.max(now_ns) };
        }
        let ready_at_ns = self.copying_until_ns.max(now_ns) + costs.load_time_ns;
        self.copying_until_ns = ready_at_ns;
        self.used_bytes += costs.bytes;
        self.residents.insert(job.model, Resident { there_at_ns: ready_at_ns, grants: 1 });
        Started { hit: false, ready_at_ns }
    }

    /// Adds a job whose model is loaded.
    pub(super) fn ready(&mut self, job: SimulatedRequest) {
        self.ready.push_back(job);
    }

    /// Runs ready jobs as a batch if a run slot is idle. Returns the number of the batch, and its
    /// jobs.
    pub(super) fn compute(&mut self, batch_max: usize) -> Option<(u64, &[SimulatedRequest])> {
        if self.computing.len() >= self.slots {
            return None;
        }
        let first = self.ready.pop_front()?;
        let mut batch = vec![first];
        let mut at = 0;
        while at < self.ready.len() && batch.len() < batch_max {
            if self.ready[at].model == first.model {
                batch.extend(self.ready.remove(at));
            } else {
                at += 1;
            }
        }
        self.batches += 1;
        Some((self.batches, self.computing.entry(self.batches).or_insert(batch)))
    }

    /// Ends a batch. Its jobs keep their grants.
    pub(super) fn computed(&mut self, batch: u64) -> Vec<SimulatedRequest> {
        self.computing.remove(&batch).unwrap_or_default()
    }

    /// Ends the grant of a job.
    pub(super) fn release(&mut self, job: SimulatedRequest) {
        if let Some(resident) = self.residents.get_mut(&job.model) {
            resident.grants -= 1;
        }
    }
}
