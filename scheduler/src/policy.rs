//! Scheduling policies: which waiting invocation runs next, and where.

mod finish_first;
pub use finish_first::FinishFirst;

mod in_order;

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
pub use fit::RoomFinder;

mod cycle;
mod line;

use crate::{DeviceKey, FunctionKey, InputsOn, KindKey, ModelKey, ModelParts, Slo, TenantKey, View, Why};
use smallvec::SmallVec;
use weir_types::{InvocationId, NodeId, Platforms};

/// A scheduling policy: it queues waiting invocations in its own order, and chooses the next
/// placement.
///
/// A policy never places an invocation of a tenant that [`may_start`](crate::Tenants::may_start)
/// refuses, or an invocation that does not fit.
pub trait Policy: Send {
    /// The policy's name in settings and reports.
    fn name(&self) -> &'static str;

    /// Queues an invocation. The invocation has at least one model. Its models are distinct, and
    /// fit into some device that was up when it arrived.
    fn arrived(&mut self, request: PlacementRequest, view: &View);

    /// Called after every event, before [`next`](Self::next) is asked for placements.
    fn begin(&mut self, _now_ns: u64, _view: &View) {}

    /// The next placement to start, if any. Called after every event until it returns `None`; each
    /// placement is carried out before the next call. A placement must fit into the room that
    /// [`View`] reports for its device.
    fn next(&mut self, now_ns: u64, view: &View) -> Option<PlacementDecision>;

    /// Removes a waiting invocation; `None` if the invocation is not in the queue.
    fn remove(&mut self, invocation: InvocationId, view: &View) -> Option<PlacementRequest>;

    /// Removes a waiting invocation that can no longer meet its SLO; `None` if there is none, or if
    /// the policy ignores SLOs.
    fn late(&mut self, _now_ns: u64, _view: &View) -> Option<PlacementRequest> {
        None
    }

    /// Removes lost devices. Their keys may be reused.
    fn devices_gone(&mut self, _devices: &[DeviceKey], _view: &View) {}

    /// Number of waiting invocations.
    fn waiting(&self) -> usize;

    /// Whether invocations with models start in the order of arrival.
    fn keeps_order(&self) -> bool {
        false
    }
}

/// A waiting invocation, with its names resolved to keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementRequest {
    /// The invocation.
    pub invocation: InvocationId,
    /// The tenant that is charged.
    pub tenant: TenantKey,
    /// The function to run.
    pub function: FunctionKey,
    /// The models that the invocation may open.
    pub models: SmallVec<[OpenableModel; 1]>,
    /// Arrival time.
    pub arrived_at_ns: u64,
    /// Time at which the invocation expires.
    pub deadline_at_ns: u64,
    /// 1 is the most urgent; 0 is the default.
    pub priority: u32,
    /// Items that the invocation works on.
    pub batch: u32,
    /// Run time, if the caller knows it.
    pub run_time_ns: Option<u64>,
    /// Run times on some kinds of devices, from the caller.
    pub told_ns: Box<[(KindKey, u64)]>,
    /// The SLO to meet. Policies see a request with an SLO only if admission is off.
    pub slo: Slo,
    /// Where the inputs are.
    pub inputs: Box<[InputsOn]>,
    /// Maximum items of a device run in which several invocations of the function take part.
    pub batch_items_max: u32,
    /// Whether it is a step of an admitted workflow, which continues although it is late.
    pub is_step: bool,
}

/// A model that an invocation may open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenableModel {
    /// The model.
    pub model: ModelKey,
    /// Bytes of device memory that the model takes, as measured or estimated.
    pub bytes: u64,
    /// Duration of a load, if the caller knows it.
    pub load_time_ns: Option<u64>,
    /// The platforms that can run the model.
    pub runs_on: Platforms,
    /// The parts of [`bytes`](Self::bytes) that other models may share.
    pub parts: ModelParts,
}

/// An invocation and the device chosen for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementDecision {
    /// The invocation.
    pub request: PlacementRequest,
    /// The node that runs the invocation.
    pub node: NodeId,
    /// The device on which the models are granted; `None` without models.
    pub device: Option<DeviceKey>,
    /// Victims, in addition to the models that are evictable already.
    pub evict: Vec<ModelKey>,
    /// Victims of the same tenant on other devices.
    pub evict_elsewhere: SmallVec<[(DeviceKey, ModelKey); 1]>,
    /// The reasons for the placement. The scheduler fills in the time that the invocation waited.
    pub why: Why,
}
