//! What the node knows of placements: who decides, what waits, what runs elsewhere, and what may be evicted here.

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

/// What the lock is held for.
pub(super) struct State {
    pub(super) placer: Placer,
    pub(super) waiting: HashMap<InvocationId, Waiting>,
    /// Invocations of this node that run on others. Cancelled when those are lost.
    pub(super) away: HashMap<InvocationId, CancellationToken>,
    /// Of this node's devices.
    pub(super) books: Books,
}

/// Who decides.
pub(super) enum Placer {
    Own(Box<Driver>),
    Dispatcher(Link),
}

/// An invocation that has no placement yet.
pub(super) struct Waiting {
    pub(super) models: Vec<ModelId>,
    /// To be announced again to another placer, where there can be one.
    pub(super) arrival: Option<Arrival>,
    pub(super) start: oneshot::Sender<Result<Place, Refusal>>,
}

/// Where an invocation is to run.
pub(crate) enum Place {
    /// On this node, with its models on this device; none if it may open none.
    Here(Option<Ordinal>),
    There(Away),
}

/// A place on another node.
pub(crate) struct Away {
    /// Where that node is reached.
    pub(crate) address: String,
    pub(crate) granted: Granted,
    /// Cancelled when that node is lost.
    pub(crate) lost: CancellationToken,
}

/// Why an invocation has no place.
#[derive(Debug, Clone, Copy)]
pub(super) enum Refusal {
    /// The scheduler's word, and what it would have taken.
    Rejected(Rejection, Estimate),
    /// The node that was chosen has left.
    HasLeft,
    /// The scheduler is gone.
    NoAnswer,
}

/// Where another node is reached; none if that has left.
pub(super) struct Elsewhere(pub(super) Option<String>);

impl State {
    /// Tell an invocation that waits where it is to run.
    pub(super) fn started(
        &mut self,
        invocation: InvocationId,
        elsewhere: Option<Elsewhere>,
        device: Option<Ordinal>,
        evict: Vec<ModelId>,
    ) {
        let Some(waiting) = self.waiting.remove(&invocation) else {
            // What it was to make room for may still come.
            if let (None, Some(device)) = (elsewhere, device) {
                self.books.allow(device, evict);
            }
            return;
        };
        let place = self.start(invocation, elsewhere, Granted { device, models: waiting.models, evict });
        // One that went away meanwhile has told so by dropping its placement.
        let _ = waiting.start.send(place);
    }

    /// An invocation of this node's has its placement.
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
            // Whoever asked knows more; see `Objective::refuse`.
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
