//! The reservations of a device.

use super::graph::GraphStep;
use super::progress::StepKey;
use std::collections::BTreeMap;

/// A reserved time for a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reservation {
    pub(super) key: StepKey,
    pub(super) model: u32,
    pub(super) bytes: u64,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
}

/// The reservations of one device.
#[derive(Debug, Default)]
pub(super) struct Calendar {
    /// In order of time. They do not overlap.
    entries: Vec<Reservation>,
    /// The models that they need: the number of reservations, and bytes.
    models: BTreeMap<u32, (u32, u64)>,
    /// Bytes of these models.
    bytes: u64,
}

/// Maximum number of reservations of one device; further steps are not planned there.
const RESERVATIONS_MAX: usize = 4_096;

impl Calendar {
    pub(super) fn entries(&self) -> &[Reservation] {
        &self.entries
    }

    pub(super) fn entries_mut(&mut self) -> &mut [Reservation] {
        &mut self.entries
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a reservation needs the model.
    pub(super) fn needs(&self, model: u32) -> bool {
        self.models.contains_key(&model)
    }

    /// Bytes of the models that reservations need, together with those of `step` and `running`.
    pub(super) fn bytes_with(&self, step: &GraphStep, running: Option<(u32, u64)>) -> u64 {
        let running = running.filter(|(model, _)| *model != step.model);
        let others = running.into_iter().chain([(step.model, step.bytes)]);
        let added = others.filter(|(model, _)| !self.needs(*model)).map(|(_, bytes)| bytes);
        added.fold(self.bytes, u64::saturating_add)
    }

    /// The earliest gap for a step that is ready at `ready_ns`, on a device that is free at
    /// `free_at_ns`: its start and end. `work_ns` returns the step's time, with or without a load;
    /// a step does not load a model that an earlier reservation needs.
    pub(super) fn gap(
        &self,
        (free_at_ns, ready_ns): (u64, u64),
        model: u32,
        work_ns: impl Fn(bool) -> u64,
    ) -> Option<(u64, u64)> {
        if self.entries.len() >= RESERVATIONS_MAX {
            return None;
        }
        let mut is_brought = false;
        let mut before_ns = free_at_ns;
        for entry in &self.entries {
            let start_ns = before_ns.max(ready_ns);
            let end_ns = start_ns.saturating_add(work_ns(is_brought));
            if end_ns <= entry.start_ns {
                return Some((start_ns, end_ns));
            }
            before_ns = before_ns.max(entry.end_ns);
            is_brought |= entry.model == model;
        }
        let start_ns = before_ns.max(ready_ns);
        Some((start_ns, start_ns.saturating_add(work_ns(is_brought))))
    }

    pub(super) fn insert(&mut self, entry: Reservation) {
        let order = |entry: &Reservation| (entry.start_ns, entry.end_ns);
        let at = self.entries.partition_point(|other| order(other) <= order(&entry));
        self.entries.insert(at, entry);
        let (count, _) = self.models.entry(entry.model).or_insert((0, entry.bytes));
        *count += 1;
        if *count == 1 {
            self.bytes = self.bytes.saturating_add(entry.bytes);
        }
    }

    pub(super) fn remove(&mut self, key: StepKey) -> Option<Reservation> {
        let at = self.entries.iter().position(|entry| entry.key == key)?;
        let entry = self.entries.remove(at);
        let (count, bytes) = self.models.get_mut(&entry.model)?;
        *count -= 1;
        if *count == 0 {
            self.bytes -= *bytes;
            self.models.remove(&entry.model);
        }
        Some(entry)
    }
}
