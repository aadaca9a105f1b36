//! Which waiting invocation runs next, and where.

mod finish_first;
pub use finish_first::FinishFirst;

mod load_balancing;
pub use load_balancing::LoadBalancing;

mod locality;
pub use locality::{BusyChoice, Locality};

mod round_robin;
pub use round_robin::RoundRobin;

mod balance;
pub use balance::Balance;

mod srtf;
pub use srtf::Srtf;

mod mlfqs;
pub use mlfqs::Mlfqs;
pub(crate) use mlfqs::bucket_of;

mod exclusive;
pub use exclusive::{Exclusive, ExclusiveOptions};

mod clockwork;
pub use clockwork::Clockwork;

mod planned;
pub use planned::Planned;

mod kind;
pub use kind::{PolicyKind, PolicyOptions, UnknownPolicy, VictimKind};

mod fit;
pub use fit::Placer;

mod cycle;
mod line;

use crate::{DeviceKey, FunctionKey, InputsOn, KindKey, ModelKey, Parts, Slo, TenantKey, View, Why};
use smallvec::SmallVec;
use weir_types::{InvocationId, NodeId, Platforms};

/// A scheduling policy: it holds what waits, in its own order, and answers one question.
///
/// It starts nothing of a tenant that [`may_start`](crate::Tenants::may_start) refuses, and nothing that does not fit.
pub trait Policy: Send {
    /// What it is called in settings and reports.
    fn name(&self) -> &'static str;

    /// Take in an invocation. It has at least one model; they differ from each other, and fit into some device that was up when it arrived.
    fn arrived(&mut self, request: Request, view: &View);

    /// Something has happened: [`next`](Self::next) will be asked for all that is to be started now.
    fn begin(&mut self, _now_ns: u64, _view: &View) {}

    /// What to start next, if anything. Asked after every event until there is no answer; each answer is carried out before the next
    /// question. A placement must fit: its grant is what [`View`] says a device has room for.
    fn next(&mut self, now_ns: u64, view: &View) -> Option<Placement>;

    /// Give up an invocation that waits; none if it does not.
    fn remove(&mut self, invocation: InvocationId, view: &View) -> Option<Request>;

    /// Give up one that waits and will not keep its SLO any more; none if there is no such, or if that is not this policy's concern.
    fn late(&mut self, _now_ns: u64, _view: &View) -> Option<Request> {
        None
    }

    /// Devices have gone, and their numbers may be given to others.
    fn devices_gone(&mut self, _devices: &[DeviceKey], _view: &View) {}

    /// How many wait.
    fn waiting(&self) -> usize;

    /// Whether it starts what needs models in the order of arrival.
    fn keeps_order(&self) -> bool {
        false
    }
}

/// An invocation that waits, with its names resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Which one.
    pub invocation: InvocationId,
    /// Who pays.
    pub tenant: TenantKey,
    /// What runs.
    pub function: FunctionKey,
    /// The models that it may open.
    pub models: SmallVec<[Demand; 1]>,
    /// When it arrived.
    pub arrived_at_ns: u64,
    /// When it is of no use any more.
    pub deadline_at_ns: u64,
    /// 1 is the most urgent; 0 is the default.
    pub priority: u32,
    /// Items that it works on.
    pub batch: u32,
    /// How long it runs, if its caller knows.
    pub run_time_ns: Option<u64>,
    /// The same on some kinds of devices.
    pub told_ns: Box<[(KindKey, u64)]>,
    /// What it is to keep to. Of those that have anything to keep to, policies see only what is turned away by nobody.
    pub slo: Slo,
    /// Where what it works on lies.
    pub inputs: Box<[InputsOn]>,
}

/// A model that an invocation may open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// Which one.
    pub model: ModelKey,
    /// The memory it takes, as measured or estimated.
    pub bytes: u64,
    /// How long a load takes, if its caller knows.
    pub load_time_ns: Option<u64>,
    /// What it can run on.
    pub runs_on: Platforms,
    /// Of [`bytes`](Self::bytes), what other models may have in common with it.
    pub parts: Parts,
}

/// An invocation and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The invocation.
    pub request: Request,
    /// Where it runs.
    pub node: NodeId,
    /// The device that its models are granted on; none if it has none.
    pub device: Option<DeviceKey>,
    /// Victims, beyond those that may go already.
    pub evict: Vec<ModelKey>,
    /// Models of the same tenant that other devices give up.
    pub evict_elsewhere: SmallVec<[(DeviceKey, ModelKey); 1]>,
    /// Why there. The time it waited is filled in by the scheduler.
    pub why: Why,
}
