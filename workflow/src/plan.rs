//! Plans: validated workflows. Every target exists, every tensor fits where it is read, and every
//! output is always present.

mod cases;
mod names;
mod order;
mod path;
mod read;
mod sizes;
mod types;

pub use path::RunEstimate;
pub(crate) use sizes::{Sizes, Type};

use crate::combine::Combiner;
use crate::condition::{Comparison, Measure};
use crate::document::Document;
use crate::error::PlanError;
use serde::{Deserialize, Serialize};
use weir_types::{ContentHash, ModelRef, Name, Port, Signature, Version};

/// Maximum nesting depth of workflows.
pub const DEPTH_MAX: u32 = 4;
/// Maximum number of steps of a workflow, including those of nested workflows.
pub const RUNS_MAX: u64 = 256;
/// Maximum number of cases checked: combinations of conditions and numbers of parts.
pub const CASES_MAX: u64 = 1_024;

/// The resolved target of a step: one immutable version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pinned {
    /// The kind of target.
    pub kind: TargetKind,
    /// The target's name.
    pub name: Name,
    /// The target's version.
    pub version: Version,
    /// Digest of the version's content, which detects a replacement.
    pub digest: ContentHash,
    /// Inputs and outputs; `None` for a tensor function, whose signature is unknown.
    pub signature: Option<Signature>,
    /// For a workflow: its nesting depth, itself included.
    #[serde(default)]
    pub depth: u32,
    /// For a workflow: the number of its steps, including those of nested workflows.
    #[serde(default)]
    pub runs: u64,
}

/// Kinds of targets that a step can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetKind {
    /// A model.
    Model,
    /// A tensor function.
    Function,
    /// A workflow.
    Workflow,
}

/// Resolves the target of a step by the step's name, or reports why it cannot. Returns `None` if
/// the target is unknown, for example without a node; parts that depend on such a target are not
/// checked.
pub type TargetResolver<'a> = dyn Fn(&str, &ModelRef) -> Result<Option<Pinned>, String> + 'a;

/// A workflow that can be run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The values: the workflow's inputs first, then the outputs of steps.
    pub(crate) values: Vec<PlannedValue>,
    pub(crate) inputs: usize,
    /// Topologically sorted: each step comes after the steps that it reads from.
    pub(crate) steps: Vec<PlannedStep>,
    pub(crate) conditions: Vec<PlannedCondition>,
    pub(crate) outputs: Vec<(String, ValueIndex)>,
    pub(crate) sizes: usize,
    /// Whether each step runs in every case.
    pub(crate) sure: Vec<bool>,
    /// Sets of steps that run together in some case.
    together: Vec<path::StepSet>,
    signature: Signature,
    depth: u32,
    runs: u64,
}

/// The index of a value.
pub(crate) type ValueIndex = usize;

/// A value: an input of the workflow or an output of a step.
#[derive(Debug, Clone)]
pub(crate) struct PlannedValue {
    /// The name within its step or workflow.
    pub(crate) name: String,
    /// The type; `None` if unknown.
    pub(crate) is: Option<Type>,
    /// How often steps, conditions and outputs read the value.
    pub(crate) readers: usize,
}

/// A step of a plan.
#[derive(Debug, Clone)]
pub struct PlannedStep {
    /// The step's name.
    pub name: String,
    /// The step's action.
    pub action: StepAction,
    /// Whether a second copy starts if the first takes unusually long.
    pub is_hedged: bool,
    pub(crate) inputs: Vec<(String, ValueIndex)>,
    pub(crate) guard: Option<Guard>,
    pub(crate) outputs: Vec<ValueIndex>,
}

/// The action of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum StepAction {
    /// Run a target; `None` if the target is unknown, for example without a node.
    Run(Option<Pinned>),
    /// Combine several tensors into one.
    Combine(Combiner),
    /// Split a tensor.
    Split {
        /// The number of parts.
        parts: u32,
    },
}

/// The guard of a step: a condition, and whether it must hold or must not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Guard {
    pub(crate) condition: usize,
    pub(crate) holds: bool,
}

/// A condition, evaluated once per run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PlannedCondition {
    /// The condition as first written.
    pub(crate) text: String,
    /// The first step with this condition.
    pub(crate) step: String,
    pub(crate) test: Test,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Test {
    Compare { measure: Measure, value: ValueIndex, comparison: Comparison, number: f64 },
    Chance(f64),
}

impl Plan {
    /// Validates `document`, resolving its targets with `catalog`.
    pub fn new(document: &Document, catalog: &TargetResolver<'_>) -> Result<Self, PlanError> {
        names::check(document)?;
        let drawn = read::read(document, catalog)?;
        let order = order::order(&drawn)?;
        let typed = types::check(document, &drawn, &order)?;
        let mut plan = Self::assemble(drawn, &order, typed);
        names::check_use(&plan)?;
        let cases::CaseAnalysis { sure, together } = cases::check(&plan)?;
        plan.sure = sure;
        plan.together = together;
        Ok(plan)
    }

    fn assemble(drawn: read::Drawn, order: &[usize], typed: types::Typed) -> Self {
        let read::Drawn { mut values, inputs, steps, conditions, outputs, depth, runs } = drawn;
        let types::Typed { types, sizes } = typed;
        for (value, is) in values.iter_mut().zip(types) {
            value.is = is;
        }
        let mut steps: Vec<_> = steps.into_iter().map(Some).collect();
        let steps: Vec<_> = order.iter().filter_map(|place| steps.get_mut(*place)?.take()).collect();
        let port = |name: &str, value: ValueIndex| {
            let is = values.get(value).and_then(|value| value.is.as_ref());
            is.map(|is| Port { name: name.to_owned(), datatype: is.datatype, shape: is.shape() })
        };
        let signature = Signature {
            inputs: (0..inputs).filter_map(|value| port(&values.get(value)?.name, value)).collect(),
            outputs: outputs.iter().filter_map(|(name, value)| port(name, *value)).collect(),
        };
        let mut plan = Self {
            values,
            inputs,
            steps,
            conditions,
            outputs,
            sizes,
            sure: Vec::new(),
            together: Vec::new(),
            signature,
            depth,
            runs,
        };
        plan.count_readers();
        plan
    }

    fn count_readers(&mut self) {
        let of_steps = self.steps.iter().flat_map(|step| step.inputs.iter().map(|(_, value)| *value));
        let of_conditions = self.conditions.iter().filter_map(|condition| condition.test.value());
        let of_outputs = self.outputs.iter().map(|(_, value)| *value);
        for value in of_steps.chain(of_conditions).chain(of_outputs).collect::<Vec<_>>() {
            if let Some(value) = self.values.get_mut(value) {
                value.readers += 1;
            }
        }
    }

    /// The workflow's inputs and outputs. Ports with unknown types, for example without a node, are
    /// left out.
    #[must_use]
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The steps, each after the steps that it reads from.
    #[must_use]
    pub fn steps(&self) -> &[PlannedStep] {
        &self.steps
    }

    /// The nesting depth of workflows, this one included.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// The number of steps, including those of nested workflows.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// The resolved targets, by the names of their steps.
    pub fn pinned(&self) -> impl Iterator<Item = (&str, &Pinned)> {
        self.steps.iter().filter_map(|step| match &step.action {
            StepAction::Run(Some(pinned)) => Some((step.name.as_str(), pinned)),
            _ => None,
        })
    }

    /// The condition of a step, as written.
    #[must_use]
    pub fn condition_of(&self, step: &PlannedStep) -> Option<String> {
        let Guard { condition, holds } = step.guard?;
        let text = &self.conditions.get(condition)?.text;
        Some(if holds { text.clone() } else { format!("not {text}") })
    }

    /// The steps and inputs that a step reads from, each once.
    #[must_use]
    pub fn reads(&self, step: &PlannedStep) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for value in self.awaited(step) {
            let name = match self.giver(value) {
                Some(giver) => self.steps.get(giver).map(|step| step.name.as_str()),
                None => self.values.get(value).map(|value| value.name.as_str()),
            };
            names.extend(name.filter(|name| !names.contains(name)));
        }
        names
    }

    /// The values that a step waits for: its inputs, and the value that its condition tests.
    fn awaited<'a>(&'a self, step: &'a PlannedStep) -> impl Iterator<Item = ValueIndex> + 'a {
        let of_guard = step.guard.and_then(|guard| self.conditions.get(guard.condition)?.test.value());
        step.inputs.iter().map(|(_, value)| *value).chain(of_guard)
    }

    /// The step that computes a value; `None` for an input of the workflow.
    fn giver(&self, value: ValueIndex) -> Option<usize> {
        if value < self.inputs {
            return None;
        }
        self.steps.iter().position(|step| step.outputs.contains(&value))
    }
}

impl PlannedStep {
    /// The outputs with readers, for a step of `plan`.
    pub fn outputs_read<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = &'a str> {
        let values = self.outputs.iter().filter_map(|value| plan.values.get(*value));
        values.filter(|value| value.readers > 0).map(|value| value.name.as_str())
    }
}

impl Test {
    /// The value that the test reads.
    pub(crate) fn value(&self) -> Option<ValueIndex> {
        match self {
            Self::Compare { value, .. } => Some(*value),
            Self::Chance(_) => None,
        }
    }
}
