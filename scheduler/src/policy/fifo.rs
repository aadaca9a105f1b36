//! First come, first served, by memory: the policy of a single node.
//!
//! An invocation starts where its models are ready soonest, as long as they fit there beside what is granted to others. One that fits
//! nowhere waits, and later ones that do fit may pass it, but only [`PASSES_MAX`] times: a stream of small models cannot starve a large one.
//! Invocations without models start at once on the node that runs the least.

use super::{Placement, Policy};
use crate::{Alternative, Arrival, Estimate, LeastRecentlyUsed, VictimPolicy, View, Why, expect};
use std::collections::VecDeque;
use weir_types::{DeviceId, InvocationId, ModelId};

/// How often the invocation that waits longest may be passed by others.
const PASSES_MAX: u32 = 64;

/// How many waiting invocations are looked at, so that one decision costs the same whatever the queue.
const SCAN_LEN_MAX: usize = 64;

/// First come, first served.
pub struct Fifo {
    victims: Box<dyn VictimPolicy>,
    /// Need no models: they wait for a node to come up, and for nothing else.
    plain: VecDeque<Arrival>,
    queue: VecDeque<Arrival>,
    /// How often the head of the queue was passed.
    passes: u32,
    /// The first `scanned` of the queue fitted nowhere when `freed` was the view's.
    scanned: usize,
    freed: u64,
}

impl Fifo {
    /// With the least recently used models as victims.
    #[must_use]
    pub fn new() -> Self {
        Self::with_victims(Box::new(LeastRecentlyUsed))
    }

    /// With victims of another choice.
    #[must_use]
    pub fn with_victims(victims: Box<dyn VictimPolicy>) -> Self {
        Self { victims, plain: VecDeque::new(), queue: VecDeque::new(), passes: 0, scanned: 0, freed: 0 }
    }

    fn next_plain(&mut self, view: &View) -> Option<Placement> {
        let (node, _) = view.nodes().min_by_key(|(_, node)| node.running())?;
        let arrival = self.plain.pop_front()?;
        Some(Placement { arrival, node, device: None, evict: Vec::new(), why: Why::default() })
    }

    fn take(&mut self, at: usize) -> Option<Arrival> {
        let arrival = self.queue.remove(at)?;
        if at == 0 {
            self.passes = 0;
        }
        if at < self.scanned {
            self.scanned -= 1;
        }
        Some(arrival)
    }
}

impl Default for Fifo {
    fn default() -> Self {
        Self::new()
    }
}

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn arrived(&mut self, arrival: Arrival) {
        let queue = if arrival.models.is_empty() { &mut self.plain } else { &mut self.queue };
        queue.push_back(arrival);
    }

    fn next(&mut self, _now_ns: u64, view: &View) -> Option<Placement> {
        if !self.plain.is_empty()
            && let Some(placement) = self.next_plain(view)
        {
            return Some(placement);
        }
        if self.freed != view.freed() {
            self.freed = view.freed();
            self.scanned = 0;
        }
        while self.scanned < self.queue.len().min(SCAN_LEN_MAX) {
            let at = self.scanned;
            if at > 0 && self.passes >= PASSES_MAX {
                return None;
            }
            let Some(offer) = best_offer(view, &*self.victims, &self.queue[at]) else {
                self.scanned += 1;
                continue;
            };
            let passes = if at > 0 { self.passes + 1 } else { 0 };
            let arrival = self.take(at)?;
            self.passes = passes;
            return Some(offer.accept(arrival));
        }
        None
    }

    fn remove(&mut self, invocation: InvocationId) -> Option<Arrival> {
        let is_it = |arrival: &Arrival| arrival.invocation == invocation;
        if let Some(at) = self.queue.iter().position(is_it) {
            return self.take(at);
        }
        let at = self.plain.iter().position(is_it)?;
        self.plain.remove(at)
    }

    fn waiting(&self) -> usize {
        self.plain.len() + self.queue.len()
    }
}

/// A device with room for an invocation's models.
struct Offer {
    device: DeviceId,
    estimate: Estimate,
    evict: Vec<ModelId>,
    others: Vec<Alternative>,
}

impl Offer {
    fn accept(self, arrival: Arrival) -> Placement {
        let Self { device, estimate, evict, others: mut alternatives } = self;
        alternatives.sort_by_key(|other| other.estimate.ready_after_ns());
        alternatives.truncate(Why::ALTERNATIVES_MAX);
        let why = Why { estimate, alternatives, queued_ns: 0 };
        Placement { arrival, node: device.node, device: Some(device), evict, why }
    }
}

/// The device on which the models are ready soonest; the first of equals.
fn best_offer(view: &View, victims: &dyn VictimPolicy, arrival: &Arrival) -> Option<Offer> {
    let mut best: Option<Offer> = None;
    for (id, device) in view.devices() {
        if device.running() >= device.spec().invocations_max {
            continue;
        }
        let need = device.need(&arrival.models);
        let mut evict = Vec::new();
        let keep = |model: &ModelId| arrival.models.iter().any(|demand| demand.model == *model);
        if need.over_bytes > 0 && !victims.choose(device, need.over_bytes, &keep, &mut evict) {
            continue;
        }
        let estimate = expect(view.load_times(), device, &arrival.models);
        let Some(best) = &mut best else {
            best = Some(Offer { device: id, estimate, evict, others: Vec::new() });
            continue;
        };
        if estimate.ready_after_ns() < best.estimate.ready_after_ns() {
            let beaten = Alternative { device: best.device, estimate: best.estimate };
            (best.device, best.estimate, best.evict) = (id, estimate, evict);
            best.others.push(beaten);
        } else {
            best.others.push(Alternative { device: id, estimate });
        }
    }
    best
}
