//! Decides where each invocation runs, and which models may be evicted to make room for it.
//!
//! The scheduler is a pure state machine: no tokio, no clock, no I/O. [`Scheduler::handle`] takes
//! an [`Event`] and the time, updates its [`View`] of the cluster, asks its [`Policy`] for
//! placements until the policy has none left, and returns [`Action`]s. A node and a simulation
//! drive the same code.
//!
//! Three guarantees hold under every policy:
//!
//! - An invocation that arrived is started or rejected exactly once, unless it is cancelled first.
//! - The models granted to running invocations always fit into their device together, including
//!   models that are not loaded yet. A *grant* allows an invocation to use a model on a device
//!   until the invocation ends.
//! - A granted model is never evicted.

mod event;
pub use event::{
    Arrival, DeviceKind, DeviceRule, DeviceSpec, DeviceUse, Event, InputsOn, MeasuredTransfer, ModelDemand,
    Part, PartId, PlannedStep, RequiredModel, UnknownDeviceRule,
};

mod action;
pub use action::{
    Action, Alternative, Estimate, EstimateRatio, InvocationOutcome, LoadByTier, Rejection, Why,
};

mod scheduler;
pub use scheduler::{Corrections, Scheduler, Settings};

mod keys;
pub use keys::{DeviceKey, FunctionKey, KindKey, ModelKey, TenantKey};

mod view;
pub use view::{DeviceView, EvictionCandidate, Freeing, ModelParts, ModelView, Need, NodeView, View};

mod tenants;
pub use tenants::{TenantLimits, TenantLimitsError, Tenants};

mod estimate;
pub use estimate::{Bandwidths, LoadTimes, Network, RunLine, RunTimes, StorageTier};

mod policy;
pub use policy::{
    Balance, BusyChoice, Clockwork, Exclusive, ExclusiveOptions, FinishFirst, LoadBalancing, Locality, Mlfqs,
    OpenableModel, PlacementDecision, PlacementRequest, Planned, Policy, PolicyKind, PolicyOptions,
    RoomFinder, RoundRobin, Srtf, UnknownPolicy, VictimKind,
};

mod victims;
pub use victims::{LeastLoss, LeastRecentlyUsed, VictimPolicy, Victims};

mod slo;
pub use slo::{
    Front, FrontError, FrontStep, PlacementOffer, PlacementPreference, Quote, Slo, SloSettings, StepPlacement,
};

mod workflows;
pub use workflows::{
    ClockworkWorkflows, FirstComeWorkflows, GraphStep, StepTimes, UnknownWorkflowPolicy, WorkflowAction,
    WorkflowAdmission, WorkflowDevice, WorkflowEvent, WorkflowGraph, WorkflowPolicy, WorkflowPolicyKind,
};

mod capacity;
pub use capacity::{CapacityError, CapacityPlan, InstanceConfiguration, plan_capacity};

mod autosize;
pub use autosize::{Autosizer, AvailableCapacity, Chosen};

mod groups;
pub use groups::{
    Backlog, DemandMeter, DeviceBacklogs, FamilyKey, GroupId, GroupReport, GroupRouter, RoutedCall,
};

mod history;
pub use history::{PlacementHistory, PlacementRecord};

mod evictable;
pub use evictable::Evictable;

mod record;
pub use record::{RecordedArrival, Recorder, ReplayError, Replayed, Setup, recorded_arrivals, replay};

pub mod sim;
