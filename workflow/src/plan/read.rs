//! Resolves the names in a document to indexes.

use super::{
    DEPTH_MAX, Guard, Pinned, PlannedCondition, PlannedStep, PlannedValue, RUNS_MAX, StepAction, TargetKind,
    TargetResolver, Test, ValueIndex,
};
use crate::condition::Condition;
use crate::document::{Document, Step, TensorSource};
use crate::error::{PlanError, TensorUse};
use crate::split::PARTS_MAX;
use std::collections::HashMap;
use weir_types::{ModelRef, Port};

/// The output name of a combiner.
const COMBINED: &str = "output";

/// A workflow with resolved sources, and steps in the order of their names.
pub(super) struct Drawn {
    pub(super) values: Vec<PlannedValue>,
    pub(super) inputs: usize,
    pub(super) steps: Vec<PlannedStep>,
    pub(super) conditions: Vec<PlannedCondition>,
    pub(super) outputs: Vec<(String, ValueIndex)>,
    pub(super) depth: u32,
    pub(super) runs: u64,
}

pub(super) fn read(document: &Document, catalog: &TargetResolver<'_>) -> Result<Drawn, PlanError> {
    let mut drawing =
        Drawing { document, values: Vec::new(), places: HashMap::new(), givers: HashMap::new() };
    for (name, _) in document.inputs.iter() {
        drawing.add(name, None, name);
    }
    let inputs = drawing.values.len();
    let mut steps = Vec::with_capacity(document.steps.len());
    for (name, step) in document.steps.iter() {
        let action = action(name, step, catalog)?;
        let outputs = given(name, step, &action)?;
        let outputs = outputs.iter().map(|output| drawing.add(name, Some(output), output)).collect();
        steps.push(PlannedStep {
            name: name.to_owned(),
            action,
            is_hedged: step.hedge,
            inputs: Vec::new(),
            guard: None,
            outputs,
        });
    }
    for step in &steps {
        if matches!(step.action, StepAction::Run(None)) {
            drawing.givers.insert(step.name.clone(), None);
        } else {
            drawing.givers.insert(step.name.clone(), Some(step.outputs.clone()));
        }
    }
    let mut conditions = Vec::new();
    for (planned, (name, step)) in steps.iter_mut().zip(document.steps.iter()) {
        planned.inputs = drawing.inputs(name, step)?;
        check_ports(name, step, &planned.action)?;
        planned.guard = drawing.guard(name, step, &mut conditions)?;
    }
    let mut outputs = Vec::with_capacity(document.outputs.len());
    for (name, source) in document.outputs.iter() {
        outputs.push((name.to_owned(), drawing.find(source, || TensorUse::Output(name.to_owned()))?));
    }
    // A step with an unknown target has every output that is read from it.
    for step in steps.iter_mut().filter(|step| matches!(step.action, StepAction::Run(None))) {
        let own = drawing.places.iter().filter(|((of, output), _)| *of == step.name && output.is_some());
        let own = own.map(|(_, value)| *value).chain(drawing.places.get(&(step.name.clone(), None)).copied());
        step.outputs = own.collect();
        step.outputs.sort_unstable();
        step.outputs.dedup();
    }
    let (depth, runs) = size(&steps)?;
    Ok(Drawn { values: drawing.values, inputs, steps, conditions, outputs, depth, runs })
}

/// The action of a step.
fn action(name: &str, step: &Step, catalog: &TargetResolver<'_>) -> Result<StepAction, PlanError> {
    if let Some(reference) = &step.run {
        let pinned = catalog(name, reference);
        let not_found = |why| PlanError::NotFound { step: name.to_owned(), why };
        return Ok(StepAction::Run(pinned.map_err(not_found)?));
    }
    if let Some(combiner) = step.combine {
        return Ok(StepAction::Combine(combiner));
    }
    let parts = step.parts.filter(|parts| (2..=PARTS_MAX).contains(parts));
    Ok(StepAction::Split { parts: parts.ok_or_else(|| PlanError::BadParts(name.to_owned()))? })
}

/// The output names of a step.
fn given(name: &str, step: &Step, action: &StepAction) -> Result<Vec<String>, PlanError> {
    let declared = || step.outputs.iter().map(|(output, _)| output.to_owned()).collect::<Vec<_>>();
    match action {
        StepAction::Combine(_) => Ok(vec![COMBINED.to_owned()]),
        StepAction::Split { parts } => Ok((0..*parts).map(|part| part.to_string()).collect()),
        StepAction::Run(None) => Ok(declared()),
        StepAction::Run(Some(pinned)) => match &pinned.signature {
            None if step.outputs.is_empty() => Err(PlanError::UndeclaredOutputs(name.to_owned())),
            None => Ok(declared()),
            Some(signature) => {
                let ports = &signature.outputs;
                let is_unknown = |output: &String| !ports.iter().any(|port| port.name == *output);
                if let Some(output) = declared().into_iter().find(is_unknown) {
                    let what = what(&step.run);
                    let step = name.to_owned();
                    let have = list(ports);
                    return Err(PlanError::NoOutput { step, what, output, have });
                }
                Ok(ports.iter().map(|port| port.name.clone()).collect())
            }
        },
    }
}

/// Checks that every input of the target has a source, and that no other input has one.
fn check_ports(name: &str, step: &Step, action: &StepAction) -> Result<(), PlanError> {
    let StepAction::Run(Some(Pinned { signature: Some(signature), .. })) = action else { return Ok(()) };
    let ports = &signature.inputs;
    let step_name = name.to_owned();
    let what = what(&step.run);
    let is_unknown = |input: &str| !ports.iter().any(|port| port.name == input);
    if let Some((input, _)) = step.inputs.iter().find(|(input, _)| is_unknown(input)) {
        let input = input.to_owned();
        let have = list(ports);
        return Err(PlanError::NoInput { step: step_name, what, input, have });
    }
    match ports.iter().find(|port| step.inputs.get(&port.name).is_none()) {
        Some(port) => Err(PlanError::UnfedInput { step: step_name, input: port.to_string(), what }),
        None => Ok(()),
    }
}

/// The nesting depth of workflows, and the total number of steps.
fn size(steps: &[PlannedStep]) -> Result<(u32, u64), PlanError> {
    let mut depth = 1;
    let mut runs = steps.len() as u64;
    for step in steps {
        if let StepAction::Run(Some(pinned)) = &step.action
            && pinned.kind == TargetKind::Workflow
        {
            if pinned.depth >= DEPTH_MAX {
                return Err(PlanError::TooDeep(step.name.clone()));
            }
            depth = depth.max(pinned.depth + 1);
            runs = runs.saturating_add(pinned.runs);
        }
    }
    if runs > RUNS_MAX { Err(PlanError::TooManyRuns(runs)) } else { Ok((depth, runs)) }
}

struct Drawing<'a> {
    document: &'a Document,
    values: Vec<PlannedValue>,
    /// Values by input, or by step and output. A step with unknown outputs may also have a value
    /// without an output name.
    places: HashMap<(String, Option<String>), ValueIndex>,
    /// The outputs of each step; `None` if unknown.
    givers: HashMap<String, Option<Vec<ValueIndex>>>,
}

impl Drawing<'_> {
    fn add(&mut self, of: &str, output: Option<&str>, name: &str) -> ValueIndex {
        let value = self.values.len();
        self.values.push(PlannedValue { name: name.to_owned(), is: None, readers: 0 });
        self.places.insert((of.to_owned(), output.map(str::to_owned)), value);
        value
    }

    fn find(
        &mut self,
        source: &TensorSource,
        place: impl Fn() -> TensorUse,
    ) -> Result<ValueIndex, PlanError> {
        if let Some(value) = self.places.get(&(source.of.clone(), source.output.clone())) {
            return Ok(*value);
        }
        match (self.givers.get(&source.of), &source.output) {
            (Some(None), output) => {
                let name = output.clone().unwrap_or_default();
                Ok(self.add(&source.of, source.output.as_deref(), &name))
            }
            (Some(Some(outputs)), None) => match outputs[..] {
                [only] => Ok(only),
                _ => {
                    let step = source.of.clone();
                    let have = self.outputs_of(&source.of);
                    Err(PlanError::SeveralOutputs { place: Box::new(place()), step, have })
                }
            },
            (known, _) => {
                let have = if known.is_some() { self.outputs_of(&source.of) } else { self.sources() };
                Err(PlanError::NoSource { place: Box::new(place()), source_text: source.clone(), have })
            }
        }
    }

    fn inputs(&mut self, name: &str, step: &Step) -> Result<Vec<(String, ValueIndex)>, PlanError> {
        let named = || name.to_owned();
        if let Some(source) = &step.split {
            return Ok(vec![(String::new(), self.find(source, || TensorUse::Split { step: named() })?)]);
        }
        let mut inputs: Vec<(String, ValueIndex)> = Vec::new();
        for (input, source) in step.inputs.iter() {
            let place = || TensorUse::Input { step: named(), input: input.to_owned() };
            inputs.push((input.to_owned(), self.find(source, place)?));
        }
        for (position, source) in step.of.iter().enumerate() {
            let place = || TensorUse::Of { step: named(), position };
            let value = self.find(source, place)?;
            if inputs.iter().any(|(_, before)| *before == value) {
                return Err(PlanError::ListedTwice { place: Box::new(place()), source_text: source.clone() });
            }
            inputs.push((position.to_string(), value));
        }
        Ok(inputs)
    }

    /// The guard of a step. Equal conditions share one entry.
    fn guard(
        &mut self,
        name: &str,
        step: &Step,
        conditions: &mut Vec<PlannedCondition>,
    ) -> Result<Option<Guard>, PlanError> {
        let (condition, holds) = match (&step.when, &step.unless) {
            (Some(condition), _) => (condition, true),
            (None, Some(condition)) => (condition, false),
            (None, None) => return Ok(None),
        };
        let test = match condition {
            Condition::Chance(share) => Test::Chance(*share),
            Condition::Compare { measure, source, comparison, number } => {
                let value = self.find(source, || TensorUse::Condition { step: name.to_owned() })?;
                Test::Compare { measure: *measure, value, comparison: *comparison, number: *number }
            }
        };
        let known = conditions.iter().position(|known| known.test == test);
        let place = known.unwrap_or_else(|| {
            conditions.push(PlannedCondition { text: condition.to_string(), step: name.to_owned(), test });
            conditions.len() - 1
        });
        Ok(Some(Guard { condition: place, holds }))
    }

    fn outputs_of(&self, step: &str) -> String {
        let outputs = self.givers.get(step).and_then(Option::as_ref).into_iter().flatten();
        let names = outputs
            .filter_map(|value| Some(TensorSource::new(step, &self.values.get(*value)?.name).to_string()));
        names.collect::<Vec<_>>().join(", ")
    }

    fn sources(&self) -> String {
        let names = self
            .document
            .inputs
            .iter()
            .map(|(name, _)| name)
            .chain(self.document.steps.iter().map(|(name, _)| name));
        names.collect::<Vec<_>>().join(", ")
    }
}

fn what(run: &Option<ModelRef>) -> String {
    run.as_ref().map(ToString::to_string).unwrap_or_default()
}

fn list(ports: &[Port]) -> String {
    ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
