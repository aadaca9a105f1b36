//! Events that nodes report. Times are nanoseconds of a clock that the caller chooses; only their
//! differences matter.

use crate::{Slo, StorageTier};
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use std::sync::Arc;
use weir_types::{DeviceId, FunctionId, InvocationId, ModelId, NodeId, Platform, Platforms};

/// An input of the scheduler. The scheduler ignores and counts an event that is unknown or
/// impossible; see [`Corrections`](crate::Corrections).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// An invocation asks to run.
    Arrived(Arrival),
    /// An invocation has been running on a node since before this scheduler began, because another
    /// scheduler placed it. A node reports these after [`NodeUp`](Self::NodeUp) and the
    /// [`Loaded`](Self::Loaded) of the models in memory.
    Running {
        /// The invocation as it arrived.
        arrival: Arrival,
        /// The node that runs it.
        node: NodeId,
        /// The device on which its models are granted, by ordinal; `None` without models.
        device: Option<u32>,
    },
    /// The device starts the first run of an invocation.
    Started {
        /// The invocation.
        invocation: InvocationId,
    },
    /// An invocation succeeded. Its grant ends, and its times are learned.
    Finished {
        /// The invocation.
        invocation: InvocationId,
        /// The use of the device; `None` if it was not measured.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        used: Option<DeviceUse>,
    },
    /// An invocation ended without success. Its grant ends. Its device time is charged, but no
    /// times are learned from it.
    Failed {
        /// The invocation.
        invocation: InvocationId,
        /// The use of the device; `None` if it was not measured.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        used: Option<DeviceUse>,
    },
    /// An invocation was cancelled: it leaves the queue, or its grant ends as after
    /// [`Failed`](Self::Failed).
    Cancelled {
        /// The invocation.
        invocation: InvocationId,
        /// The use of the device; `None` if it was not measured, or if the invocation was not
        /// started.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        used: Option<DeviceUse>,
    },
    /// A model is in a device's memory.
    Loaded {
        /// The device.
        device: DeviceId,
        /// The model.
        model: ModelId,
        /// Bytes of device memory that the model takes.
        bytes: u64,
        /// Duration of the load; `None` if the model was already in memory when the node came up.
        load_time_ns: Option<u64>,
        /// The parts of these bytes that other models may share.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        parts: Vec<Part>,
    },
    /// Reports where a node would load a model from, whenever that changes: after each transfer of
    /// the model's bytes between tiers, and after a removal from a tier. Until the first report,
    /// the node's [`Origin`](Self::Origin) is assumed.
    Staged {
        /// The node.
        node: NodeId,
        /// The model.
        model: ModelId,
        /// Bytes of the model's files in each tier that no earlier tier holds. The memory that the
        /// model takes on a device comes from the tiers in proportion. Without bytes, the model is
        /// where the node's [`Origin`](Self::Origin) states.
        bytes: Vec<(StorageTier, u64)>,
        /// The transfer that moved the bytes, if it was measured. Loads into a device's memory are
        /// reported by [`Loaded`](Self::Loaded) instead.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        moved: Option<MeasuredTransfer>,
    },
    /// Reports the tier from which a node would load models that it has not reported by
    /// [`Staged`](Self::Staged). Until then, this is the node's disk.
    Origin {
        /// The node.
        node: NodeId,
        /// The tier.
        tier: StorageTier,
    },
    /// A model is no longer in a device's memory, for any reason.
    Evicted {
        /// The device.
        device: DeviceId,
        /// The model.
        model: ModelId,
    },
    /// A node can run functions. A repeated event replaces the earlier state of the node:
    /// everything that ran there is lost.
    NodeUp {
        /// The node.
        node: NodeId,
        /// Its devices, by ordinal.
        devices: Vec<DeviceSpec>,
    },
    /// A node has left or was lost. Its running invocations are lost.
    NodeDown {
        /// The node.
        node: NodeId,
    },
    /// A device accepts no new invocations for now. Running invocations end normally, and loads and
    /// evictions are reported as for any device.
    DeviceDown {
        /// The device.
        device: DeviceId,
    },
    /// A device accepts invocations again.
    DeviceUp {
        /// The device.
        device: DeviceId,
    },
    /// The memory of a device for models changed. Models in its memory stay until they are evicted
    /// for another model.
    DeviceResized {
        /// The device.
        device: DeviceId,
        /// Memory for models from now on.
        capacity_bytes: u64,
    },
    /// Replaces the list of models of which devices are to have copies in memory at all times. The
    /// scheduler takes the first [`RequiredModel::MODELS_MAX`] models.
    Required {
        /// The models, each once.
        models: Vec<RequiredModel>,
    },
    /// A device has ended its obligation to keep a model, as
    /// [`Action::Release`](crate::Action::Release) demanded. A load of the model that was in
    /// progress has ended, and was reported before.
    Released {
        /// The device.
        device: DeviceId,
        /// The model.
        model: ModelId,
    },
    /// A device could not load a model that [`Action::Load`](crate::Action::Load) named. Its copy is
    /// required elsewhere, or here again after [`RequiredModel::RETRY_NS`].
    LoadFailed {
        /// The device.
        device: DeviceId,
        /// The model.
        model: ModelId,
    },
    /// Nodes are about to report the invocations that run on them. Until
    /// [`Resumed`](Self::Resumed), the scheduler places and rejects no invocation; arrivals wait.
    Paused,
    /// All nodes have reported their running invocations. The scheduler resumes placements.
    Resumed,
    /// The time requested by [`Action::WakeAt`](crate::Action::WakeAt) has come.
    Woken,
}

/// The measured use of a device by an invocation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceUse {
    /// Device time of the invocation, without loads. A run in a batch counts with its share of the
    /// batch.
    pub device_time_ns: u64,
    /// Duration of its runs. A run in a batch counts with the duration of the whole batch.
    pub run_time_ns: u64,
    /// Items of the batch that it ran in; the largest, if it had several runs. 0: its own items.
    pub batch_items: u32,
    /// Time that it waited for the device: for loads, for a run slot, and for a batch to form.
    pub wait_ns: u64,
}

/// A measured transfer of a model's bytes between two tiers of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredTransfer {
    /// The tier that the bytes came from.
    pub from: StorageTier,
    /// Number of bytes.
    pub bytes: u64,
    /// Duration of the transfer.
    pub time_ns: u64,
}

/// An invocation that asks to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// The invocation's id, unique among the invocations that wait or run.
    pub invocation: InvocationId,
    /// The function to run. Its tenant is charged.
    pub function: FunctionId,
    /// The models that the invocation may open. All are granted on one device; models that cannot
    /// run there run on the CPU of the device's node.
    pub models: Vec<ModelDemand>,
    /// When the invocation expires.
    pub deadline_at_ns: u64,
    /// 1 is the most urgent; 0 is the default.
    pub priority: u32,
    /// Items that the invocation works on, for example the first dimension of its input; 1 if it
    /// has no batch dimension.
    pub batch: u32,
    /// Run time with all models in memory, in nanoseconds, if the caller knows it. Measured times
    /// take precedence.
    pub run_time_ns: Option<u64>,
    /// The same run time by kind of device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub run_times_ns: Vec<(DeviceKind, u64)>,
    /// The SLO of the invocation. An invocation that would miss it is rejected on arrival. `None`:
    /// the invocation waits for as long as it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo: Option<Slo>,
    /// Where the inputs are, if their location matters: they are moved to the node that runs the
    /// invocation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<InputsOn>,
    /// Maximum items of a device run in which several invocations of the function take part. 0 or
    /// 1: each invocation runs alone. Only for inferences of one model: the runs of a function's
    /// code start at any time of its life.
    #[serde(default, skip_serializing_if = "is_alone")]
    pub batch_items_max: u32,
    /// Whether the invocation may run in separate steps, on several devices, if no device has room for
    /// all its models: [`Rejection::NoCapacity`](crate::Rejection::NoCapacity) starts them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_splittable: bool,
    /// The steps of a workflow, each after the steps that it waits for. If the workflow has an SLO
    /// and cannot be admitted as a whole, its steps are placed separately:
    /// [`Action::Reserved`](crate::Action::Reserved). Empty for all other invocations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<PlannedStep>,
}

/// A step of a workflow. It arrives as a separate invocation when its inputs exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedStep {
    /// The id with which the step will arrive.
    pub invocation: InvocationId,
    /// The function, model or workflow that the step runs.
    pub function: FunctionId,
    /// The models that the step may open; none for a step that uses no device.
    pub models: Vec<ModelDemand>,
    /// The indexes of the steps that end before this step starts, all before its own.
    pub after: Vec<u32>,
    /// Expected items that the step works on.
    pub batch: u32,
    /// Run time with all models in memory by kind of device, if the caller knows it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub run_times_ns: Vec<(DeviceKind, u64)>,
}

impl PlannedStep {
    /// Maximum number of steps of a workflow that get reservations. The steps of larger workflows
    /// are placed without reservations.
    pub const STEPS_MAX: usize = 64;

    /// The expected arrival of the step, without inputs.
    pub(crate) fn arrival(&self, deadline_at_ns: u64, priority: u32) -> Arrival {
        Arrival {
            invocation: self.invocation,
            function: self.function.clone(),
            models: self.models.clone(),
            deadline_at_ns,
            priority,
            batch: self.batch,
            run_time_ns: None,
            run_times_ns: self.run_times_ns.clone(),
            slo: None,
            inputs: Vec::new(),
            batch_items_max: 1,
            is_splittable: false,
            steps: Vec::new(),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_alone(batch_items_max: &u32) -> bool {
    *batch_items_max <= 1
}

/// The inputs of an invocation on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InputsOn {
    /// The node.
    pub node: NodeId,
    /// Bytes of input on the node.
    pub bytes: u64,
}

/// A model that an invocation may open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelDemand {
    /// The model.
    pub model: ModelId,
    /// Bytes of device memory that the model takes, as measured or estimated.
    pub bytes: u64,
    /// Duration of a load, if the caller knows it.
    pub load_time_ns: Option<u64>,
    /// The platforms that can run the model.
    #[serde(default, skip_serializing_if = "Platforms::is_all")]
    pub runs_on: Platforms,
    /// The parts of [`bytes`](Self::bytes) that other models may share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
}

/// A model of which devices have copies in memory at all times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequiredModel {
    /// The model.
    pub demand: ModelDemand,
    /// Minimum number of devices with the model in memory.
    pub copies_min: u32,
}

impl RequiredModel {
    /// Maximum number of required models of a cluster.
    pub const MODELS_MAX: usize = 1_024;
    /// Time after which a device that failed to load a required model is considered again. It doubles
    /// with each further failure, up to 32 times.
    pub const RETRY_NS: u64 = 60_000_000_000;
}

/// Weights that a device's memory holds once, whatever the number of models there that contain
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Part {
    /// The part's id.
    pub id: PartId,
    /// Bytes of device memory that the weights take.
    pub bytes: u64,
}

/// Identifies weights by content: equal weights have equal ids on all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PartId(pub u64);

/// The capabilities of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSpec {
    /// The kind of device that profiles are keyed by: `cpu`, or the name of a GPU.
    pub kind: DeviceKind,
    /// The platform that runs models on the device.
    #[serde(default)]
    pub platform: Platform,
    /// Bytes of memory for models.
    pub capacity_bytes: u64,
    /// Run slots: the maximum number of concurrent model runs. Further runs wait on the device.
    pub slots: u32,
    /// Maximum number of invocations that hold a grant on the device at the same time. It applies
    /// under both device rules. With [`DeviceRule::CountedInvocations`] and a maximum of 1, the
    /// device takes one request at a time, like the devices in the papers
    /// (`docs/concepts/scheduling.md`).
    pub invocations_max: u32,
    /// When the device accepts one more invocation.
    #[serde(default, skip_serializing_if = "DeviceRule::is_counted")]
    pub rule: DeviceRule,
}

/// When a device accepts one more invocation, within
/// [`invocations_max`](DeviceSpec::invocations_max).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceRule {
    /// The papers' rule: always. An invocation takes the device from its start to its end.
    #[default]
    CountedInvocations,
    /// While the device work committed to it is below
    /// [`Settings::commit_ahead_ms`](crate::Settings::commit_ahead_ms), or a run slot is expected
    /// to be idle.
    CommittedWork,
}

/// An error for an unknown rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no device rule {name:?}; there are: committed-work, counted-invocations")]
pub struct UnknownDeviceRule {
    name: String,
}

impl FromStr for DeviceRule {
    type Err = UnknownDeviceRule;

    fn from_str(name: &str) -> Result<Self, UnknownDeviceRule> {
        let unknown = || UnknownDeviceRule { name: name.chars().take(80).collect() };
        Self::ALL.into_iter().find(|rule| rule.as_str() == name).ok_or_else(unknown)
    }
}

impl DeviceRule {
    /// All rules.
    pub const ALL: [Self; 2] = [Self::CountedInvocations, Self::CommittedWork];

    /// The rule's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CountedInvocations => "counted-invocations",
            Self::CommittedWork => "committed-work",
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_counted(&self) -> bool {
        *self == Self::CountedInvocations
    }
}

/// A kind of device. Devices of one kind have the same costs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct DeviceKind(pub Arc<str>);

impl From<&str> for DeviceKind {
    fn from(kind: &str) -> Self {
        Self(kind.into())
    }
}

impl From<String> for DeviceKind {
    fn from(kind: String) -> Self {
        Self(kind.into())
    }
}

impl From<DeviceKind> for String {
    fn from(kind: DeviceKind) -> Self {
        kind.0.as_ref().into()
    }
}
