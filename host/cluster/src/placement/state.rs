//! The placement state of a node: the placer, waiting and remote invocations, and device residency.

use super::Placements;
use super::asking::Link;
use super::device_use::{RunningCall, UseRecorder};
use super::driver::PlacementDriver;
use super::guard::LocalPlacement;
use super::residency::ResidencyTable;
use super::staging::StagingTable;
use crate::wire::Granted;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use weir_call::Fault;
use weir_scheduler::{Action, Arrival, Estimate, PlacementHistory, PlacementRecord, Rejection};
use weir_types::Ordinal;
use weir_types::{ErrorCode, InvocationId, ModelId, TenantId};

/// The state that the lock of [`Placements`] protects.
pub(super) struct PlacementState {
    pub(super) placer: Placer,
    pub(super) waiting: HashMap<InvocationId, WaitingCall>,
    /// Invocations of this node that run on other nodes.
    pub(super) away: HashMap<InvocationId, Forwarded>,
    /// Invocations that run on this node with a placement.
    pub(super) running: HashMap<InvocationId, RunningCall>,
    /// The latest placements of this node's invocations.
    pub(super) history: PlacementHistory,
    pub(super) placements: Weak<Placements>,
    /// The residency of this node's devices.
    pub(super) residency: ResidencyTable,
    /// Where this node would load models from.
    pub(super) staging: StagingTable,
    /// Required copies that this node is loading.
    pub(super) loading: BTreeSet<(Ordinal, ModelId)>,
    /// Required copies that were released, until the scheduler is told so.
    pub(super) released: Vec<(Ordinal, ModelId)>,
}

/// The scheduler that places this node's invocations.
pub(super) enum Placer {
    Own(Box<PlacementDriver>),
    Dispatcher(Link),
}

/// An invocation that has no placement yet.
pub(super) struct WaitingCall {
    pub(super) tenant: TenantId,
    pub(super) models: Vec<ModelId>,
    /// Announced again to the next placer; `None` where there can be no other placer.
    pub(super) arrival: Option<Arrival>,
    pub(super) start: oneshot::Sender<Result<Placement, PlacementRefusal>>,
}

/// An invocation of this node that runs on another node.
pub(super) struct Forwarded {
    /// Cancelled when that node is lost.
    lost: CancellationToken,
    /// Decides which node reports the end.
    pub(super) progress: Arc<ForwardProgress>,
}

/// The progress of a forwarded call, as seen by the node that received it.
#[derive(Debug, Default)]
pub struct ForwardProgress(AtomicU8);

/// A step of a forwarded call's progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForwardStep {
    /// The other node does not have the call: it was not sent, or was refused.
    Unsent,
    /// The other node may have the call.
    Sent,
    /// The other node has answered. From then on, that node reports the end of the call.
    Answered,
}

impl ForwardProgress {
    pub(crate) fn set(&self, step: ForwardStep) {
        self.0.store(step as u8, Ordering::Release);
    }

    pub(super) fn step(&self) -> ForwardStep {
        let step = self.0.load(Ordering::Acquire);
        [ForwardStep::Sent, ForwardStep::Answered]
            .into_iter()
            .find(|known| *known as u8 == step)
            .unwrap_or(ForwardStep::Unsent)
    }
}

/// The node on which an invocation is to run. Callers substitute their own types for the placements
/// as the call proceeds: a placement with its permits, or the other node's response.
pub enum Placement<Local = LocalPlacement, Remote = RemotePlacement> {
    /// On this node.
    Local(Local),
    /// On another node.
    Remote(Remote),
}

/// A placement on another node.
pub struct RemotePlacement {
    /// The address of that node.
    pub address: Arc<str>,
    /// The device and models that the call may use there.
    pub granted: Granted,
    /// Cancelled when that node is lost.
    pub lost: CancellationToken,
    /// The progress of the call.
    pub progress: Arc<ForwardProgress>,
}

impl RemotePlacement {
    /// Records that the other node has answered: from now on, that node reports the end of the call.
    pub fn answered(&self) {
        self.progress.set(ForwardStep::Answered);
    }
}

/// The reason why an invocation has no placement.
#[derive(Debug, Clone, Copy)]
pub(super) enum PlacementRefusal {
    /// The scheduler's rejection, with its estimate.
    Rejected(Rejection, Estimate),
    /// The chosen node has left.
    HasLeft,
    /// This node stops, has no devices, and no other node had a place.
    Stopping,
    /// The scheduler was dropped.
    NoAnswer,
}

/// The address of another node; `None` if it has left.
pub(super) struct Elsewhere(pub(super) Option<Arc<str>>);

impl PlacementState {
    /// Sends a waiting invocation its placement.
    pub(super) fn started(
        &mut self,
        invocation: InvocationId,
        elsewhere: Option<Elsewhere>,
        device: Option<Ordinal>,
        evict: Vec<ModelId>,
    ) {
        let Some(waiting) = self.waiting.remove(&invocation) else {
            // The invocation has left, but later placements may rely on the evictions that its
            // placement allowed.
            if let (None, Some(device)) = (elsewhere, device) {
                self.residency.allow(device, evict);
            }
            return;
        };
        let granted = Granted {
            device,
            models: waiting.models,
            evict,
            origin: None,
            estimate_ns: None,
            is_fallback: false,
        };
        let place = self.start(invocation, elsewhere, granted, Some(waiting.tenant), waiting.arrival);
        // An invocation that was cancelled meanwhile has reported its end by dropping its
        // placement.
        let _ = waiting.start.send(place);
    }

    /// Converts the placement of one of this node's invocations.
    pub(super) fn start(
        &mut self,
        invocation: InvocationId,
        elsewhere: Option<Elsewhere>,
        granted: Granted,
        tenant: Option<TenantId>,
        arrival: Option<Arrival>,
    ) -> Result<Placement, PlacementRefusal> {
        let Some(Elsewhere(address)) = elsewhere else {
            let device = granted.device;
            self.begin(invocation, granted, tenant, arrival);
            return Ok(Placement::Local(LocalPlacement::new(invocation, device)));
        };
        let Some(address) = address else {
            return Err(PlacementRefusal::HasLeft);
        };
        let lost = CancellationToken::new();
        let progress = Arc::<ForwardProgress>::default();
        let record = tenant.and_then(|tenant| self.history.get(&tenant, invocation));
        let estimate_ns = record.map(|record| record.why.estimate.finish_after_ns());
        let granted = Granted { estimate_ns, ..granted };
        self.away.insert(invocation, Forwarded { lost: lost.clone(), progress: progress.clone() });
        Ok(Placement::Remote(RemotePlacement { address, granted, lost, progress }))
    }

    /// Records that an invocation starts on this node with its grant. `tenant` is the tenant of an
    /// invocation that arrived here.
    pub(super) fn begin(
        &mut self,
        invocation: InvocationId,
        granted: Granted,
        tenant: Option<TenantId>,
        arrival: Option<Arrival>,
    ) {
        let recorder = UseRecorder::new(&self.placements, invocation);
        let device = granted.device;
        let origin = granted.origin;
        let estimate_ns = granted.estimate_ns;
        self.running
            .insert(invocation, RunningCall { recorder, tenant, arrival, device, origin, estimate_ns });
        self.residency.begin(invocation, granted);
    }

    /// Keeps the reasons of a decision about a waiting invocation.
    pub(super) fn explain(&mut self, action: &Action) {
        let Some(record) = PlacementRecord::for_action(action) else { return };
        if let Some(waiting) = self.waiting.get(&record.invocation) {
            self.history.add(&waiting.tenant, record);
        }
    }

    /// Answers a waiting workflow whose steps have reservations.
    pub(super) fn reserved(&mut self, invocation: InvocationId) {
        if let Some(waiting) = self.waiting.remove(&invocation) {
            let placement = LocalPlacement::of_separate_steps(invocation);
            let _ = waiting.start.send(Ok(Placement::Local(placement)));
        }
    }

    pub(super) fn rejected(&mut self, invocation: InvocationId, why: Rejection, estimate: Estimate) {
        if let Some(waiting) = self.waiting.remove(&invocation) {
            let _ = waiting.start.send(Err(PlacementRefusal::Rejected(why, estimate)));
        } else if let Some(remote) = self.away.get(&invocation) {
            remote.lost.cancel();
        }
    }
}

impl From<PlacementRefusal> for Fault {
    fn from(refusal: PlacementRefusal) -> Self {
        use ErrorCode as Code;
        let (code, text) = match refusal {
            PlacementRefusal::Rejected(Rejection::QueueFull, _) => {
                (Code::QueueFull, "too many invocations wait for a device")
            }
            PlacementRefusal::Rejected(Rejection::NoCapacity, _) => (
                Code::NoCapacity,
                "no device can run the call's models together within its memory (models.memory_bytes_max; `weir models show` lists the devices of a model), or the models exceed the tenant's memory (tenants.NAME.resident_bytes_max)",
            ),
            PlacementRefusal::Rejected(Rejection::Deadline, _) => (
                Code::DeadlineExceeded,
                "the deadline passed before the call could start: the deadline is too short, no device had room, or the tenant had no turn",
            ),
            // The caller's objective gives a better message; see `Objective::refuse`.
            PlacementRefusal::Rejected(Rejection::Slo, _) => {
                (Code::SloUnattainable, "the call would miss its service level objective (slo_ms, cost_slo)")
            }
            PlacementRefusal::Rejected(Rejection::NodeLost, _) => {
                (Code::Unavailable, "the node was lost; try again")
            }
            PlacementRefusal::Rejected(Rejection::NoDevice, _) => (
                Code::NoDevice,
                "the cluster has no device, and no node with devices joined it in time (scheduler.device_wait_ms, and the deadline of the call): start a node with devices, or try again (`weir status` lists the nodes)",
            ),
            PlacementRefusal::HasLeft => {
                (Code::Unavailable, "the chosen node has left the cluster; try again")
            }
            PlacementRefusal::Stopping => (
                Code::Unavailable,
                "the node is shutting down, and no other node could take the call; try another",
            ),
            PlacementRefusal::NoAnswer => (Code::Unavailable, "the scheduler did not answer; try again"),
        };
        Self::new(code, text)
    }
}
