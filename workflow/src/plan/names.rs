//! Checks of names and counts: those that need only the document, and those that need the resolved
//! plan.

use super::Plan;
use crate::document::{Document, NAME_LEN_MAX, PORTS_MAX, STEPS_MAX, Step};
use crate::error::{PlanError, too_long};

/// Checks the document alone.
pub(super) fn check(document: &Document) -> Result<(), PlanError> {
    let Document { inputs, steps, outputs, .. } = document;
    if steps.is_empty() {
        return Err(PlanError::NoSteps);
    }
    if steps.len() > STEPS_MAX {
        return Err(PlanError::TooManySteps(steps.len()));
    }
    for (what, len) in [("inputs", inputs.len()), ("outputs", outputs.len())] {
        if len == 0 {
            return Err(PlanError::NoPorts(what));
        }
        count(&format!("{what} of a workflow"), len)?;
    }
    for (name, _) in inputs.iter() {
        check_name(name, "an input")?;
    }
    for (name, _) in outputs.iter() {
        check_length(name, "an output")?;
    }
    for (name, step) in steps.iter() {
        check_name(name, "a step")?;
        if inputs.get(name).is_some() {
            return Err(PlanError::NameTaken(name.to_owned()));
        }
        check_step(name, step)?;
    }
    Ok(())
}

fn check_step(name: &str, step: &Step) -> Result<(), PlanError> {
    let Step { run, inputs, outputs, combine, of, split, parts, when, unless, hedge } = step;
    if usize::from(run.is_some()) + usize::from(combine.is_some()) + usize::from(split.is_some()) != 1 {
        return Err(PlanError::NotOneThing(name.to_owned()));
    }
    for (key, is_there, goes_with, has_that) in [
        ("inputs", !inputs.is_empty(), "run", run.is_some()),
        ("outputs", !outputs.is_empty(), "run", run.is_some()),
        ("of", !of.is_empty(), "combine", combine.is_some()),
        ("parts", parts.is_some(), "split", split.is_some()),
        ("hedge", *hedge, "run", run.is_some()),
    ] {
        if is_there && !has_that {
            return Err(PlanError::StrayKey { step: name.to_owned(), key, of: goes_with });
        }
    }
    if when.is_some() && unless.is_some() {
        return Err(PlanError::TwoConditions(name.to_owned()));
    }
    if split.is_none() && inputs.is_empty() && of.is_empty() {
        return Err(PlanError::ReadsNothing(name.to_owned()));
    }
    for (what, len) in [("inputs", inputs.len()), ("outputs", outputs.len()), ("tensors", of.len())] {
        count(&format!("{what} of step {name}"), len)?;
    }
    for (port, _) in inputs.iter() {
        check_length(port, "an input")?;
    }
    outputs.iter().try_for_each(|(port, _)| check_length(port, "an output"))
}

/// Checks that every input and every step of the plan is used.
pub(super) fn check_use(plan: &Plan) -> Result<(), PlanError> {
    let unused = plan.values.iter().take(plan.inputs).find(|value| value.readers == 0);
    if let Some(input) = unused {
        return Err(PlanError::UnusedInput(input.name.clone()));
    }
    match plan.steps.iter().find(|step| step.outputs_read(plan).next().is_none()) {
        Some(step) => Err(PlanError::UnusedStep(step.name.clone())),
        None => Ok(()),
    }
}

fn count(what: &str, len: usize) -> Result<(), PlanError> {
    if len <= PORTS_MAX {
        return Ok(());
    }
    Err(PlanError::TooManyPorts { what: what.to_owned(), len })
}

/// Names of inputs and steps occur in sources and conditions.
fn check_name(name: &str, what: &'static str) -> Result<(), PlanError> {
    check_length(name, what)?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    match name.chars().find(|c| !is_plain(*c)) {
        None => Ok(()),
        Some(bad) => {
            let why = format!("it holds letters, digits, - and _, not {bad:?}");
            Err(PlanError::BadName { name: name.to_owned(), what, why })
        }
    }
}

fn check_length(name: &str, what: &'static str) -> Result<(), PlanError> {
    let bad = |name: &str, why: String| PlanError::BadName { name: name.to_owned(), what, why };
    match name.len() {
        0 => Err(bad(name, "it is empty".to_owned())),
        1..=NAME_LEN_MAX => Ok(()),
        _ => Err(bad(&name.chars().take(40).collect::<String>(), too_long())),
    }
}
