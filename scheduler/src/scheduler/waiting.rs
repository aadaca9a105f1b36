//! Counts of waiting invocations: their deadlines, and the work that they will do.

use super::Scheduler;
use crate::PlacementRequest;
use crate::groups::{Backlog, DeviceBacklogs};
use crate::view::{DeviceView, together_bytes};
use weir_types::InvocationId;

/// Upper bound on the predicted device time of a waiting invocation: about 13 days, so that sums do
/// not overflow.
const RUN_TIME_NS_MAX: u64 = 1 << 50;

/// A waiting invocation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waits {
    pub(super) arrived_at_ns: u64,
    pub(super) deadline_at_ns: u64,
    /// Memory of its models together.
    pub(super) bytes: u64,
    /// Predicted device time.
    run_time_ns: u64,
    /// The end of its wait for a first device; `None` if a device is known that can run it.
    pub(super) device_by_ns: Option<u64>,
    /// Whether it may run in separate steps, on several devices.
    pub(super) is_splittable: bool,
}

/// Predicted time of the invocations on a device that have not ended, with their loads.
fn committed_ns(device: &DeviceView) -> u64 {
    device.committed_ns().saturating_add(device.committed_load_ns())
}

impl Scheduler {
    /// Work of the devices, and work that waits for them. Takes time in proportion to the devices.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        let waiting = u64::try_from(self.waiting()).unwrap_or(u64::MAX);
        let none = Backlog { waiting, waiting_ns: self.waiting_work_ns(), ..Backlog::default() };
        self.view.devices().fold(none, |sum, (_, device)| Backlog {
            devices: sum.devices + 1,
            slots: sum.slots.saturating_add(device.spec().slots),
            committed_ns: sum.committed_ns.saturating_add(committed_ns(device)),
            ..sum
        })
    }

    /// Work of each of the first `devices_max` devices, and the sum of the others. Sorts all devices.
    #[must_use]
    pub fn device_backlogs(&self, devices_max: usize) -> DeviceBacklogs {
        let devices = self.view.devices().map(|(_, device)| (device.id(), committed_ns(device)));
        let mut devices: Vec<_> = devices.collect();
        devices.sort_unstable();
        let others = devices.split_off(devices.len().min(devices_max));
        let sum = || others.iter().fold(0, |sum: u64, (_, ns)| sum.saturating_add(*ns));
        let others_ns = (!others.is_empty()).then(sum);
        DeviceBacklogs { devices, others_ns }
    }

    /// Copies of models that are required, and that no device keeps.
    #[must_use]
    pub fn copies_missing(&self) -> u64 {
        self.required.missing()
    }

    /// Counts a request that its queue holds from now on.
    pub(super) fn waits(&mut self, request: &PlacementRequest) {
        let PlacementRequest { invocation, deadline_at_ns, arrived_at_ns, .. } = *request;
        let run_time_ns = match request.models.is_empty() {
            true => 0,
            false => self.view.expected_run_time_ns(request).min(RUN_TIME_NS_MAX),
        };
        self.waiting_ns += run_time_ns;
        let bytes = together_bytes(&request.models);
        let device_by_ns = self.await_device(request);
        let waits =
            Waits { arrived_at_ns, deadline_at_ns, bytes, run_time_ns, device_by_ns, is_splittable: false };
        self.waiting.insert(invocation, waits);
        self.deadlines.insert((deadline_at_ns, invocation));
        self.view.tenants_mut().begin_waiting(request.tenant);
    }

    pub(super) fn waits_no_more(&mut self, request: &PlacementRequest) {
        self.forget_waiting(request.invocation);
        self.view.tenants_mut().end_waiting(request.tenant);
    }

    pub(super) fn forget_waiting(&mut self, invocation: InvocationId) {
        if let Some(Waits { arrived_at_ns, deadline_at_ns, run_time_ns, device_by_ns, .. }) =
            self.waiting.remove(&invocation)
        {
            self.waiting_ns -= run_time_ns;
            self.deadlines.remove(&(deadline_at_ns, invocation));
            if let Some(end_ns) = device_by_ns {
                self.device_wait.remove(end_ns, invocation);
            }
            if self.has_slos {
                self.admission.unwatch(invocation, arrived_at_ns);
            }
        }
    }
}
