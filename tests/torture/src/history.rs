//! History of a run: operations of clients, faults, and the state of the cluster at the end.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Microseconds since the start of the run.
pub type Micros = u64;

/// Everything that the checker needs to know about a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct History {
    /// Operations, in the order of their ends.
    pub operations: Vec<Operation>,
    /// Faults, in the order of their ends.
    pub faults: Vec<FaultRecord>,
    /// Periods in which the machine was too busy to run the clients in time.
    pub stalls: Vec<Stall>,
    /// State of each node after the cluster has healed.
    pub finals: Vec<NodeState>,
}

/// One request of a client to a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Index of the client.
    pub client: usize,
    /// Index of the node that received the request.
    pub node: usize,
    /// Start of the request.
    pub begin_us: Micros,
    /// Time at which the client had the answer, or gave up.
    pub end_us: Micros,
    /// The request.
    pub action: Action,
    /// The answer.
    pub outcome: Outcome,
}

/// Request of a client. Marks, values and tokens are unique within a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Action {
    /// Deploys a version of a function that answers with `mark`.
    Deploy {
        /// Name of the function.
        function: String,
        /// The version's mark.
        mark: String,
    },
    /// Makes an earlier version of a function the active one.
    RollBack {
        /// Name of the function.
        function: String,
        /// The version.
        version: u32,
        /// The version's mark.
        mark: String,
    },
    /// Calls a function. The answer has its version and its mark.
    Call {
        /// Name of the function.
        function: String,
    },
    /// Sends an asynchronous call of a function.
    Submit {
        /// Name of the function.
        function: String,
        /// Body of the request, which the result contains.
        token: String,
        /// Idempotency key.
        key: Option<String>,
    },
    /// Fetches the result of an asynchronous invocation.
    FetchResult {
        /// ID of the invocation.
        id: String,
    },
    /// Stores a named object.
    PutObject {
        /// Name of the object.
        object: String,
        /// Its content.
        value: String,
    },
    /// Reads a named object.
    GetObject {
        /// Name of the object.
        object: String,
    },
    /// Pushes a version of a model whose output is the version's number.
    Push {
        /// Name of the model.
        model: String,
        /// The version.
        version: u32,
    },
    /// Runs the newest version of a model, or a named version. The answer has the version and the
    /// output.
    Infer {
        /// Name of the model.
        model: String,
        /// The version that the request names.
        version: Option<u32>,
    },
}

impl Action {
    /// Short name, for the summary.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Deploy { .. } => "deploy",
            Self::RollBack { .. } => "roll back",
            Self::Call { .. } => "call",
            Self::Submit { .. } => "submit",
            Self::FetchResult { .. } => "fetch result",
            Self::PutObject { .. } => "put object",
            Self::GetObject { .. } => "get object",
            Self::Push { .. } => "push model",
            Self::Infer { .. } => "infer",
        }
    }
}

/// Outcome of an operation, as its client knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// A status from 200 to 299.
    Acknowledged(Answer),
    /// Another status.
    Refused(Refusal),
    /// The node did not accept the connection, so the request did not reach it.
    Unreachable,
    /// The client waited no longer.
    GivenUp,
    /// The connection broke.
    Unknown {
        /// Error of the client.
        why: String,
    },
}

/// Content of a successful answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Version of the function or model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Mark, output, content of an object, or result of an invocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// ID of an asynchronous invocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// Error response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// Error code of Weir; `None` for an error response without one.
    pub code: Option<String>,
    /// Error message.
    pub text: String,
}

/// When an operation that changes something takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It takes no effect.
    Never,
    /// It takes effect before this time.
    By(Micros),
    /// It takes effect at any time after its start, or not at all.
    Possible,
}

impl Operation {
    /// Content of the answer, if the operation was acknowledged.
    #[must_use]
    pub fn answer(&self) -> Option<&Answer> {
        match &self.outcome {
            Outcome::Acknowledged(answer) => Some(answer),
            _ => None,
        }
    }

    /// The refusal, if the operation was refused.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        match &self.outcome {
            Outcome::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// When the operation takes effect, if it changes something. A server error does not say
    /// whether the change was stored, and neither does a conflict, which may be one with the same
    /// change in an earlier attempt of the node.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match &self.outcome {
            Outcome::Acknowledged(_) => Effect::By(self.end_us),
            Outcome::Refused(refusal) if refusal.status < 500 && refusal.status != 409 => Effect::Never,
            Outcome::Unreachable => Effect::Never,
            Outcome::Refused(_) | Outcome::GivenUp | Outcome::Unknown { .. } => Effect::Possible,
        }
    }

    /// Whether the answer says that the name or version does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        const MISSING: [&str; 4] =
            ["function-not-found", "model-not-found", "version-not-found", "object-not-found"];
        let code = self.refusal().and_then(|refusal| refusal.code.as_deref());
        code.is_some_and(|code| MISSING.contains(&code))
    }
}

/// Fault that was caused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultRecord {
    /// The fault.
    pub fault: crate::plan::Fault,
    /// Start of the fault.
    pub begin_us: Micros,
    /// Time at which the fault was undone: a killed node is ready again, and a link is open again.
    pub end_us: Micros,
}

/// Period in which the machine did not run the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// Start of the period.
    pub begin_us: Micros,
    /// End of the period.
    pub end_us: Micros,
}

/// Contents of one node after the cluster has healed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// Functions by name.
    pub functions: BTreeMap<String, ItemState>,
    /// Models by name.
    pub models: BTreeMap<String, ItemState>,
    /// Contents of the named objects.
    pub objects: BTreeMap<String, String>,
    /// Asynchronous invocations by ID.
    pub invocations: BTreeMap<String, InvocationState>,
}

/// Function or model at the end of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemState {
    /// The version that the name refers to.
    pub active: u32,
    /// All versions.
    pub versions: Vec<u32>,
    /// Mark or output of a call, or the error.
    pub value: String,
}

/// Asynchronous invocation at the end of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvocationState {
    /// Status: `done`, `dead`, `queued`, ...
    pub status: String,
    /// Version that it runs.
    pub version: Option<u32>,
    /// Number of attempts.
    pub attempts: u32,
    /// Code of its error.
    pub error: Option<String>,
    /// The kept result, if the function answered.
    pub result: Option<String>,
}
