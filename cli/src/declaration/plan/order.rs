//! The order of workflows that run each other.

use std::collections::{BTreeMap, BTreeSet};
use weir_types::{ModelRef, Name};

/// The names, each after the names that it runs. The error is a list of names in cycles, and names
/// that run them.
pub(super) fn targets_first<T>(
    workflows: &BTreeMap<Name, T>,
    runs: impl Fn(&T) -> &BTreeSet<ModelRef>,
) -> Result<Vec<&Name>, Vec<&Name>> {
    let mut left: BTreeMap<&Name, &T> = workflows.iter().collect();
    let mut ordered = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let waits = |workflow: &T| runs(workflow).iter().any(|target| left.contains_key(&target.name));
        let ready: Vec<&Name> =
            left.iter().filter(|(_, workflow)| !waits(workflow)).map(|(name, _)| *name).collect();
        if ready.is_empty() {
            return Err(left.into_keys().collect());
        }
        for name in ready {
            left.remove(name);
            ordered.push(name);
        }
    }
    Ok(ordered)
}
