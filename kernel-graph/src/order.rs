//! Which launch comes before which.

use crate::error::GraphError;
use std::collections::BTreeSet;

/// The launches in an order in which each comes after all that it waits for; of those that could come next, the first of the document does.
/// `waits_for` has, for each launch, those before it.
pub(crate) fn order(names: &[&str], waits_for: &[BTreeSet<usize>]) -> Result<Vec<usize>, GraphError> {
    let mut left: BTreeSet<usize> = (0..names.len()).collect();
    let mut order = Vec::with_capacity(names.len());
    while !left.is_empty() {
        let ready = |launch: &&usize| waits_for.get(**launch).is_none_or(|before| before.is_disjoint(&left));
        let Some(next) = left.iter().find(ready).copied() else {
            return Err(GraphError::Cycle(cycle(names, waits_for, &left)));
        };
        left.remove(&next);
        order.push(next);
    }
    Ok(order)
}

/// A cycle among `left`, each of which waits for another of them, in words.
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
