//! Placements on an idle cluster: the kinds of devices that a workflow's steps could run on, with
//! their time and cost.
//!
//! The KaaS thesis, chapter 4, phase 1. A placement assigns a kind of device to every step. The
//! front keeps the placements for which no other is both as fast and as cheap (the Pareto front).
//! Sorted by increasing time, these placements are also sorted by decreasing cost, so one list
//! serves both orders, and the placements that meet both SLOs are a range of it. (The thesis unites
//! the sets that meet each SLO. Meeting all SLOs requires their intersection.)
//!
//! The number of placements is the number of kinds to the power of the number of steps, so they are
//! not all enumerated. Steps are added one by one, and partial placements that cannot become better
//! than another are dropped. An invocation of one function is a workflow of one step.

use super::PlacementPreference;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use smallvec::SmallVec;
use weir_types::Cost;

/// A step of a workflow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FrontStep {
    /// The indexes of the steps that must end before this step starts. All are smaller than this
    /// step's index.
    pub after: Vec<usize>,
    /// Time and cost on each kind of device, by index; `None` where the step cannot run.
    pub quotes: Vec<Option<Quote>>,
}

/// Time and cost of a step on a kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quote {
    /// Duration from start to end.
    pub time_ns: u64,
    /// Cost of that time.
    pub cost: Cost,
}

/// An assignment of kinds of devices to steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepPlacement {
    /// The index of a kind for each step.
    pub kinds: SmallVec<[usize; 4]>,
    /// Duration from the start of the first step to the end of the last, if no step has to wait.
    pub time_ns: u64,
    /// Cost of all steps together.
    pub cost: Cost,
}

/// Why there are no placements.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrontError {
    /// A step depends on itself or on a later step.
    #[error("step {step} is to come after step {after}, which does not come before it")]
    Order {
        /// The step.
        step: usize,
        /// The step that `step` depends on.
        after: usize,
    },
    /// A step runs on no kind of device.
    #[error("step {0} runs on none of the kinds of devices")]
    Nowhere(usize),
}

/// The placements for which no other is both as fast and as cheap: fastest first, and therefore
/// most expensive first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Front {
    placements: Vec<StepPlacement>,
}

/// A placement in the current state of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacementOffer<T> {
    /// Time from now until the end.
    pub finish_after_ns: u64,
    /// Cost of the placement.
    pub cost: Cost,
    /// The place of the placement.
    pub place: T,
}

/// Maximum number of partial placements kept. Larger sets are thinned out evenly: the front then
/// has fewer placements, each of them exact.
const BEGINNINGS_MAX: usize = 256;

/// A partial placement: the steps so far.
#[derive(Debug, Clone, Default)]
struct Beginning {
    kinds: SmallVec<[usize; 4]>,
    /// End time by step.
    ends_ns: SmallVec<[u64; 4]>,
    /// The latest of them.
    time_ns: u64,
    cost: Cost,
}

impl Front {
    /// Computes the front of a workflow.
    ///
    /// # Errors
    /// If the steps are not in order, or a step can run nowhere.
    pub fn from_steps(steps: &[FrontStep]) -> Result<Self, FrontError> {
        Self::keeping(steps, BEGINNINGS_MAX)
    }

    /// Computes the front with at most `kept_max` partial placements at a time.
    pub(crate) fn keeping(steps: &[FrontStep], kept_max: usize) -> Result<Self, FrontError> {
        let mut beginnings = vec![Beginning::default()];
        for (index, step) in steps.iter().enumerate() {
            if let Some(after) = step.after.iter().find(|after| **after >= index) {
                return Err(FrontError::Order { step: index, after: *after });
            }
            if step.quotes.iter().all(Option::is_none) {
                return Err(FrontError::Nowhere(index));
            }
            // The end times that later steps still depend on.
            let is_awaited = |end: usize| steps[index + 1..].iter().any(|later| later.after.contains(&end));
            let awaited: Vec<_> = (0..=index).filter(|end| is_awaited(*end)).collect();
            let grown = beginnings.iter().flat_map(|beginning| beginning.with(step)).collect();
            beginnings = prune(grown, &awaited, kept_max);
        }
        let mut placements: Vec<_> = beginnings.into_iter().map(Beginning::finish).collect();
        placements.sort_by(|a, b| a.time_ns.cmp(&b.time_ns).then(a.cost.cmp(&b.cost)));
        Ok(Self { placements })
    }

    /// All placements, fastest first.
    #[must_use]
    pub fn placements(&self) -> &[StepPlacement] {
        &self.placements
    }

    /// The placements that meet both SLOs on an idle cluster, found by two binary searches.
    #[must_use]
    pub fn within(&self, time_ns_max: u64, cost_max: Cost) -> &[StepPlacement] {
        let slow = self.placements.partition_point(|placement| placement.time_ns <= time_ns_max);
        let cheap = self.placements.partition_point(|placement| placement.cost > cost_max);
        self.placements.get(cheap..slow).unwrap_or_default()
    }

    /// Compares up to `sample_len` of the placements that meet both SLOs with the current state of
    /// the cluster, and chooses a placement that still meets both SLOs.
    ///
    /// `check` returns the finish time and cost of a placement in that state; `None` if there is no
    /// room for it. `seed` seeds the random choices.
    pub fn choose<T>(
        &self,
        (time_ns_max, cost_max): (u64, Cost),
        (sample_len, choice, seed): (usize, PlacementPreference, u64),
        mut check: impl FnMut(&StepPlacement) -> Option<PlacementOffer<T>>,
    ) -> Option<PlacementOffer<T>> {
        let within = self.within(time_ns_max, cost_max);
        let mut sample: SmallVec<[usize; 16]> = (0..within.len()).collect();
        if choice == PlacementPreference::Random || sample.len() > sample_len {
            sample.shuffle(&mut Pcg64::seed_from_u64(seed));
            sample.truncate(sample_len.max(1));
        }
        let keeps =
            |offer: &PlacementOffer<T>| offer.finish_after_ns <= time_ns_max && offer.cost <= cost_max;
        let mut offers = sample.into_iter().filter_map(|at| check(&within[at]).filter(keeps));
        match choice {
            PlacementPreference::Cheapest => offers.min_by_key(|offer| (offer.cost, offer.finish_after_ns)),
            PlacementPreference::Fastest => offers.min_by_key(|offer| (offer.finish_after_ns, offer.cost)),
            // In sample order, so that only as many placements are checked as needed.
            PlacementPreference::Random => offers.next(),
        }
    }
}

impl Beginning {
    /// Adds a step on each kind of device.
    fn with<'a>(&'a self, step: &'a FrontStep) -> impl Iterator<Item = Self> + 'a {
        let begin_ns = step.after.iter().map(|after| self.ends_ns[*after]).max().unwrap_or(0);
        let quotes = step.quotes.iter().enumerate().filter_map(|(kind, quote)| Some((kind, (*quote)?)));
        quotes.map(move |(kind, quote)| {
            let mut grown = self.clone();
            grown.kinds.push(kind);
            let end_ns = begin_ns.saturating_add(quote.time_ns);
            grown.ends_ns.push(end_ns);
            grown.time_ns = end_ns.max(grown.time_ns);
            grown.cost = grown.cost.saturating_add(quote.cost);
            grown
        })
    }

    /// Whether every extension of this partial placement is as fast and as cheap as that of
    /// `other`.
    fn is_as_good_as(&self, other: &Self, awaited: &[usize]) -> bool {
        self.cost <= other.cost
            && self.time_ns <= other.time_ns
            && awaited.iter().all(|step| self.ends_ns[*step] <= other.ends_ns[*step])
    }

    fn finish(self) -> StepPlacement {
        StepPlacement { time_ns: self.time_ns, kinds: self.kinds, cost: self.cost }
    }
}

/// Drops dominated partial placements, and thins out the rest if there are too many.
fn prune(mut beginnings: Vec<Beginning>, awaited: &[usize], kept_max: usize) -> Vec<Beginning> {
    // A dominating partial placement sorts first.
    let ends = |beginning: &Beginning| {
        awaited.iter().map(|step| beginning.ends_ns[*step]).fold(0, u64::saturating_add)
    };
    beginnings.sort_by_key(|beginning| (beginning.cost, beginning.time_ns, ends(beginning)));
    let mut kept: Vec<Beginning> = Vec::new();
    for beginning in beginnings {
        if !kept.iter().any(|other| other.is_as_good_as(&beginning, awaited)) {
            kept.push(beginning);
        }
    }
    if kept.len() <= kept_max {
        return kept;
    }
    // Keeps both ends: the cheapest here, and the fastest by the sort by time.
    let cheapest = kept[0].clone();
    kept.sort_by_key(|beginning| (beginning.time_ns, ends(beginning)));
    let last = kept.len() - 1;
    let even = (0..kept_max - 1).map(|at| kept[at * last / (kept_max - 1)].clone());
    even.chain([cheapest]).collect()
}

#[cfg(test)]
mod tests;
