//! The memory of a device and the step that it runs.

use super::WorkflowAction;
use super::graph::GraphStep;
use super::progress::StepKey;

/// A device that runs one step at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkflowDevice {
    /// The index of its kind.
    pub kind: usize,
    /// Bytes of memory.
    pub capacity_bytes: u64,
}

/// The state of a device.
#[derive(Debug)]
pub(super) struct DeviceState {
    pub(super) spec: WorkflowDevice,
    /// Models in memory, the least recently used first.
    residents: Vec<(u32, u64)>,
    running: Option<RunningStep>,
}

/// The step that a device runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunningStep {
    pub(super) key: StepKey,
    pub(super) model: u32,
    pub(super) started_at_ns: u64,
    /// The expected end.
    pub(super) end_ns: u64,
}

impl DeviceState {
    /// A device with these models in memory.
    pub(super) fn new(spec: WorkflowDevice, residents: &[(u32, u64)]) -> Self {
        Self { spec, residents: residents.to_vec(), running: None }
    }

    pub(super) fn holds(&self, model: u32) -> bool {
        self.residents.iter().any(|(resident, _)| *resident == model)
    }

    pub(super) fn running(&self) -> Option<&RunningStep> {
        self.running.as_ref()
    }

    /// The model of the running step, with its size.
    pub(super) fn running_model(&self) -> Option<(u32, u64)> {
        let running = self.running?;
        self.residents.iter().find(|(model, _)| *model == running.model).copied()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    /// When the device is expected to be idle.
    pub(super) fn free_at_ns(&self, now_ns: u64) -> u64 {
        self.running.map_or(now_ns, |running| running.end_ns.max(now_ns))
    }

    /// Time of a step from its start to its end if it started now, and whether it loads its model.
    /// `None` if the step cannot run here.
    pub(super) fn work_ns(&self, step: &GraphStep) -> Option<(u64, bool)> {
        let loads = !self.holds(step.model);
        Some((step.on(self.spec.kind)?.work_ns(loads), loads))
    }

    /// Whether the device can hold the step's model beside the models for which `stays` holds.
    pub(super) fn has_room(&self, step: &GraphStep, stays: impl Fn(u32) -> bool) -> bool {
        let staying = self.residents.iter().filter(|(model, _)| *model != step.model && stays(*model));
        let used = staying.fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        used.saturating_add(step.bytes) <= self.spec.capacity_bytes
    }

    /// Starts a step on the idle device. Evicts the least recently used models for which `stays`
    /// does not hold, as far as needed.
    pub(super) fn start(
        &mut self,
        now_ns: u64,
        (device, key): (usize, StepKey),
        step: &GraphStep,
        stays: impl Fn(u32) -> bool,
    ) -> WorkflowAction {
        let (work_ns, loads) = self.work_ns(step).unwrap_or((u64::MAX, false));
        let mut evict = Vec::new();
        if loads {
            let free = |residents: &[(u32, u64)]| {
                let used = residents.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
                self.spec.capacity_bytes.saturating_sub(used)
            };
            while free(&self.residents) < step.bytes
                && let Some(at) = self.residents.iter().position(|(model, _)| !stays(*model))
            {
                evict.push(self.residents.remove(at).0);
            }
        } else {
            self.residents.retain(|(model, _)| *model != step.model);
        }
        self.residents.push((step.model, step.bytes));
        let end_ns = now_ns.saturating_add(work_ns);
        self.running = Some(RunningStep { key, model: step.model, started_at_ns: now_ns, end_ns });
        WorkflowAction::Start { invocation: key.invocation, step: key.step, device, loads, evict }
    }

    /// Ends the running step.
    pub(super) fn end(&mut self) -> Option<RunningStep> {
        self.running.take()
    }
}

/// The states of devices with these models in memory, by device.
pub(super) fn states(devices: &[WorkflowDevice], residents: &[Vec<(u32, u64)>]) -> Vec<DeviceState> {
    let held = |index: usize| residents.get(index).map_or(&[][..], Vec::as_slice);
    devices.iter().enumerate().map(|(index, spec)| DeviceState::new(*spec, held(index))).collect()
}
