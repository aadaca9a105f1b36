//! Workflows whose steps are placed separately, on devices of different kinds.
//!
//! A [`WorkflowGraph`] describes the steps: which steps each one waits for, and the times of its
//! model on each kind of device. Each device runs one step at a time. A [`WorkflowPolicy`] maps
//! [`WorkflowEvent`]s to [`WorkflowAction`]s, without a clock or I/O, like the
//! [`Scheduler`](crate::Scheduler) does for invocations.
//!
//! [`WorkflowPolicyKind::Node`] is the scheduler of a node, which prefers to run a workflow as a
//! whole. [`WorkflowAdmission`] plans the steps of every workflow separately. Its rules:
//!
//! 1. *Plan.* On arrival, every step gets a reservation: a time on a device that no other
//!    reservation overlaps, after the reservations of the steps that it waits for. The
//!    [`Front`](crate::Front) of the graph provides the combinations of kinds to try. No existing
//!    reservation moves, so an arrival never makes an admitted workflow late (conservative
//!    backfilling).
//! 2. *Admission.* A workflow is admitted if a plan ends by its due time and within its maximum
//!    cost. Otherwise it is rejected at once.
//! 3. *Start.* A device starts its reservations in order, as soon as the inputs of a step exist. A
//!    later step may start first if it ends before the reservations that it passes.
//! 4. *Re-evaluation.* When a step ends at another time than expected, the times of all
//!    reservations are computed again. A workflow that would end late is planned again, with the
//!    steps that have not started. If that fails, it loses its reservations.
//! 5. *Best effort.* A workflow without reservations continues in the gaps: a step starts on an
//!    idle device if it ends before the device's next reservation.
//! 6. *Trials.* A rejected workflow that would be admitted if idle devices held its models runs
//!    once without reservations, which loads the models.
//!
//! [`FirstComeWorkflows`] and [`ClockworkWorkflows`] are the baselines of the KaaS thesis, chapter
//! 4.

mod graph;
pub use graph::{GraphStep, StepTimes, WorkflowGraph};

mod device;
pub use device::WorkflowDevice;

mod calendar;
mod plan;
mod progress;

mod admission;
pub use admission::WorkflowAdmission;

mod first_come;
pub use first_come::FirstComeWorkflows;

mod clockwork;
pub use clockwork::ClockworkWorkflows;

mod node;

mod kind;
pub use kind::{UnknownWorkflowPolicy, WorkflowPolicyKind};

use crate::Slo;
use std::sync::Arc;
use weir_types::InvocationId;

/// A policy for workflows whose steps are placed separately.
pub trait WorkflowPolicy {
    /// Processes `event`, which happened at `now_ns`, and appends the resulting actions to
    /// `actions`. Times never decrease from call to call.
    fn handle(&mut self, now_ns: u64, event: WorkflowEvent, actions: &mut Vec<WorkflowAction>);

    /// When the policy is to be woken; `None` if it waits for other events.
    fn wake_at_ns(&self) -> Option<u64> {
        None
    }

    /// Number of workflows that have neither ended nor been rejected or given up.
    fn unfinished(&self) -> usize;
}

/// An event that a [`WorkflowPolicy`] processes.
#[derive(Debug, Clone)]
pub enum WorkflowEvent {
    /// A workflow was called.
    Arrived {
        /// The call.
        invocation: InvocationId,
        /// Its steps.
        graph: Arc<WorkflowGraph>,
        /// Its objectives.
        slo: Slo,
    },
    /// A step ended.
    StepEnded {
        /// The call.
        invocation: InvocationId,
        /// The index of the step.
        step: usize,
    },
    /// The time at which the policy wanted to be woken has come.
    Woken,
}

/// A decision of a [`WorkflowPolicy`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkflowAction {
    /// Start a step. The steps that it waits for have ended, and the device is idle.
    Start {
        /// The call.
        invocation: InvocationId,
        /// The index of the step.
        step: usize,
        /// The index of the device.
        device: usize,
        /// Whether the device has to load the step's model first.
        loads: bool,
        /// The models to evict before the load.
        evict: Vec<u32>,
    },
    /// The workflow is admitted: if steps take the expected time, it meets its objectives.
    Admit(InvocationId),
    /// Reject a workflow on arrival.
    Reject(InvocationId),
    /// Give up a workflow that waited and can no longer meet its objectives.
    GiveUp(InvocationId),
}
