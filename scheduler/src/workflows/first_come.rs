//! First come, first served, for comparison.

use super::device::DeviceState;
use super::progress::{Progress, StepState};
use super::{WorkflowAction, WorkflowDevice, WorkflowEvent, WorkflowPolicy};
use std::collections::BTreeMap;
use weir_types::InvocationId;

/// The first baseline of the KaaS thesis, chapter 4: a heterogeneous version of AWS Lambda.
///
/// The ready steps start in the order in which their workflows arrived, each on the idle device on
/// which it ends first. No workflow is rejected, and objectives are ignored.
#[derive(Debug)]
pub struct FirstComeWorkflows {
    devices: Vec<DeviceState>,
    /// The unfinished workflows, by order of arrival.
    active: BTreeMap<u64, Progress>,
    numbers: BTreeMap<InvocationId, u64>,
    arrivals: u64,
}

impl FirstComeWorkflows {
    /// Creates the policy for devices with these models in memory.
    #[must_use]
    pub fn new(devices: &[WorkflowDevice], residents: &[Vec<(u32, u64)>]) -> Self {
        let devices = super::device::states(devices, residents);
        Self { devices, active: BTreeMap::new(), numbers: BTreeMap::new(), arrivals: 0 }
    }

    fn end_step(&mut self, invocation: InvocationId, step: usize) {
        let Some(number) = self.numbers.get(&invocation).copied() else { return };
        let Some(progress) = self.active.get_mut(&number) else { return };
        let Some(device) = progress.device_of(step) else { return };
        self.devices[device].end();
        progress.steps[step] = StepState::Ended;
        if progress.is_over() {
            self.active.remove(&number);
            self.numbers.remove(&invocation);
        }
    }

    /// The next step to start: the workflow's number, the step and the device.
    fn next(&self) -> Option<(u64, usize, usize)> {
        let idle = || self.devices.iter().enumerate().filter(|(_, device)| device.is_idle());
        idle().next()?;
        self.active.iter().find_map(|(number, progress)| {
            progress.ready().find_map(|step| {
                let graph_step = &progress.graph.steps()[step];
                let fits = idle().filter(|(_, device)| device.has_room(graph_step, |_| false));
                let times = fits.filter_map(|(index, device)| Some((device.work_ns(graph_step)?.0, index)));
                times.min().map(|(_, device)| (*number, step, device))
            })
        })
    }
}

impl WorkflowPolicy for FirstComeWorkflows {
    fn handle(&mut self, now_ns: u64, event: WorkflowEvent, actions: &mut Vec<WorkflowAction>) {
        match event {
            WorkflowEvent::Arrived { invocation, graph, slo } => {
                self.numbers.insert(invocation, self.arrivals);
                self.active.insert(self.arrivals, Progress::new(now_ns, invocation, graph, slo));
                self.arrivals += 1;
            }
            WorkflowEvent::StepEnded { invocation, step } => self.end_step(invocation, step),
            WorkflowEvent::Woken => {}
        }
        while let Some((number, step, device)) = self.next() {
            let Some(progress) = self.active.get_mut(&number) else { return };
            progress.steps[step] = StepState::Runs(device);
            let graph_step = &progress.graph.steps()[step];
            let key = progress.key(step);
            actions.push(self.devices[device].start(now_ns, (device, key), graph_step, |_| false));
        }
    }

    fn unfinished(&self) -> usize {
        self.active.len()
    }
}
