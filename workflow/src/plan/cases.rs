//! Case analysis of a plan: each condition holds or does not hold, and each split returns some
//! number of parts. Every output must be present in all cases, and every step must run in some
//! case.

use super::path::StepSet;
use super::{CASES_MAX, Plan, PlannedStep, StepAction};
use crate::document::TensorSource;
use crate::error::PlanError;

/// Results of the case analysis.
pub(super) struct CaseAnalysis {
    /// Whether each step runs, and its outputs are used, in all cases.
    pub(super) sure: Vec<bool>,
    /// Sets of steps that run and are used together in a case, without sets contained in another.
    pub(super) together: Vec<StepSet>,
}

/// Analyzes every case.
pub(super) fn check(plan: &Plan) -> Result<CaseAnalysis, PlanError> {
    let splits = plan.steps.iter().map(|step| match step.action {
        StepAction::Split { parts } => u64::from(parts),
        _ => 1,
    });
    let radices: Vec<u64> = plan.conditions.iter().map(|_| 2).chain(splits).collect();
    let cases = radices.iter().try_fold(1_u64, |cases, radix| cases.checked_mul(*radix));
    let cases = cases.filter(|cases| *cases <= CASES_MAX).ok_or(PlanError::TooManyCases)?;
    let mut has_run = vec![false; plan.steps.len()];
    let mut is_sure = vec![true; plan.steps.len()];
    let mut together: Vec<StepSet> = Vec::new();
    for case in 0..cases {
        let case = Case::new(plan, case, &radices);
        let of_use = case.of_use(plan);
        for (step, runs) in case.runs.iter().enumerate() {
            has_run[step] |= runs;
            is_sure[step] &= runs & of_use[step];
        }
        add(&mut together, StepSet::from_flags(&of_use));
        let missing = plan.outputs.iter().find(|(_, value)| !case.is_there[*value]);
        if let Some((output, value)) = missing {
            return Err(PlanError::MayBeMissing {
                output: output.clone(),
                source_text: source(plan, *value),
                case: case.show(plan),
            });
        }
    }
    match has_run.iter().position(|has_run| !has_run) {
        Some(step) => Err(PlanError::NeverRuns(plan.steps[step].name.clone())),
        None => Ok(CaseAnalysis { sure: is_sure, together }),
    }
}

/// Adds a set unless another set contains it, and removes the sets that it contains.
fn add(sets: &mut Vec<StepSet>, new: StepSet) {
    if sets.iter().all(|set| !set.has_all_of(new)) {
        sets.retain(|set| !new.has_all_of(*set));
        sets.push(new);
    }
}

/// The values present and the steps that run in one case.
struct Case {
    holds: Vec<bool>,
    is_there: Vec<bool>,
    runs: Vec<bool>,
    /// Number of parts, by step.
    parts: Vec<usize>,
}

impl Case {
    fn new(plan: &Plan, mut number: u64, radices: &[u64]) -> Self {
        let mut digits = radices.iter().map(|radix| {
            let digit = number % radix;
            number /= radix;
            digit
        });
        let holds = digits.by_ref().take(plan.conditions.len()).map(|digit| digit == 1).collect();
        let parts = digits.map(|digit| usize::try_from(digit).unwrap_or(usize::MAX - 1) + 1).collect();
        let is_there = (0..plan.values.len()).map(|value| value < plan.inputs).collect();
        let mut case = Self { holds, is_there, runs: Vec::new(), parts };
        for (place, step) in plan.steps.iter().enumerate() {
            let runs = case.lets_run(plan, step);
            case.runs.push(runs);
            let given =
                if matches!(step.action, StepAction::Split { .. }) { case.parts[place] } else { usize::MAX };
            for value in step.outputs.iter().take(given) {
                case.is_there[*value] = runs;
            }
        }
        case
    }

    /// Whether each step runs and has an output that a used step or the caller reads.
    fn of_use(&self, plan: &Plan) -> Vec<bool> {
        let mut is_read = vec![false; plan.values.len()];
        plan.outputs.iter().for_each(|(_, value)| is_read[*value] = true);
        let mut of_use = vec![false; plan.steps.len()];
        for (place, step) in plan.steps.iter().enumerate().rev() {
            of_use[place] = self.runs[place] && step.outputs.iter().any(|value| is_read[*value]);
            if of_use[place] {
                let of_guard = step.guard.and_then(|guard| plan.conditions[guard.condition].test.value());
                let values = step.inputs.iter().map(|(_, value)| *value).chain(of_guard);
                values.for_each(|value| is_read[value] = true);
            }
        }
        of_use
    }

    fn lets_run(&self, plan: &Plan, step: &PlannedStep) -> bool {
        let is_let = step.guard.is_none_or(|guard| {
            let condition = &plan.conditions[guard.condition];
            let can_be_told = condition.test.value().is_none_or(|value| self.is_there[value]);
            can_be_told && self.holds[guard.condition] == guard.holds
        });
        let mut inputs = step.inputs.iter().map(|(_, value)| self.is_there[*value]);
        is_let
            && match step.action {
                StepAction::Combine(_) => inputs.any(|is_there| is_there),
                StepAction::Run(_) | StepAction::Split { .. } => inputs.all(|is_there| is_there),
            }
    }

    /// Describes the case for error messages.
    fn show(&self, plan: &Plan) -> String {
        let mut says: Vec<_> = (plan.conditions.iter().zip(&self.holds))
            .map(|(condition, holds)| {
                let holds = if *holds { "holds" } else { "does not hold" };
                format!("{} {holds}", condition.text)
            })
            .collect();
        for (step, parts) in plan.steps.iter().zip(&self.parts) {
            if matches!(step.action, StepAction::Split { .. }) {
                says.push(format!("{} has {parts} part{}", step.name, if *parts == 1 { "" } else { "s" }));
            }
        }
        format!("when {}", says.join(" and "))
    }
}

fn source(plan: &Plan, value: usize) -> TensorSource {
    let name = plan.values.get(value).map_or("", |value| &value.name);
    match plan.giver(value).and_then(|step| plan.steps.get(step)) {
        Some(step) => TensorSource::new(&step.name, name),
        None => TensorSource { of: name.to_owned(), output: None },
    }
}
