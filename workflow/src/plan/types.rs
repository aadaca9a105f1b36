//! Type checking along every edge: each value must match the type required by its readers.

use super::read::Drawn;
use super::sizes::{Type, Unifier};
use super::{PlannedStep, StepAction, Test, ValueIndex};
use crate::combine::{Combiner, is_float};
use crate::condition::{CONDITION_ELEMENTS_MAX, Measure};
use crate::document::{Document, Step, TensorSource};
use crate::error::{PlanError, TensorUse, too_large};
use crate::tensor_type::TensorSpec;
use crate::value::is_number;

/// The type of every value, and the number of unknown sizes.
pub(super) struct Typed {
    pub(super) types: Vec<Option<Type>>,
    pub(super) sizes: usize,
}

pub(super) fn check(document: &Document, drawn: &Drawn, order: &[usize]) -> Result<Typed, PlanError> {
    let mut checker = Checker { unifier: Unifier::default(), types: vec![None; drawn.values.len()], drawn };
    for (value, (_, tensor_type)) in document.inputs.iter().enumerate() {
        checker.types[value] = Some(checker.unifier.instance(tensor_type));
    }
    for place in order {
        let planned = &drawn.steps[*place];
        if let Some(step) = document.steps.get(&planned.name) {
            checker.step(planned, step)?;
        }
    }
    for planned in &drawn.steps {
        checker.condition(planned)?;
    }
    let Checker { unifier, types, .. } = checker;
    let types = types.iter().map(|is| is.as_ref().map(|is| unifier.resolved(is))).collect();
    Ok(Typed { types, sizes: unifier.len() })
}

struct Checker<'a> {
    unifier: Unifier,
    types: Vec<Option<Type>>,
    drawn: &'a Drawn,
}

impl Checker<'_> {
    fn step(&mut self, planned: &PlannedStep, step: &Step) -> Result<(), PlanError> {
        match &planned.action {
            StepAction::Run(_) => self.run(planned, step),
            StepAction::Combine(combiner) => self.combine(planned, step, *combiner),
            StepAction::Split { .. } => self.split(planned, step),
        }
    }

    fn run(&mut self, planned: &PlannedStep, step: &Step) -> Result<(), PlanError> {
        let StepAction::Run(pinned) = &planned.action else { return Ok(()) };
        let signature = pinned.as_ref().and_then(|pinned| pinned.signature.as_ref());
        for port in signature.iter().flat_map(|signature| &signature.inputs) {
            let takes = self.unifier.instance(&TensorSpec::from_port(port));
            let Some((_, value)) = planned.inputs.iter().find(|(input, _)| *input == port.name) else {
                continue;
            };
            let Some(source) = step.inputs.get(&port.name) else { continue };
            self.feed(*value, &takes, source, || TensorUse::Input {
                step: planned.name.clone(),
                input: port.name.clone(),
            })?;
        }
        for value in &planned.outputs {
            let name = &self.drawn.values[*value].name;
            let port =
                signature.and_then(|signature| signature.outputs.iter().find(|port| port.name == *name));
            let given = port.map(|port| self.unifier.instance(&TensorSpec::from_port(port)));
            let declared = step.outputs.get(name).map(|declared| (declared, self.unifier.instance(declared)));
            self.types[*value] = match (given, declared) {
                (Some(given), Some((text, declared))) => {
                    if !self.unifier.unify(&given, &declared) {
                        return Err(PlanError::NotAsDeclared {
                            step: planned.name.clone(),
                            output: name.clone(),
                            declared: text.to_string(),
                            is: self.unifier.show(&given),
                        });
                    }
                    Some(given)
                }
                (given, declared) => given.or(declared.map(|(_, declared)| declared)),
            };
        }
        Ok(())
    }

    fn combine(&mut self, planned: &PlannedStep, step: &Step, combiner: Combiner) -> Result<(), PlanError> {
        let bad = |why: String| PlanError::BadStep { step: planned.name.clone(), why };
        // The first tensor with a known type. The others must match it.
        let mut first: Option<Type> = None;
        for (position, (_, value)) in planned.inputs.iter().enumerate() {
            let (Some(is), Some(source)) = (self.types[*value].clone(), step.of.get(position)) else {
                continue;
            };
            let Some(first) = &mut first else {
                if combiner.computes() && !is_float(is.datatype) {
                    return Err(bad(format!(
                        "{combiner} computes with FP32 and FP64, not with {}",
                        is.datatype
                    )));
                }
                if combiner.needs_dimension() && is.sizes.is_empty() {
                    return Err(bad(format!("{combiner} takes tensors with dimensions, not scalars")));
                }
                first = Some(is);
                continue;
            };
            let mut takes = first.clone();
            match combiner {
                Combiner::Concat => self.forget_rows(&mut takes),
                // The result is one of the tensors, so sizes that differ become unknown.
                Combiner::First => *first = self.unifier.either(first, &is),
                Combiner::Mean | Combiner::Vote | Combiner::Best => {}
            }
            let place = || TensorUse::Of { step: planned.name.clone(), position };
            match combiner {
                Combiner::First if self.unifier.could_be(&is, &takes) => {}
                _ => self.feed(*value, &takes, source, place)?,
            }
        }
        if let (Combiner::Concat, Some(is)) = (combiner, &mut first) {
            self.forget_rows(is);
        }
        if let Some(output) = planned.outputs.first() {
            self.types[*output] = first;
        }
        Ok(())
    }

    /// Makes the first dimension unconstrained.
    fn forget_rows(&mut self, is: &mut Type) {
        if let Some(rows) = is.sizes.first_mut() {
            *rows = self.unifier.fresh();
        }
    }

    fn split(&mut self, planned: &PlannedStep, step: &Step) -> Result<(), PlanError> {
        let whole = planned.inputs.first().and_then(|(_, value)| self.types[*value].clone());
        if let (Some(whole), Some(source)) = (&whole, &step.split)
            && whole.sizes.is_empty()
        {
            let why = format!("{source} is a scalar, which cannot be split");
            return Err(PlanError::BadStep { step: planned.name.clone(), why });
        }
        for part in &planned.outputs {
            let mut is = whole.clone();
            if let Some(is) = &mut is {
                self.forget_rows(is);
            }
            self.types[*part] = is;
        }
        Ok(())
    }

    fn condition(&mut self, planned: &PlannedStep) -> Result<(), PlanError> {
        let condition = planned.guard.and_then(|guard| self.drawn.conditions.get(guard.condition));
        let Some(condition) = condition else { return Ok(()) };
        let Test::Compare { measure, value, .. } = &condition.test else { return Ok(()) };
        let Some(is) = &self.types[*value] else { return Ok(()) };
        let is = self.unifier.resolved(is);
        let why = match is.len() {
            _ if !is_number(is.datatype) => format!("{} elements are no numbers", is.datatype),
            Some(len) if len > CONDITION_ELEMENTS_MAX => too_large(len),
            Some(len) if *measure == Measure::Element && len != 1 => {
                format!("it has {len} elements, of which max(), min() or confidence() makes one number")
            }
            _ => return Ok(()),
        };
        let step = planned.name.clone();
        let condition = condition.text.clone();
        Err(PlanError::BadCondition { step, condition, why })
    }

    /// Unifies the type of `value` with the type that its reader takes.
    fn feed(
        &mut self,
        value: ValueIndex,
        takes: &Type,
        source: &TensorSource,
        place: impl Fn() -> TensorUse,
    ) -> Result<(), PlanError> {
        let Some(is) = self.types[value].clone() else { return Ok(()) };
        let takes_text = self.unifier.show(takes);
        let is_text = self.unifier.show(&is);
        if self.unifier.unify(&is, takes) {
            return Ok(());
        }
        Err(PlanError::DoesNotFit {
            place: Box::new(place()),
            takes: takes_text,
            source_text: source.clone(),
            is: is_text,
        })
    }
}
