//! The placement state of a node: the placer, waiting and remote invocations, and device residency.

use super::asking::Link;
use super::books::Books;
use super::driver::Driver;
use crate::cluster::wire::Granted;
use crate::devices::Ordinal;
use crate::instance::Fault;
use std::collections::HashMap;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use weir_scheduler::{Arrival, Estimate, Rejection};
use weir_types::{ErrorCode, InvocationId, ModelId};

/// The state behind the placements' lock.
pub(super) struct State {
    pub(super) placer: Placer,
    pub(super) waiting: HashMap<InvocationId, Waiting>,
    /// Invocations of this node that run on other nodes. Cancelled when those nodes are lost.
    pub(super) away: HashMap<InvocationId, CancellationToken>,
    /// The residency of this node's devices.
    pub(super) books: Books,
}

/// The scheduler that places this node's invocations.
pub(super) enum Placer {
    Own(Box<Driver>),
    Dispatcher(Link),
}

/// An invocation that has no placement yet.
pub(super) struct Waiting {
    pub(super) models: Vec<ModelId>,
    /// Announced again to the next placer; `None` where there can be no other placer.
    pub(super) arrival: Option<Arrival>,
    pub(super) start: oneshot::Sender<Result<Place, Refusal>>,
}

/// The node on which an invocation is to run.
pub(crate) enum Place {
    /// On this node, with its models on this device; `None` if it may open no models.
    Here(Option<Ordinal>),
    There(Away),
}

/// A placement on another node.
pub(crate) struct Away {
    /// The address of that node.
    pub(crate) address: String,
    pub(crate) granted: Granted,
    /// Cancelled when that node is lost.
    pub(crate) lost: CancellationToken,
}

/// The reason why an invocation has no placement.
#[derive(Debug, Clone, Copy)]
pub(super) enum Refusal {
    /// The scheduler's rejection, with its estimate.
    Rejected(Rejection, Estimate),
    /// The chosen node has left.
    HasLeft,
    /// The scheduler is gone.
    NoAnswer,
}

/// The address of another node; `None` if it has left.
pub(super) struct Elsewhere(pub(super) Option<String>);

impl State {
    /// Sends a waiting invocation its placement.
    pub(super) fn started(
        &mut self,
        invocation: InvocationId,
        elsewhere: Option<Elsewhere>,
        device: Option<Ordinal>,
        evict: Vec<ModelId>,
    ) {
        let Some(waiting) = self.waiting.remove(&invocation) else {
            // The invocation is gone, but the room that it was to make may be counted on by later
            // placements.
            if let (None, Some(device)) = (elsewhere, device) {
                self.books.allow(device, evict);
            }
            return;
        };
        let place = self.start(invocation, elsewhere, Granted { device, models: waiting.models, evict });
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
    ) -> Result<Place, Refusal> {
        let Some(Elsewhere(address)) = elsewhere else {
            let device = granted.device;
            self.books.begin(invocation, granted);
            return Ok(Place::Here(device));
        };
        let Some(address) = address else {
            return Err(Refusal::HasLeft);
        };
        let lost = CancellationToken::new();
        self.away.insert(invocation, lost.clone());
        Ok(Place::There(Away { address, granted, lost }))
    }

    pub(super) fn rejected(&mut self, invocation: InvocationId, why: Rejection, estimate: Estimate) {
        if let Some(waiting) = self.waiting.remove(&invocation) {
            let _ = waiting.start.send(Err(Refusal::Rejected(why, estimate)));
        } else if let Some(lost) = self.away.get(&invocation) {
            lost.cancel();
        }
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        use ErrorCode as Code;
        let (code, text) = match refusal {
            Refusal::Rejected(Rejection::QueueFull, _) => {
                (Code::QueueFull, "too many invocations wait for a device")
            }
            Refusal::Rejected(Rejection::NoCapacity, _) => (
                Code::NoCapacity,
                "no device can run the models of the call and is large enough for them together (model_memory_bytes_max; `weir models show` tells where a model can run), or they take more than their tenant may have (resident_bytes_max)",
            ),
            Refusal::Rejected(Rejection::Deadline, _) => (
                Code::DeadlineExceeded,
                "the deadline passed before the call could start: its time was too short, or no device had room, or its tenant no turn",
            ),
            // The caller's objective gives a better message; see `Objective::refuse`.
            Refusal::Rejected(Rejection::Slo, _) => {
                (Code::SloUnattainable, "it would miss its service level objective (slo_ms, cost_slo)")
            }
            Refusal::Rejected(Rejection::NodeLost, _) => (Code::Unavailable, "the node went away; try again"),
            Refusal::HasLeft => (Code::Unavailable, "the node that was chosen has left; try again"),
            Refusal::NoAnswer => (Code::Unavailable, "the scheduler gave no answer"),
        };
        Self::new(code, text)
    }
}
