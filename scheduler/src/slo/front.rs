//! Placements by themselves: which kinds of devices the steps of a workflow could run on, what that takes, and what it costs.
//!
//! Seed 001, chapter 4, phase 1. A placement gives every step a kind of device. Only those are kept for which no other is both as fast and
//! as cheap: sorted by time they are sorted by cost too, the other way round, so that one list serves both orders and what keeps to both
//! SLOs is a range of it. (The thesis unites the sets that keep to each SLO; to keep to all, it takes what they have in common.)
//!
//! Not all placements are looked at: there are as many as kinds to the power of the steps. Steps are taken one by one, and what cannot
//! become better than another is dropped on the way. An invocation of one function is a workflow of one step.

use super::Choice;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use smallvec::SmallVec;
use weir_types::Cost;

/// A step of a workflow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// The steps, by index, that must be over before it begins. All come before it.
    pub after: Vec<usize>,
    /// What it takes on each kind of device, by number; none where it cannot run.
    pub quotes: Vec<Option<Quote>>,
}

/// What a step takes on a kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quote {
    /// From its beginning to its end.
    pub time_ns: u64,
    /// What that costs.
    pub cost: Cost,
}

/// A kind of device for every step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepPlacement {
    /// By step: the number of a kind.
    pub kinds: SmallVec<[usize; 4]>,
    /// From the beginning of the first to the end of the last, if none has to wait.
    pub time_ns: u64,
    /// What all of them cost together.
    pub cost: Cost,
}

/// Why there are no placements.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrontError {
    /// A step depends on itself or on one behind it.
    #[error("step {step} is to come after step {after}, which does not come before it")]
    Order {
        /// Which one.
        step: usize,
        /// What it depends on.
        after: usize,
    },
    /// A step can run nowhere.
    #[error("step {0} runs on no kind of device that there is")]
    Nowhere(usize),
}

/// The placements for which no other is both as fast and as cheap: the fastest first, and so the dearest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Front {
    placements: Vec<StepPlacement>,
}

/// A placement as the cluster is at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer<T> {
    /// When it would be over, from now.
    pub finish_after_ns: u64,
    /// What it would cost.
    pub cost: Cost,
    /// Where.
    pub place: T,
}

/// Beginnings of placements that are followed at once. Beyond it they are thinned out evenly: fewer are found then, each of them true.
const BEGINNINGS_MAX: usize = 256;

/// The steps so far.
#[derive(Debug, Clone)]
struct Beginning {
    kinds: SmallVec<[usize; 4]>,
    /// By step: when it is over.
    ends_ns: SmallVec<[u64; 4]>,
    cost: Cost,
}

impl Front {
    /// Of these steps.
    ///
    /// # Errors
    /// If the steps are not in order, or one can run nowhere.
    pub fn of(steps: &[Step]) -> Result<Self, FrontError> {
        let mut beginnings =
            vec![Beginning { kinds: SmallVec::new(), ends_ns: SmallVec::new(), cost: Cost::ZERO }];
        for (index, step) in steps.iter().enumerate() {
            if let Some(after) = step.after.iter().find(|after| **after >= index) {
                return Err(FrontError::Order { step: index, after: *after });
            }
            if step.quotes.iter().all(Option::is_none) {
                return Err(FrontError::Nowhere(index));
            }
            // What still matters of the steps so far: those that later ones wait for, and when all are over.
            let is_awaited = |end: usize| steps[index + 1..].iter().any(|later| later.after.contains(&end));
            let awaited: Vec<_> = (0..=index).filter(|end| is_awaited(*end)).collect();
            let grown = beginnings.iter().flat_map(|beginning| beginning.with(step)).collect();
            beginnings = prune(grown, &awaited);
        }
        let mut placements: Vec<_> = beginnings.into_iter().map(Beginning::finish).collect();
        placements.sort_by(|a, b| a.time_ns.cmp(&b.time_ns).then(a.cost.cmp(&b.cost)));
        Ok(Self { placements })
    }

    /// All of them, the fastest first.
    #[must_use]
    pub fn placements(&self) -> &[StepPlacement] {
        &self.placements
    }

    /// Those that keep to both SLOs, if nothing has to wait: two binary searches.
    #[must_use]
    pub fn within(&self, time_ns_max: u64, cost_max: Cost) -> &[StepPlacement] {
        let slow = self.placements.partition_point(|placement| placement.time_ns <= time_ns_max);
        let cheap = self.placements.partition_point(|placement| placement.cost > cost_max);
        self.placements.get(cheap..slow).unwrap_or_default()
    }

    /// Compare up to `sample_len` of those that keep to both SLOs with the cluster as it is, and choose one of those that still do.
    ///
    /// `check` says when a placement would be over there and what it would cost; none if there is no room for it. `seed` is what chance
    /// follows from.
    pub fn choose<T>(
        &self,
        (time_ns_max, cost_max): (u64, Cost),
        (sample_len, choice, seed): (usize, Choice, u64),
        mut check: impl FnMut(&StepPlacement) -> Option<Offer<T>>,
    ) -> Option<Offer<T>> {
        let within = self.within(time_ns_max, cost_max);
        let mut sample: SmallVec<[usize; 16]> = (0..within.len()).collect();
        if choice == Choice::Random || sample.len() > sample_len {
            sample.shuffle(&mut Pcg64::seed_from_u64(seed));
            sample.truncate(sample_len.max(1));
        }
        let keeps = |offer: &Offer<T>| offer.finish_after_ns <= time_ns_max && offer.cost <= cost_max;
        let mut offers = sample.into_iter().filter_map(|at| check(&within[at]).filter(keeps));
        match choice {
            Choice::Cheapest => offers.min_by_key(|offer| (offer.cost, offer.finish_after_ns)),
            Choice::Fastest => offers.min_by_key(|offer| (offer.finish_after_ns, offer.cost)),
            // In the order of the lots, so that no more are checked than it takes.
            Choice::Random => offers.next(),
        }
    }
}

impl Beginning {
    /// With one more step, on each kind of device.
    fn with<'a>(&'a self, step: &'a Step) -> impl Iterator<Item = Self> + 'a {
        let begin_ns = step.after.iter().map(|after| self.ends_ns[*after]).max().unwrap_or(0);
        let quotes = step.quotes.iter().enumerate().filter_map(|(kind, quote)| Some((kind, (*quote)?)));
        quotes.map(move |(kind, quote)| {
            let mut grown = self.clone();
            grown.kinds.push(kind);
            grown.ends_ns.push(begin_ns.saturating_add(quote.time_ns));
            grown.cost = grown.cost.saturating_add(quote.cost);
            grown
        })
    }

    fn time_ns(&self) -> u64 {
        self.ends_ns.iter().copied().max().unwrap_or(0)
    }

    /// Whether whatever becomes of `other` could be had from this one as fast and as cheap.
    fn is_as_good_as(&self, other: &Self, awaited: &[usize]) -> bool {
        self.cost <= other.cost
            && self.time_ns() <= other.time_ns()
            && awaited.iter().all(|step| self.ends_ns[*step] <= other.ends_ns[*step])
    }

    fn finish(self) -> StepPlacement {
        StepPlacement { time_ns: self.time_ns(), kinds: self.kinds, cost: self.cost }
    }
}

/// Drop what another is as good as, and thin out what is left if it is too much.
fn prune(mut beginnings: Vec<Beginning>, awaited: &[usize]) -> Vec<Beginning> {
    // What is as good as another comes before it.
    let ends = |beginning: &Beginning| {
        awaited.iter().map(|step| beginning.ends_ns[*step]).fold(0, u64::saturating_add)
    };
    beginnings.sort_by_key(|beginning| (beginning.cost, beginning.time_ns(), ends(beginning)));
    let mut kept: Vec<Beginning> = Vec::new();
    for beginning in beginnings {
        if !kept.iter().any(|other| other.is_as_good_as(&beginning, awaited)) {
            kept.push(beginning);
        }
    }
    if kept.len() <= BEGINNINGS_MAX {
        return kept;
    }
    // The ends stay: they are in order of cost now, and will be in that of time.
    let cheapest = kept[0].clone();
    kept.sort_by_key(|beginning| (beginning.time_ns(), ends(beginning)));
    let last = kept.len() - 1;
    let even = (0..BEGINNINGS_MAX - 1).map(|at| kept[at * last / (BEGINNINGS_MAX - 1)].clone());
    even.chain([cheapest]).collect()
}

#[cfg(test)]
mod tests;
