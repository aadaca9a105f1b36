//! Which waiting invocation runs next, and where.

mod fifo;
pub use fifo::Fifo;

use crate::{Arrival, View, Why};
use weir_types::{DeviceId, InvocationId, ModelId, NodeId};

/// A scheduling policy: it holds what waits, in its own order, and answers one question.
pub trait Policy: Send {
    /// What it is called in settings and reports.
    fn name(&self) -> &'static str;

    /// Take in an invocation. Its models differ from each other, and fit into some device that was up when it arrived.
    fn arrived(&mut self, arrival: Arrival);

    /// What to start next, if anything. Asked after every event until there is no answer; each answer is carried out before the next
    /// question. A placement must fit: its grant is what [`View`] says a device has room for.
    fn next(&mut self, now_ns: u64, view: &View) -> Option<Placement>;

    /// Give up an invocation that waits; none if it does not.
    fn remove(&mut self, invocation: InvocationId) -> Option<Arrival>;

    /// How many wait.
    fn waiting(&self) -> usize;
}

/// An invocation and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The invocation.
    pub arrival: Arrival,
    /// Where it runs.
    pub node: NodeId,
    /// The device that its models are granted on; none if it has none.
    pub device: Option<DeviceId>,
    /// Victims, beyond those that may go already.
    pub evict: Vec<ModelId>,
    /// Why there. The time it waited is filled in by the scheduler.
    pub why: Why,
}
