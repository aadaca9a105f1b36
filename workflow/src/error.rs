//! Errors of workflows that parse: each names the step and the edge concerned.

use crate::condition::CONDITION_ELEMENTS_MAX;
use crate::document::{NAME_LEN_MAX, PORTS_MAX, STEPS_MAX, TensorSource};
use crate::plan::{CASES_MAX, DEPTH_MAX, RUNS_MAX};
use crate::split::PARTS_MAX;
use std::fmt;

/// Where a workflow reads a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TensorUse {
    /// An input of a `run` step.
    Input {
        /// The step.
        step: String,
        /// Its input.
        input: String,
    },
    /// One of the tensors of a `combine` step.
    Of {
        /// The step.
        step: String,
        /// The tensor's index, from 0.
        position: usize,
    },
    /// The tensor of a `split` step.
    Split {
        /// The step.
        step: String,
    },
    /// The condition of a step.
    Condition {
        /// The step.
        step: String,
    },
    /// An output of the workflow.
    Output(String),
}

/// Why a document is not a valid workflow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The workflow has no steps.
    #[error("a workflow has at least one step")]
    NoSteps,
    /// The workflow has no inputs or no outputs.
    #[error("a workflow has at least one of its {0}")]
    NoPorts(&'static str),
    /// The workflow has too many steps.
    #[error("a workflow has at most {STEPS_MAX} steps, not {0}")]
    TooManySteps(usize),
    /// There are too many inputs or outputs.
    #[error("{what} are at most {PORTS_MAX}, not {len}")]
    TooManyPorts {
        /// The kind of item counted.
        what: String,
        /// Their number.
        len: usize,
    },
    /// A name is invalid.
    #[error("{name:?} cannot be the name of {what}: {why}")]
    BadName {
        /// The name.
        name: String,
        /// The kind of item named.
        what: &'static str,
        /// The problem with the name.
        why: String,
    },
    /// A step has the same name as an input.
    #[error("{0:?} is both a step and an input of the workflow: sources could not tell them apart")]
    NameTaken(String),
    /// A step does not have exactly one action.
    #[error("step {0}: exactly one of run, combine and split says what a step does")]
    NotOneThing(String),
    /// A step has a key of another kind of step.
    #[error("step {step}: {key} goes with {of}, which the step does not have")]
    StrayKey {
        /// The step.
        step: String,
        /// The key.
        key: &'static str,
        /// The kind of step that has the key.
        of: &'static str,
    },
    /// A step has two conditions.
    #[error("step {0}: it has both when and unless; a step has one condition")]
    TwoConditions(String),
    /// The target of a step does not exist.
    #[error("step {step}: {why}")]
    NotFound {
        /// The step.
        step: String,
        /// The reason.
        why: String,
    },
    /// A tensor function does not declare its outputs.
    #[error(
        "step {0}: a tensor function's outputs have to be declared, as in outputs = {{ y = \"FP32[n, 10]\" }}"
    )]
    UndeclaredOutputs(String),
    /// A step declares an output that its model does not have.
    #[error("step {step}: {what} has no output {output:?} to declare; it has {have}")]
    NoOutput {
        /// The step.
        step: String,
        /// The step's target.
        what: String,
        /// The output.
        output: String,
        /// The target's outputs.
        have: String,
    },
    /// A source does not exist.
    #[error("{place}: there is no {source_text}; there are {have}")]
    NoSource {
        /// The place that reads the source.
        place: Box<TensorUse>,
        /// The source.
        source_text: TensorSource,
        /// The existing sources.
        have: String,
    },
    /// A source names a step with several outputs, without an output.
    #[error("{place}: step {step} has several outputs, say which: {have}")]
    SeveralOutputs {
        /// The place that reads the step.
        place: Box<TensorUse>,
        /// The step.
        step: String,
        /// Its outputs.
        have: String,
    },
    /// An input of a step's target has no source.
    #[error("step {step}: input {input} of {what} is fed by nothing")]
    UnfedInput {
        /// The step.
        step: String,
        /// The input.
        input: String,
        /// The step's target.
        what: String,
    },
    /// A step has a source for an input that its target does not have.
    #[error("step {step}: {what} has no input {input:?}; it has {have}")]
    NoInput {
        /// The step.
        step: String,
        /// The step's target.
        what: String,
        /// The input.
        input: String,
        /// The target's inputs.
        have: String,
    },
    /// A step has no inputs.
    #[error("step {0}: it reads nothing, so it would not depend on the workflow's inputs")]
    ReadsNothing(String),
    /// A combiner lists a tensor twice.
    #[error("{place}: {source_text} is listed before")]
    ListedTwice {
        /// The place of the second occurrence.
        place: Box<TensorUse>,
        /// The tensor.
        source_text: TensorSource,
    },
    /// Steps depend on each other.
    #[error("the steps wait for each other: {}", .0.join(" reads "))]
    Cycle(Vec<String>),
    /// A tensor does not match the type required by its reader.
    #[error("{place}: expected {takes}, but {source_text} is {is}")]
    DoesNotFit {
        /// The place that reads the tensor.
        place: Box<TensorUse>,
        /// The required type.
        takes: String,
        /// The source.
        source_text: TensorSource,
        /// The source's type.
        is: String,
    },
    /// A declared output type does not match the model's.
    #[error("step {step}: output {output} is declared as {declared}, and is {is}")]
    NotAsDeclared {
        /// The step.
        step: String,
        /// The output.
        output: String,
        /// The declared type.
        declared: String,
        /// The model's type.
        is: String,
    },
    /// A condition does not apply to its tensor.
    #[error("step {step}: {condition} cannot be evaluated: {why}")]
    BadCondition {
        /// The step.
        step: String,
        /// The condition.
        condition: String,
        /// The reason.
        why: String,
    },
    /// A combiner or split does not apply to its tensors.
    #[error("step {step}: {why}")]
    BadStep {
        /// The step.
        step: String,
        /// The reason.
        why: String,
    },
    /// The number of parts is out of range.
    #[error("step {0}: parts is a number from 2 to {PARTS_MAX}")]
    BadParts(String),
    /// No step reads an input of the workflow.
    #[error("input {0} is read by no step")]
    UnusedInput(String),
    /// Neither a step nor an output reads the outputs of a step.
    #[error("step {0} is of no use: nothing reads its outputs")]
    UnusedStep(String),
    /// An output may be absent.
    #[error(
        "output {output}: {source_text} is absent {case}; join alternatives in a step with combine = \"first\""
    )]
    MayBeMissing {
        /// The output.
        output: String,
        /// Its source.
        source_text: TensorSource,
        /// A case in which the output is absent.
        case: String,
    },
    /// A step runs in no case.
    #[error("step {0} never runs: its condition rules out what it reads")]
    NeverRuns(String),
    /// There are too many cases of conditions and parts to check.
    #[error(
        "the conditions and parts make more than {CASES_MAX} cases; use fewer, or other workflows as steps"
    )]
    TooManyCases,
    /// Workflows are nested too deeply.
    #[error("step {0}: workflows go at most {DEPTH_MAX} deep into each other")]
    TooDeep(String),
    /// There are too many steps, including those of nested workflows.
    #[error("the workflow has {0} steps, including those of nested workflows; the maximum is {RUNS_MAX}")]
    TooManyRuns(u64),
}

/// The message for a tensor that is too large for a condition.
pub(crate) fn too_large(elements: u64) -> String {
    format!("it has {elements} elements, and a condition looks at {CONDITION_ELEMENTS_MAX}")
}

/// The message for a name that is too long.
pub(crate) fn too_long() -> String {
    format!("names have at most {NAME_LEN_MAX} bytes")
}

impl fmt::Display for TensorUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input { step, input } => write!(f, "step {step}, input {input}"),
            Self::Of { step, position } => write!(f, "step {step}, of[{position}]"),
            Self::Split { step } => write!(f, "step {step}, split"),
            Self::Condition { step } => write!(f, "step {step}, its condition"),
            Self::Output(output) => write!(f, "output {output}"),
        }
    }
}

/// Why a run cannot start or continue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The workflow has no such input.
    #[error("the workflow has no input {name:?}; its inputs are {have}")]
    UnknownInput {
        /// The given name.
        name: String,
        /// The workflow's inputs.
        have: String,
    },
    /// An input occurs twice.
    #[error("input {0:?} is given twice")]
    DuplicateInput(String),
    /// An input is missing.
    #[error("input {0} is missing")]
    MissingInput(String),
    /// An input does not have the required type.
    #[error("input {name}: {takes} is given as {given}")]
    WrongInput {
        /// The input.
        name: String,
        /// The required type.
        takes: String,
        /// The given type.
        given: String,
    },
    /// The workflow has no such output.
    #[error("the workflow has no output {name:?}; its outputs are {have}")]
    UnknownOutput {
        /// The requested name.
        name: String,
        /// The workflow's outputs.
        have: String,
    },
    /// An output is requested twice.
    #[error("output {0:?} is wanted twice")]
    DuplicateOutput(String),
    /// The list of requested outputs is empty.
    #[error("the list of wanted outputs is empty; leave it out to get all of them")]
    NoOutputs,
    /// A step did not return an output.
    #[error("step {step}: it gave no output {output:?}")]
    NotGiven {
        /// The step.
        step: String,
        /// The output.
        output: String,
    },
    /// A step returned an output of another type.
    #[error("step {step}: its output {output} is {given}, where the workflow needs {takes}")]
    WrongOutput {
        /// The step.
        step: String,
        /// The output.
        output: String,
        /// The required type.
        takes: String,
        /// The returned type.
        given: String,
    },
    /// A condition cannot be evaluated.
    #[error("step {step}: {condition} cannot be evaluated: {why}")]
    BadCondition {
        /// The step.
        step: String,
        /// The condition.
        condition: String,
        /// The reason.
        why: String,
    },
}
