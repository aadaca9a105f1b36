//! The targets of calls: functions, models and workflows.

use super::{Account, CallCtx, Dispatch};
use std::sync::Arc;
use weir_call::Fault;
use weir_control::models::ModelEntry;
use weir_control::registry::DeployedFunction;
use weir_control::workflows::DeployedWorkflow;
use weir_inference::Meter;
use weir_types::{ErrorCode, Name, TenantId, Version};

/// The target of a call.
#[derive(Clone)]
pub enum Target {
    /// A function.
    Function(FunctionTarget),
    /// A model, without a function around it.
    Model(ModelTarget),
    /// A workflow.
    Workflow(Arc<DeployedWorkflow>),
}

/// A version of a function, with the account of the call.
#[derive(Clone)]
pub struct FunctionTarget {
    /// The account of this call, which also contains the deployment. Each call has its own
    /// reference count, so that concurrent calls of a function do not contend for a shared one.
    pub account: Arc<Account>,
}

/// A version of a model.
#[derive(Clone)]
pub struct ModelTarget {
    /// The version to run.
    pub entry: Arc<ModelEntry>,
    /// The meter that counts the device time; `None`: the model's own meter.
    pub meter: Option<Meter>,
    /// Whether the call measures the model with many runs, instead of running it once.
    pub is_measured: bool,
}

impl Dispatch {
    /// The target of a call of a function, with a new account. A caller that sees the call fail
    /// closes the account.
    pub fn function_target(&self, call: &CallCtx, deployment: Arc<DeployedFunction>) -> FunctionTarget {
        FunctionTarget { account: Account::open(call, deployment, &self.metrics) }
    }
}

impl Target {
    /// The tenant that owns the target.
    pub fn tenant(&self) -> &TenantId {
        match self {
            Self::Function(function) => &function.deployment().id.tenant,
            Self::Model(model) => &model.entry.source.id().tenant,
            Self::Workflow(workflow) => &workflow.id.tenant,
        }
    }

    /// The name of the target.
    pub fn name(&self) -> &Name {
        match self {
            Self::Function(function) => &function.deployment().id.name,
            Self::Model(model) => &model.entry.source.id().name,
            Self::Workflow(workflow) => &workflow.id.name,
        }
    }

    /// The version of the target.
    pub fn version(&self) -> Version {
        match self {
            Self::Function(function) => function.deployment().id.version,
            Self::Model(model) => model.entry.source.id().version,
            Self::Workflow(workflow) => workflow.id.version,
        }
    }

    /// The account of a function call.
    pub fn account(&self) -> Option<&Arc<Account>> {
        match self {
            Self::Function(function) => Some(&function.account),
            Self::Model(_) | Self::Workflow(_) => None,
        }
    }

    /// The fault of a call whose deadline passed before it could start.
    pub(super) fn start_timeout(&self) -> Fault {
        match self {
            Self::Function(function) => function.start_timeout(),
            Self::Model(_) => ModelTarget::start_timeout(),
            Self::Workflow(_) => {
                let text =
                    "the deadline passed before the workflow was placed (timeout, gateway.infer_wall_ms_max)";
                Fault::new(ErrorCode::DeadlineExceeded, text)
            }
        }
    }
}

impl FunctionTarget {
    /// The version to call.
    pub fn deployment(&self) -> &Arc<DeployedFunction> {
        self.account.deployment()
    }

    /// See [`Target::start_timeout`].
    pub(super) fn start_timeout(&self) -> Fault {
        let deadline_ms = self.deployment().manifest.limits.deadline_ms;
        let text = format!("the function waited {deadline_ms} ms without starting (limits.deadline_ms)");
        Fault::new(ErrorCode::DeadlineExceeded, text)
    }
}

impl ModelTarget {
    /// A model to run once. `meter` counts its device time; `None`: the model's own meter.
    pub fn new(entry: Arc<ModelEntry>, meter: Option<Meter>) -> Self {
        Self { entry, meter, is_measured: false }
    }

    /// See [`Target::start_timeout`].
    pub(super) fn start_timeout() -> Fault {
        let text = "the deadline passed before the model was ready (timeout, gateway.infer_wall_ms_max)";
        Fault::new(ErrorCode::DeadlineExceeded, text)
    }
}
