//! A document that makes sense: everything it names is there, every tensor fits where it is read, and every output will be there.

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

/// How many workflows go into each other.
pub const DEPTH_MAX: u32 = 4;
/// The most steps of a workflow and of those within it, all together.
pub const RUNS_MAX: u64 = 256;
/// The most combinations of conditions, and of how many parts a split gives, that are looked at.
pub const CASES_MAX: u64 = 1_024;

/// What a step runs, as it was found: one version, which never changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pinned {
    /// What it is.
    pub kind: TargetKind,
    /// Its name.
    pub name: Name,
    /// Its version.
    pub version: Version,
    /// What its version was made of, to tell it from what may come in its place.
    pub digest: ContentHash,
    /// What it takes and gives; of a tensor function that is not known.
    pub signature: Option<Signature>,
    /// Of a workflow: how deep workflows go into each other, itself included.
    #[serde(default)]
    pub depth: u32,
    /// Of a workflow: its steps and those of workflows within it.
    #[serde(default)]
    pub runs: u64,
}

/// What can be run.
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

/// Finds what the step of a name runs, or says why it cannot; none where nobody knows, as without a node: then nothing that depends on it
/// is checked.
pub type Catalog<'a> = dyn Fn(&str, &ModelRef) -> Result<Option<Pinned>, String> + 'a;

/// A workflow that can be run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What is read and given: the workflow's inputs, then what the steps give.
    pub(crate) values: Vec<PlannedValue>,
    pub(crate) inputs: usize,
    /// Each after those it reads from.
    pub(crate) steps: Vec<PlannedStep>,
    pub(crate) conditions: Vec<PlannedCondition>,
    pub(crate) outputs: Vec<(String, ValueId)>,
    pub(crate) sizes: usize,
    /// Which steps run in every case.
    pub(crate) sure: Vec<bool>,
    /// The steps that run together in some case.
    together: Vec<path::StepSet>,
    signature: Signature,
    depth: u32,
    runs: u64,
}

/// The place of a value among all.
pub(crate) type ValueId = usize;

/// Something that is read.
#[derive(Debug, Clone)]
pub(crate) struct PlannedValue {
    /// What it is called by its step, or by the workflow.
    pub(crate) name: String,
    /// Its type; none where nobody knows.
    pub(crate) is: Option<Type>,
    /// The steps and outputs that read it, with how often they do.
    pub(crate) readers: usize,
}

/// One step.
#[derive(Debug, Clone)]
pub struct PlannedStep {
    /// What it is called.
    pub name: String,
    /// What it does.
    pub action: Action,
    /// Whether a second copy is started where it takes unusually long.
    pub is_hedged: bool,
    pub(crate) inputs: Vec<(String, ValueId)>,
    pub(crate) guard: Option<Guard>,
    pub(crate) outputs: Vec<ValueId>,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Run something; none where it is not known what, as without a node.
    Run(Option<Pinned>),
    /// Make one tensor of several.
    Combine(Combiner),
    /// Take a tensor apart.
    Split {
        /// Into how many parts.
        parts: u32,
    },
}

/// What lets a step run: a condition that holds, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Guard {
    pub(crate) condition: usize,
    pub(crate) holds: bool,
}

/// Something that is true or not in one run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PlannedCondition {
    /// As it was written first.
    pub(crate) text: String,
    /// The first step that waits for it.
    pub(crate) step: String,
    pub(crate) test: Test,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Test {
    Compare { measure: Measure, value: ValueId, comparison: Comparison, number: f64 },
    Chance(f64),
}

impl Plan {
    /// Check `document`, with what `catalog` finds.
    pub fn new(document: &Document, catalog: &Catalog<'_>) -> Result<Self, PlanError> {
        names::check(document)?;
        let drawn = read::read(document, catalog)?;
        let order = order::order(&drawn)?;
        let typed = types::check(document, &drawn, &order)?;
        let mut plan = Self::assemble(drawn, &order, typed);
        names::check_use(&plan)?;
        let cases::Found { sure, together } = cases::check(&plan)?;
        (plan.sure, plan.together) = (sure, together);
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
        let port = |name: &str, value: ValueId| {
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

    /// What it takes and gives. What is not known, as without a node, is left out.
    #[must_use]
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The steps, each after those it reads from.
    #[must_use]
    pub fn steps(&self) -> &[PlannedStep] {
        &self.steps
    }

    /// How deep workflows go into each other, this one included.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Its steps and those of workflows within it.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// What its steps run, by the names of the steps.
    pub fn pinned(&self) -> impl Iterator<Item = (&str, &Pinned)> {
        self.steps.iter().filter_map(|step| match &step.action {
            Action::Run(Some(pinned)) => Some((step.name.as_str(), pinned)),
            _ => None,
        })
    }

    /// The condition of a step, as it is written.
    #[must_use]
    pub fn condition_of(&self, step: &PlannedStep) -> Option<String> {
        let Guard { condition, holds } = step.guard?;
        let text = &self.conditions.get(condition)?.text;
        Some(if holds { text.clone() } else { format!("not {text}") })
    }

    /// The steps and inputs that a step reads from, each once.
    #[must_use]
    pub fn reads(&self, step: &PlannedStep) -> Vec<&str> {
        let of_guard = step.guard.and_then(|guard| self.conditions.get(guard.condition)?.test.value());
        let values = step.inputs.iter().map(|(_, value)| *value).chain(of_guard);
        let mut names: Vec<&str> = Vec::new();
        for value in values {
            let name = match self.giver(value) {
                Some(giver) => self.steps.get(giver).map(|step| step.name.as_str()),
                None => self.values.get(value).map(|value| value.name.as_str()),
            };
            names.extend(name.filter(|name| !names.contains(name)));
        }
        names
    }

    /// The step that gives a value; none for inputs of the workflow.
    fn giver(&self, value: ValueId) -> Option<usize> {
        if value < self.inputs {
            return None;
        }
        self.steps.iter().position(|step| step.outputs.contains(&value))
    }
}

impl PlannedStep {
    /// The outputs that somebody reads, of `plan` that it is a step of.
    pub fn outputs_read<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = &'a str> {
        let values = self.outputs.iter().filter_map(|value| plan.values.get(*value));
        values.filter(|value| value.readers > 0).map(|value| value.name.as_str())
    }
}

impl Test {
    /// The value that it looks at.
    pub(crate) fn value(&self) -> Option<ValueId> {
        match self {
            Self::Compare { value, .. } => Some(*value),
            Self::Chance(_) => None,
        }
    }
}
