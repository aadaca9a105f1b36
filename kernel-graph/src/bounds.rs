//! Evaluation of size expressions within bounds.

use crate::error::RunPlanError;
use crate::expression::Expression;
use std::collections::BTreeMap;

/// Evaluates a size expression and checks the bounds of the value.
pub(crate) fn bounded(
    place: &dyn Fn() -> String,
    what: &'static str,
    size: &Expression,
    dimensions: &BTreeMap<String, u32>,
    min: i128,
    max: i128,
) -> Result<i128, RunPlanError> {
    let value = size.value(dimensions).map_err(|error| RunPlanError::Expression { place: place(), error })?;
    within(place, what, value, min, max)
}

/// Checks that `min <= value <= max`.
pub(crate) fn within(
    place: &dyn Fn() -> String,
    what: &'static str,
    value: i128,
    min: i128,
    max: i128,
) -> Result<i128, RunPlanError> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(RunPlanError::OutOfBounds { place: place(), what, value, min, max })
}
