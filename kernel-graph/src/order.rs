//! Topological order of launches.

use crate::error::KernelGraphError;
use std::collections::BTreeSet;

/// Sorts the launches topologically; among the ready launches, the first of the document comes
/// first.
///
/// `waits_for` has the dependencies of each launch. Returns an error if the dependencies have a
/// cycle.
pub(crate) fn order(names: &[&str], waits_for: &[BTreeSet<usize>]) -> Result<Vec<usize>, KernelGraphError> {
    let mut left: BTreeSet<usize> = (0..names.len()).collect();
    let mut order = Vec::with_capacity(names.len());
    while !left.is_empty() {
        let ready = |launch: &&usize| waits_for.get(**launch).is_none_or(|before| before.is_disjoint(&left));
        let Some(next) = left.iter().find(ready).copied() else {
            return Err(KernelGraphError::Cycle(cycle(names, waits_for, &left)));
        };
        left.remove(&next);
        order.push(next);
    }
    Ok(order)
}

/// Describes a cycle in `left`, in which each launch waits for another launch of `left`.
fn cycle(names: &[&str], waits_for: &[BTreeSet<usize>], left: &BTreeSet<usize>) -> String {
    let mut path: Vec<usize> = left.first().copied().into_iter().collect();
    while let Some(before) =
        path.last().and_then(|last| waits_for.get(*last)).and_then(|before| before.intersection(left).next())
    {
        if let Some(start) = path.iter().position(|passed| passed == before) {
            path.drain(..start);
            path.push(*before);
            break;
        }
        path.push(*before);
    }
    let words: Vec<_> = path.iter().filter_map(|launch| names.get(*launch).copied()).collect();
    words.join(" waits for ")
}
