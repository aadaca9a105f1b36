//! What can be wrong with a workflow that can be read: each with the step and the edge that it is about.

use crate::condition::CONDITION_ELEMENTS_MAX;
use crate::document::{NAME_LEN_MAX, PORTS_MAX, STEPS_MAX, Source};
use crate::plan::{CASES_MAX, DEPTH_MAX, RUNS_MAX};
use crate::split::PARTS_MAX;
use std::fmt;

/// Where in a workflow a tensor is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
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
        /// Which, counted from 0.
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

/// Why a document is no workflow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// There are no steps.
    #[error("a workflow has at least one step")]
    NoSteps,
    /// There is nothing that it takes, or gives.
    #[error("a workflow has at least one of its {0}")]
    NoPorts(&'static str),
    /// There are too many steps.
    #[error("a workflow has at most {STEPS_MAX} steps, not {0}")]
    TooManySteps(usize),
    /// There are too many inputs or outputs.
    #[error("{what} are at most {PORTS_MAX}, not {len}")]
    TooManyPorts {
        /// Of what.
        what: String,
        /// How many there are.
        len: usize,
    },
    /// A name cannot be used.
    #[error("{name:?} cannot be the name of {what}: {why}")]
    BadName {
        /// The name.
        name: String,
        /// Of what.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A step is called like an input.
    #[error("{0:?} is both a step and an input of the workflow: sources could not tell them apart")]
    NameTaken(String),
    /// A step does not do one thing.
    #[error("step {0}: exactly one of run, combine and split says what a step does")]
    NotOneThing(String),
    /// A step has a key that goes with another kind of step.
    #[error("step {step}: {key} goes with {of}, which the step has not")]
    StrayKey {
        /// The step.
        step: String,
        /// The key.
        key: &'static str,
        /// What it goes with.
        of: &'static str,
    },
    /// A step has two conditions.
    #[error("step {0}: it has both when and unless; a step has one condition")]
    TwoConditions(String),
    /// What a step runs is not there.
    #[error("step {step}: {why}")]
    NotFound {
        /// The step.
        step: String,
        /// What is not there.
        why: String,
    },
    /// A tensor function does not say what it gives.
    #[error(
        "step {0}: a tensor function's outputs have to be declared, as in outputs = {{ y = \"FP32[n, 10]\" }}"
    )]
    UndeclaredOutputs(String),
    /// A step declares an output that the model has not.
    #[error("step {step}: {what} has no output {output:?} to declare; it has {have}")]
    NoOutput {
        /// The step.
        step: String,
        /// What it runs.
        what: String,
        /// The output.
        output: String,
        /// The outputs there are.
        have: String,
    },
    /// Nothing goes by the name of a source.
    #[error("{place}: there is no {source_text}; there are {have}")]
    NoSource {
        /// Where it is read.
        place: Box<Place>,
        /// The source.
        source_text: Source,
        /// What there is.
        have: String,
    },
    /// A step that is named alone has several outputs.
    #[error("{place}: step {step} has several outputs, say which: {have}")]
    SeveralOutputs {
        /// Where it is read.
        place: Box<Place>,
        /// The step.
        step: String,
        /// Its outputs.
        have: String,
    },
    /// A step's input is not fed.
    #[error("step {step}: input {input} of {what} is fed by nothing")]
    UnfedInput {
        /// The step.
        step: String,
        /// The input.
        input: String,
        /// What it runs.
        what: String,
    },
    /// A step feeds an input that is not there.
    #[error("step {step}: {what} has no input {input:?}; it has {have}")]
    NoInput {
        /// The step.
        step: String,
        /// What it runs.
        what: String,
        /// The input.
        input: String,
        /// The inputs there are.
        have: String,
    },
    /// A step reads nothing.
    #[error("step {0}: it reads nothing, and so would not depend on what the workflow is given")]
    ReadsNothing(String),
    /// A tensor is combined with itself.
    #[error("{place}: {source_text} is listed before")]
    ListedTwice {
        /// The second time.
        place: Box<Place>,
        /// What is listed.
        source_text: Source,
    },
    /// Steps wait for each other.
    #[error("the steps wait for each other: {}", .0.join(" reads "))]
    Cycle(Vec<String>),
    /// A tensor does not fit where it is read.
    #[error("{place}: {takes} is taken, and {source_text} is {is}")]
    DoesNotFit {
        /// Where it is read.
        place: Box<Place>,
        /// What is taken there.
        takes: String,
        /// What is read.
        source_text: Source,
        /// What that is.
        is: String,
    },
    /// A declared output is not what the model gives.
    #[error("step {step}: output {output} is declared as {declared}, and is {is}")]
    NotAsDeclared {
        /// The step.
        step: String,
        /// The output.
        output: String,
        /// What was declared.
        declared: String,
        /// What it is.
        is: String,
    },
    /// A condition cannot be put on its tensor.
    #[error("step {step}: {condition} cannot be told: {why}")]
    BadCondition {
        /// The step.
        step: String,
        /// The condition.
        condition: String,
        /// Why.
        why: String,
    },
    /// A combiner or a split cannot work on its tensors.
    #[error("step {step}: {why}")]
    BadStep {
        /// The step.
        step: String,
        /// Why.
        why: String,
    },
    /// The number of parts is not one.
    #[error("step {0}: parts is a number from 2 to {PARTS_MAX}")]
    BadParts(String),
    /// An input of the workflow is not read.
    #[error("input {0} is read by no step")]
    UnusedInput(String),
    /// Nothing reads what a step gives.
    #[error("step {0} is of no use: nothing reads its outputs")]
    UnusedStep(String),
    /// An output is not always there.
    #[error(
        "output {output}: {source_text} is not there {case}; join alternatives in a step with combine = \"first\""
    )]
    MayBeMissing {
        /// The output.
        output: String,
        /// Where it comes from.
        source_text: Source,
        /// When it is missing.
        case: String,
    },
    /// No condition lets a step run.
    #[error("step {0} never runs: its condition rules out what it reads")]
    NeverRuns(String),
    /// There are too many conditions and parts to look at every case.
    #[error(
        "the conditions and parts make more than {CASES_MAX} cases; use fewer, or other workflows as steps"
    )]
    TooManyCases,
    /// Workflows are nested too deep.
    #[error("step {0}: workflows go at most {DEPTH_MAX} deep into each other")]
    TooDeep(String),
    /// There are too many steps, those of workflows within it included.
    #[error("with those of workflows in it, the workflow has {0} steps; {RUNS_MAX} are the most")]
    TooManyRuns(u64),
}

/// What is too large for a condition.
pub(crate) fn too_large(elements: u64) -> String {
    format!("it has {elements} elements, and a condition looks at {CONDITION_ELEMENTS_MAX}")
}

/// Why a name is too long.
pub(crate) fn too_long() -> String {
    format!("names have at most {NAME_LEN_MAX} bytes")
}

impl fmt::Display for Place {
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

/// Why a run cannot begin, or go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The workflow has no such input.
    #[error("the workflow has no input {name:?}; its inputs are {have}")]
    UnknownInput {
        /// What was given.
        name: String,
        /// What it has.
        have: String,
    },
    /// An input is given twice.
    #[error("input {0:?} is given twice")]
    DuplicateInput(String),
    /// An input is missing.
    #[error("input {0} is missing")]
    MissingInput(String),
    /// An input is of another type.
    #[error("input {name}: {takes} is given as {given}")]
    WrongInput {
        /// The input.
        name: String,
        /// What is taken.
        takes: String,
        /// What was given.
        given: String,
    },
    /// The workflow has no such output.
    #[error("the workflow has no output {name:?}; its outputs are {have}")]
    UnknownOutput {
        /// What was wanted.
        name: String,
        /// What it has.
        have: String,
    },
    /// An output is wanted twice.
    #[error("output {0:?} is wanted twice")]
    DuplicateOutput(String),
    /// The list of wanted outputs is there, but empty.
    #[error("the list of wanted outputs is empty; leave it out to get all of them")]
    NoOutputs,
    /// A step has not given what it should.
    #[error("step {step}: it gave no output {output:?}")]
    NotGiven {
        /// The step.
        step: String,
        /// The output.
        output: String,
    },
    /// A step has given something else than it should.
    #[error("step {step}: its output {output} is {given}, where the workflow needs {takes}")]
    WrongOutput {
        /// The step.
        step: String,
        /// The output.
        output: String,
        /// What is needed.
        takes: String,
        /// What was given.
        given: String,
    },
    /// A condition cannot be told.
    #[error("step {step}: {condition} cannot be told: {why}")]
    BadCondition {
        /// The step.
        step: String,
        /// The condition.
        condition: String,
        /// Why.
        why: String,
    },
}
