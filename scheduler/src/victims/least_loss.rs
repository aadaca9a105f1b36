//! Evicts the models with the least expected loss: models with low demand, short loads, or copies
//! on other devices.

use super::{VictimPolicy, Victims};
use crate::estimate::round_ns;
use crate::{DeviceKey, DeviceView, EvictionCandidate, Freeing, ModelKey, View};
use smallvec::SmallVec;

/// Chooses the set of victims with the least expected loss.
///
/// Evicting a copy costs a load if the model is requested within `HORIZON_S`. For the last copy,
/// that is the probability of an arrival. For one of several copies the loss is a fraction of that,
/// which grows with the load on the remaining copies. Waiting requests for the model count as
/// certain demand.
#[derive(Debug, Clone, Copy, Default)]
pub struct LeastLoss;

/// Time horizon of the expected demand, in seconds.
const HORIZON_S: f64 = 50.0;

/// Minimum worth of one of several copies, relative to the last copy.
const DUPLICATE_WORTH: f64 = 0.25;

/// Loss added by each waiting request.
const WAITING_NS: f64 = 0.6e9;

/// Up to this many candidates, all sets are compared. With more, the least loss per byte is evicted
/// first.
const EXACT_MAX: usize = 7;

impl VictimPolicy for LeastLoss {
    fn choose(
        &self,
        now_ns: u64,
        view: &View,
        device: DeviceKey,
        bytes: u64,
        mut freeing: Freeing<'_>,
        keep: &dyn Fn(ModelKey) -> bool,
    ) -> Option<Victims> {
        let state = view.device(device)?;
        let candidates = state.candidates().filter(|candidate| !keep(candidate.model));
        let mut priced: SmallVec<[(f64, EvictionCandidate); 16]> =
            candidates.map(|candidate| (loss_of(now_ns, view, state, &candidate), candidate)).collect();
        if priced.len() <= EXACT_MAX {
            return cheapest_set(&priced, bytes, &freeing);
        }
        let per_byte =
            |(loss_ns, candidate): &(f64, EvictionCandidate)| loss_ns / candidate.bytes.max(1) as f64;
        priced.sort_unstable_by(|a, b| per_byte(a).total_cmp(&per_byte(b)).then(a.1.used.cmp(&b.1.used)));
        let mut count = 0;
        while freeing.bytes() < bytes {
            freeing.give_up(priced.get(count)?.1.model);
            count += 1;
        }
        Some(victims(priced.into_iter().take(count)))
    }
}

fn loss_of(now_ns: u64, view: &View, device: &DeviceView, candidate: &EvictionCandidate) -> f64 {
    let copies = view.model(candidate.model).holders().len();
    loss_ns(now_ns, view, device, candidate.model, candidate.bytes, copies)
}

/// The expected cost of evicting a model from a device, if there are `copies` copies of the model.
pub(crate) fn loss_ns(
    now_ns: u64,
    view: &View,
    device: &DeviceView,
    model: ModelKey,
    bytes: u64,
    copies: usize,
) -> f64 {
    let copies = copies.max(1) as f64;
    let demand_per_s = view.demand_per_s(model, now_ns);
    let chance = 1.0 - (-demand_per_s * HORIZON_S / copies).exp();
    let worth = if copies > 1.0 {
        let busy = demand_per_s * device.run_time_ns().mean / 1e9 / (copies - 1.0);
        DUPLICATE_WORTH + busy.min(1.0)
    } else {
        1.0
    };
    let load_ns = view.reload_time_ns(device, model, bytes) as f64;
    chance * worth * load_ns + f64::from(view.model(model).waiting()) / copies * WAITING_NS
}

/// The set with the least loss among all sets that free enough.
fn cheapest_set(priced: &[(f64, EvictionCandidate)], bytes: u64, freeing: &Freeing<'_>) -> Option<Victims> {
    let mut sums: SmallVec<[(f64, u64); 1 << EXACT_MAX]> = SmallVec::new();
    sums.push((0.0, freeing.bytes()));
    for (loss_ns, candidate) in priced {
        for set in 0..sums.len() {
            let (sum_ns, freed) = sums[set];
            sums.push((sum_ns + loss_ns, freed.saturating_add(candidate.bytes)));
        }
    }
    if freeing.is_shared() {
        // Shared parts are freed with their last holder, so the sum over the candidates is too low.
        for (set, (_, freed)) in sums.iter_mut().enumerate() {
            let mut freeing = freeing.clone();
            let is_in = |(at, _): &(usize, &(f64, EvictionCandidate))| set >> at & 1 == 1;
            priced
                .iter()
                .enumerate()
                .filter(is_in)
                .for_each(|(_, (_, candidate))| freeing.give_up(candidate.model));
            *freed = freeing.bytes();
        }
    }
    let enough = sums.iter().enumerate().filter(|(_, (_, freed))| *freed >= bytes);
    let (best, _) = enough.min_by(|(_, a), (_, b)| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)))?;
    let is_in = |(at, _): &(usize, &(f64, EvictionCandidate))| best >> at & 1 == 1;
    let mut chosen: SmallVec<[_; EXACT_MAX]> =
        priced.iter().enumerate().filter(is_in).map(|(_, priced)| *priced).collect();
    chosen.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.used.cmp(&b.1.used)));
    Some(victims(chosen))
}

fn victims(chosen: impl IntoIterator<Item = (f64, EvictionCandidate)>) -> Victims {
    let mut models = SmallVec::new();
    let mut sum_ns = 0.0;
    for (loss_ns, candidate) in chosen {
        models.push(candidate.model);
        sum_ns += loss_ns;
    }
    Victims { models, loss_ns: round_ns(sum_ns), ..Victims::default() }
}
