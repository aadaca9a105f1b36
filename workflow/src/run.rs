//! One run of a plan: which steps to start, and how long to hold their outputs.
//!
//! A value is held from its computation until its last reader has it. A value is absent if the step
//! that computes it does not run; then the steps that need the value do not run either, and their
//! outputs are absent, too. A step does not start if no remaining step reads its outputs.

use crate::error::RunError;
use crate::plan::{Guard, Plan, PlannedStep, Sizes, StepAction, TargetKind, Test};
use crate::tensor_type::TensorSpec;
use crate::value::{TensorHandle, TensorView};
use std::collections::VecDeque;
use std::sync::Arc;
use weir_types::Port;

/// A run in progress.
#[derive(Debug)]
pub struct Run<V> {
    plan: Arc<Plan>,
    values: Vec<StepOutput<V>>,
    /// Number of remaining readers of each value.
    readers: Vec<usize>,
    /// Whether each value is read only by steps that run a target.
    is_handed_on: Vec<bool>,
    /// Whether each value is read only by models.
    is_for_models: Vec<bool>,
    steps: Vec<StepState>,
    /// Results of the conditions evaluated so far.
    told: Vec<Option<bool>>,
    sizes: Sizes,
    ready: VecDeque<usize>,
    /// The requested outputs of the workflow, by index in the plan.
    wanted: Vec<usize>,
}

/// A step to start.
#[derive(Debug, Clone)]
pub struct ReadyStep<V> {
    /// The step's index in [`Plan::steps`].
    pub step: usize,
    /// The step's inputs. A combiner gets only the tensors that are present.
    pub inputs: Vec<(String, V)>,
    /// The outputs that are read, which the step has to return.
    pub outputs: Vec<String>,
    /// The outputs that only steps with a target read. A step may return these outputs [without
    /// their data](TensorHandle::view) if their readers find the data elsewhere.
    pub handed_on: Vec<String>,
    /// The handed-on outputs that only models read.
    pub for_models: Vec<String>,
}

#[derive(Debug)]
enum StepOutput<V> {
    /// Not computed yet.
    Awaited,
    There(V),
    /// Will not be computed.
    Absent,
    /// Was present, and is released.
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepState {
    /// No requested output depends on the step.
    NotNeeded,
    Waiting {
        /// Whether its condition holds.
        is_let: bool,
    },
    Ready,
    Begun,
    Done,
    Skipped,
}

enum Decision {
    Wait,
    Skip,
    Begin,
}

impl<V: TensorHandle> Run<V> {
    /// Starts a run with `inputs`, for the outputs `wanted`, or all of them. `draw` returns random
    /// numbers from 0 to 1, which decide the chance conditions.
    pub fn new(
        plan: Arc<Plan>,
        inputs: Vec<(String, V)>,
        wanted: Option<&[String]>,
        mut draw: impl FnMut() -> f64,
    ) -> Result<Self, RunError> {
        let wanted = wanted_outputs(&plan, wanted)?;
        let (needed, readers) = needs(&plan, &wanted);
        let (is_handed_on, is_for_models) = handed_on(&plan, &wanted, &needed);
        let told = plan.conditions.iter().map(|condition| match condition.test {
            Test::Chance(share) => Some(draw() < share),
            Test::Compare { .. } => None,
        });
        let steps = needed.iter().zip(&plan.steps).map(|(is_needed, step)| match is_needed {
            true => StepState::Waiting { is_let: step.guard.is_none() },
            false => StepState::NotNeeded,
        });
        let mut run = Self {
            values: plan.values.iter().map(|_| StepOutput::Awaited).collect(),
            readers,
            is_handed_on,
            is_for_models,
            steps: steps.collect(),
            told: told.collect(),
            sizes: Sizes::new(plan.sizes),
            ready: VecDeque::new(),
            wanted,
            plan,
        };
        run.take_inputs(inputs)?;
        run.decide_all()?;
        Ok(run)
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The next step that can start, with handles to its inputs; `None` until another step
    /// finishes. Inputs without further readers are released.
    pub fn next_step(&mut self) -> Option<ReadyStep<V>> {
        let step = loop {
            let step = self.ready.pop_front()?;
            if self.steps[step] == StepState::Ready {
                break step;
            }
        };
        let plan = self.plan.clone();
        let planned = plan.steps.get(step)?;
        self.steps[step] = StepState::Begun;
        let mut inputs = Vec::with_capacity(planned.inputs.len());
        for (name, value) in &planned.inputs {
            if let StepOutput::There(there) = &self.values[*value] {
                inputs.push((name.clone(), there.clone()));
            }
        }
        planned.inputs.iter().for_each(|(_, value)| self.release(*value));
        let needed = || planned.outputs.iter().filter(|value| self.readers[**value] > 0);
        let name = |value: &usize| plan.values[*value].name.clone();
        let outputs = needed().map(name).collect();
        let handed_on = needed().filter(|value| self.is_handed_on[**value]).map(name).collect();
        let for_models = needed().filter(|value| self.is_for_models[**value]).map(name).collect();
        Some(ReadyStep { step, inputs, outputs, handed_on, for_models })
    }

    /// Takes the outputs of a finished step. Outputs without readers are dropped.
    pub fn finished(&mut self, step: usize, outputs: Vec<(String, V)>) -> Result<(), RunError> {
        let plan = self.plan.clone();
        let Some(planned) = plan.steps.get(step) else { return Ok(()) };
        self.steps[step] = StepState::Done;
        let mut outputs: Vec<_> = outputs.into_iter().map(Some).collect();
        for value in &planned.outputs {
            let is_it = |given: &Option<(String, V)>| {
                given.as_ref().is_some_and(|(name, _)| *name == plan.values[*value].name)
            };
            let given = outputs.iter_mut().find(|given| is_it(given)).and_then(Option::take);
            let given = given.map(|(_, given)| given);
            self.values[*value] = self.hold(planned, *value, given)?;
        }
        self.decide_all()
    }

    /// Whether a step is certain to run: a requested output needs it, and neither a condition nor a
    /// split with few rows can prevent it from running.
    #[must_use]
    pub fn is_sure(&self, step: usize) -> bool {
        self.plan.sure.get(step) == Some(&true) && self.steps.get(step) != Some(&StepState::NotNeeded)
    }

    /// Whether a step will not run: no requested output needs it, or a condition has excluded it.
    #[must_use]
    pub fn is_excluded(&self, step: usize) -> bool {
        matches!(self.steps.get(step), Some(StepState::NotNeeded | StepState::Skipped))
    }

    /// Whether all steps that will run have finished.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.steps
            .iter()
            .all(|state| matches!(state, StepState::NotNeeded | StepState::Done | StepState::Skipped))
    }

    /// The requested outputs, in the order requested. All of them are present once the run is over.
    #[must_use]
    pub fn into_outputs(self) -> Vec<(String, V)> {
        let Self { plan, values, wanted, .. } = self;
        let outputs = wanted.into_iter().filter_map(|output| plan.outputs.get(output));
        outputs
            .filter_map(|(name, value)| match values.get(*value) {
                Some(StepOutput::There(there)) => Some((name.clone(), there.clone())),
                _ => None,
            })
            .collect()
    }

    fn take_inputs(&mut self, inputs: Vec<(String, V)>) -> Result<(), RunError> {
        let plan = self.plan.clone();
        let names = &plan.values[..plan.inputs];
        for (name, given) in inputs {
            let Some(value) = names.iter().position(|known| known.name == name) else {
                return Err(RunError::UnknownInput { name, have: list(&plan.signature().inputs) });
            };
            if !matches!(self.values[value], StepOutput::Awaited) {
                return Err(RunError::DuplicateInput(name));
            }
            if let Some(is) = &names[value].is
                && !self.sizes.admit(is, given.view())
            {
                let takes = self.sizes.show(is);
                let given = show(given.view());
                return Err(RunError::WrongInput { name, takes, given });
            }
            self.values[value] =
                if self.readers[value] > 0 { StepOutput::There(given) } else { StepOutput::Gone };
        }
        match (0..plan.inputs).find(|value| matches!(self.values[*value], StepOutput::Awaited)) {
            Some(value) => {
                let missing = &names[value];
                let is = missing.is.as_ref().map(|is| format!(": {}", self.sizes.show(is)));
                Err(RunError::MissingInput(format!("{}{}", missing.name, is.unwrap_or_default())))
            }
            None => Ok(()),
        }
    }

    /// The state of an output of `step`.
    fn hold(
        &mut self,
        step: &PlannedStep,
        value: usize,
        given: Option<V>,
    ) -> Result<StepOutput<V>, RunError> {
        let planned = &self.plan.values[value];
        let Some(given) = given else {
            // A tensor with few rows has fewer parts.
            if self.readers[value] == 0 || matches!(step.action, StepAction::Split { .. }) {
                return Ok(StepOutput::Absent);
            }
            return Err(RunError::NotGiven { step: step.name.clone(), output: planned.name.clone() });
        };
        if self.readers[value] == 0 {
            return Ok(StepOutput::Gone);
        }
        if let Some(is) = &planned.is
            && !self.sizes.admit(is, given.view())
        {
            return Err(RunError::WrongOutput {
                step: step.name.clone(),
                output: planned.name.clone(),
                takes: self.sizes.show(is),
                given: show(given.view()),
            });
        }
        Ok(StepOutput::There(given))
    }

    /// Decides about all waiting steps. In topological order, one pass is enough.
    fn decide_all(&mut self) -> Result<(), RunError> {
        let plan = self.plan.clone();
        for (place, step) in plan.steps.iter().enumerate() {
            if !matches!(self.steps[place], StepState::Waiting { .. }) {
                continue;
            }
            match self.decide(place, step)? {
                Decision::Wait => {}
                Decision::Begin => {
                    self.steps[place] = StepState::Ready;
                    self.ready.push_back(place);
                }
                Decision::Skip => self.skip(place, step),
            }
        }
        // In reverse topological order, one pass is enough here, too.
        for (place, step) in plan.steps.iter().enumerate().rev() {
            let is_read = step.outputs.iter().any(|value| self.readers[*value] > 0);
            if !is_read && matches!(self.steps[place], StepState::Waiting { .. } | StepState::Ready) {
                self.skip(place, step);
            }
        }
        Ok(())
    }

    fn decide(&mut self, place: usize, step: &PlannedStep) -> Result<Decision, RunError> {
        let is_let = match (self.steps[place], step.guard) {
            (StepState::Waiting { is_let: true }, _) | (_, None) => true,
            (_, Some(guard)) => match self.tell(guard)? {
                Some(true) => {
                    self.steps[place] = StepState::Waiting { is_let: true };
                    self.release_guard(step);
                    true
                }
                Some(false) => return Ok(Decision::Skip),
                None => false,
            },
        };
        let is_absent = |(_, value): &(String, usize)| matches!(self.values[*value], StepOutput::Absent);
        let is_lost = match step.action {
            StepAction::Combine(_) => step.inputs.iter().all(is_absent),
            StepAction::Run(_) | StepAction::Split { .. } => step.inputs.iter().any(is_absent),
        };
        if is_lost {
            return Ok(Decision::Skip);
        }
        let is_awaited =
            step.inputs.iter().any(|(_, value)| matches!(self.values[*value], StepOutput::Awaited));
        Ok(if is_let && !is_awaited { Decision::Begin } else { Decision::Wait })
    }

    /// Whether a guard lets its step run; `None` while its value is not computed.
    fn tell(&mut self, guard: Guard) -> Result<Option<bool>, RunError> {
        if let Some(holds) = self.told[guard.condition] {
            return Ok(Some(holds == guard.holds));
        }
        let condition = &self.plan.conditions[guard.condition];
        let Test::Compare { measure, value, comparison, number } = condition.test else { return Ok(None) };
        let there = match &self.values[value] {
            StepOutput::There(there) => there,
            // Without its value, neither the condition nor its negation holds.
            StepOutput::Absent | StepOutput::Gone => return Ok(Some(false)),
            StepOutput::Awaited => return Ok(None),
        };
        let measured = measure.evaluate(there.view()).map_err(|why| RunError::BadCondition {
            step: condition.step.clone(),
            condition: condition.text.clone(),
            why,
        })?;
        let holds = comparison.holds(measured, number);
        self.told[guard.condition] = Some(holds);
        Ok(Some(holds == guard.holds))
    }

    fn skip(&mut self, place: usize, step: &PlannedStep) {
        if self.steps[place] == (StepState::Waiting { is_let: false }) {
            self.release_guard(step);
        }
        self.steps[place] = StepState::Skipped;
        step.inputs.iter().for_each(|(_, value)| self.release(*value));
        step.outputs.iter().for_each(|value| self.values[*value] = StepOutput::Absent);
    }

    fn release_guard(&mut self, step: &PlannedStep) {
        if let Some(value) = guard_value(&self.plan.clone(), step) {
            self.release(value);
        }
    }

    /// Removes a reader. After the last reader, the value is released.
    fn release(&mut self, value: usize) {
        self.readers[value] = self.readers[value].saturating_sub(1);
        if self.readers[value] == 0 && matches!(self.values[value], StepOutput::There(_)) {
            self.values[value] = StepOutput::Gone;
        }
    }
}

/// Which steps the requested outputs depend on, and the resulting number of readers of each value.
fn needs(plan: &Plan, wanted: &[usize]) -> (Vec<bool>, Vec<usize>) {
    let mut readers = vec![0; plan.values.len()];
    for (_, value) in wanted.iter().filter_map(|output| plan.outputs.get(*output)) {
        readers[*value] += 1;
    }
    let mut needed = vec![false; plan.steps.len()];
    for (place, step) in plan.steps.iter().enumerate().rev() {
        needed[place] = step.outputs.iter().any(|value| readers[*value] > 0);
        if needed[place] {
            let values = step.inputs.iter().map(|(_, value)| *value).chain(guard_value(plan, step));
            values.for_each(|value| readers[value] += 1);
        }
    }
    (needed, readers)
}

/// Which values are read only by steps that run a target, that is, by no condition, no other kind
/// of step, and no output of the workflow; and which of these values only models read.
fn handed_on(plan: &Plan, wanted: &[usize], needed: &[bool]) -> (Vec<bool>, Vec<bool>) {
    let mut handed_on = vec![true; plan.values.len()];
    let given = wanted.iter().filter_map(|output| Some(plan.outputs.get(*output)?.1));
    let steps = || plan.steps.iter().zip(needed).filter(|(_, is_needed)| **is_needed).map(|(step, _)| step);
    let looked_at = steps().flat_map(|step| {
        let is_run = matches!(step.action, StepAction::Run(_));
        let inputs = step.inputs.iter().map(|(_, value)| *value).filter(move |_| !is_run);
        inputs.chain(guard_value(plan, step))
    });
    given.chain(looked_at).for_each(|value| handed_on[value] = false);
    let is_model = |step: &&PlannedStep| matches!(&step.action, StepAction::Run(Some(ran)) if ran.kind == TargetKind::Model);
    let mut for_models = handed_on.clone();
    let others = steps().filter(|step| !is_model(step)).flat_map(|step| &step.inputs);
    others.for_each(|(_, value)| for_models[*value] = false);
    (handed_on, for_models)
}

/// The value that the guard of a step reads.
fn guard_value(plan: &Plan, step: &PlannedStep) -> Option<usize> {
    step.guard.and_then(|guard| plan.conditions.get(guard.condition)?.test.value())
}

fn wanted_outputs(plan: &Plan, wanted: Option<&[String]>) -> Result<Vec<usize>, RunError> {
    let Some(wanted) = wanted else { return Ok((0..plan.outputs.len()).collect()) };
    if wanted.is_empty() {
        return Err(RunError::NoOutputs);
    }
    let mut places = Vec::with_capacity(wanted.len().min(plan.outputs.len()));
    for name in wanted {
        let Some(place) = plan.outputs.iter().position(|(known, _)| known == name) else {
            return Err(RunError::UnknownOutput {
                name: name.clone(),
                have: list(&plan.signature().outputs),
            });
        };
        if places.contains(&place) {
            return Err(RunError::DuplicateOutput(name.clone()));
        }
        places.push(place);
    }
    Ok(places)
}

fn show(tensor: TensorView<'_>) -> String {
    let shape = tensor.shape.dimensions().iter().map(|size| Some(*size)).collect();
    let port = Port { name: String::new(), datatype: tensor.datatype, shape };
    TensorSpec::from_port(&port).to_string()
}

fn list(ports: &[Port]) -> String {
    ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
