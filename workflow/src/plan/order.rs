//! Topological order of the steps.

use super::ValueIndex;
use super::read::Drawn;
use crate::error::PlanError;

/// The indexes of the steps in topological order; ties by name.
pub(super) fn order(drawn: &Drawn) -> Result<Vec<usize>, PlanError> {
    let reads: Vec<Vec<usize>> = (0..drawn.steps.len()).map(|step| reads_from(drawn, step)).collect();
    let mut states = vec![VisitState::New; drawn.steps.len()];
    let mut order = Vec::with_capacity(drawn.steps.len());
    for step in 0..drawn.steps.len() {
        visit(step, &reads, &mut states, &mut order, &mut Vec::new()).map_err(|cycle| {
            let names = cycle.iter().filter_map(|step| drawn.steps.get(*step));
            PlanError::Cycle(names.map(|step| step.name.clone()).collect())
        })?;
    }
    Ok(order)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum VisitState {
    New,
    Begun,
    Done,
}

/// Appends the steps that `step` reads from, then the step itself. The depth of the recursion is
/// bounded by the number of steps. An error is a cycle.
fn visit(
    step: usize,
    reads: &[Vec<usize>],
    states: &mut [VisitState],
    order: &mut Vec<usize>,
    path: &mut Vec<usize>,
) -> Result<(), Vec<usize>> {
    match states[step] {
        VisitState::Done => return Ok(()),
        VisitState::Begun => {
            let begins = path.iter().position(|before| *before == step).unwrap_or(0);
            return Err(path[begins..].iter().copied().chain([step]).collect());
        }
        VisitState::New => {}
    }
    states[step] = VisitState::Begun;
    path.push(step);
    for before in &reads[step] {
        visit(*before, reads, states, order, path)?;
    }
    path.pop();
    states[step] = VisitState::Done;
    order.push(step);
    Ok(())
}

/// The steps that a step reads from.
fn reads_from(drawn: &Drawn, step: usize) -> Vec<usize> {
    let step = &drawn.steps[step];
    let of_guard = step.guard.and_then(|guard| drawn.conditions.get(guard.condition)?.test.value());
    let values = step.inputs.iter().map(|(_, value)| *value).chain(of_guard);
    values.filter_map(|value| giver(drawn, value)).collect()
}

fn giver(drawn: &Drawn, value: ValueIndex) -> Option<usize> {
    drawn.steps.iter().position(|step| step.outputs.contains(&value))
}
