//! The least cost of a model's requests for given prices.

use super::prices::{Integral, Prices, Service};

/// A model and its requests.
#[derive(Debug)]
pub(super) struct ModelDemand {
    pub(super) load_s: f64,
    pub(super) run_s: f64,
    /// Part of a device's memory.
    pub(super) memory: f64,
    /// In order, at least one.
    pub(super) arrivals_s: Vec<f64>,
}

/// Number of intervals in a cell for which the first miss of a model is costed.
const FIRSTS: f64 = 4.0;

/// The costs of a model's requests by their start. A cost includes the time of the start, so that a
/// request's latency and charges are the cost less its arrival.
#[derive(Debug, Default)]
pub(super) struct LeastCosts {
    cell_s: f64,
    /// Duration of a hit, and of a miss.
    hit_s: f64,
    miss_s: f64,
    /// Charge of a service.
    service: Integral,
    /// Charge of a copy.
    copy: Integral,
    /// By cell: the least charge of a copy up to an eviction at the cell's start or later, and the
    /// time of that eviction.
    evictions: Vec<(f64, f64)>,
    hits: [Lattice; 2],
    misses: [Lattice; 2],
    /// By request, and at the end: the sum of the costs of this request and all later ones if they
    /// are not affected by the first miss.
    free: Vec<f64>,
}

/// The starts `cell * cell_s - before_s`.
#[derive(Debug, Default)]
struct Lattice {
    before_s: f64,
    /// The cell of the first start in `least`.
    first: usize,
    /// By start: the least cost of a start then or later in the lattice, and that start.
    least: Vec<(f64, f64)>,
}

impl LeastCosts {
    /// Computes the costs of the model at index `at` for these prices.
    pub(super) fn price(&mut self, model: &ModelDemand, prices: &Prices, at: usize) {
        let copies = &prices.copies[at];
        self.cell_s = prices.cell_s;
        self.hit_s = model.run_s;
        self.miss_s = model.load_s + model.run_s;
        self.service.set(self.cell_s, prices.device.iter().zip(copies).map(|(device, copy)| device + copy));
        let charge = |(memory, copy): (&f64, &f64)| model.memory * memory - copy;
        self.copy.set(self.cell_s, prices.memory.iter().zip(copies).map(charge));
        let mut best = (f64::INFINITY, 0.0);
        self.evictions.clear();
        for (index, charged) in self.copy.sums().iter().enumerate().rev() {
            if *charged < best.0 {
                best = (*charged, index as f64 * self.cell_s);
            }
            self.evictions.push(best);
        }
        self.evictions.reverse();
        let first_s = model.arrivals_s.first().copied().unwrap_or_default();
        let mut hits = std::mem::take(&mut self.hits);
        let mut misses = std::mem::take(&mut self.misses);
        for (lattice, before_s) in hits.iter_mut().zip([0.0, self.hit_s]) {
            lattice.fill(self.cell_s, (before_s, first_s), prices.device.len(), |start_s| self.hit(start_s));
        }
        for (lattice, before_s) in misses.iter_mut().zip([0.0, self.miss_s]) {
            let cost = |start_s| self.miss(start_s).0;
            lattice.fill(self.cell_s, (before_s, first_s), prices.device.len(), cost);
        }
        self.hits = hits;
        self.misses = misses;
    }

    /// The least sum of latencies and charges of the model's requests. `chosen` receives the
    /// services that attain it.
    pub(super) fn least_s(&mut self, model: &ModelDemand, mut chosen: impl FnMut(Service)) -> f64 {
        let Some((first_s, others)) = model.arrivals_s.split_first() else { return 0.0 };
        self.free.clear();
        self.free.push(0.0);
        let mut sum = 0.0;
        for arrival_s in others.iter().rev() {
            sum += self.best_other(*arrival_s, (0.0, 0.0)).0;
            self.free.push(sum);
        }
        self.free.reverse();
        let mut best = (f64::INFINITY, *first_s, *first_s);
        let part_s = self.cell_s / FIRSTS;
        let mut from_s = *first_s;
        let mut parts = (from_s / part_s).floor();
        loop {
            let ready_s = from_s + self.miss_s;
            let affected = others.partition_point(|arrival_s| *arrival_s < ready_s);
            let waiting = others[..affected].iter();
            let rest = self.free[affected]
                + waiting.map(|arrival_s| self.best_other(*arrival_s, (from_s, ready_s)).0).sum::<f64>();
            // Neither part decreases with a later first miss.
            if self.best_miss(from_s).0 + rest >= best.0 {
                break;
            }
            parts += 1.0;
            let to_s = parts * part_s;
            let (first, start_s) = self.best_miss_within(from_s, to_s);
            if first + rest < best.0 {
                best = (first + rest, from_s, start_s);
            }
            from_s = to_s;
        }
        let (sum, from_s, start_s) = best;
        chosen(self.miss_service(start_s));
        for arrival_s in others {
            chosen(self.best_other(*arrival_s, (from_s, from_s + self.miss_s)).1);
        }
        sum - model.arrivals_s.iter().sum::<f64>()
    }

    /// The cost of a hit.
    fn hit(&self, start_s: f64) -> f64 {
        let end_s = start_s + self.hit_s;
        end_s + self.service.at(end_s) - self.service.at(start_s)
    }

    /// The cost of a miss, and the best time to evict its copy.
    fn miss(&self, start_s: f64) -> (f64, f64) {
        let end_s = start_s + self.miss_s;
        let at_end = (self.copy.at(end_s), end_s);
        let later = self.evictions.get(cell_from(end_s, self.cell_s));
        let (copy, evicted_at_s) = later.copied().filter(|later| later.0 < at_end.0).unwrap_or(at_end);
        let service = self.service.at(end_s) - self.service.at(start_s);
        (end_s + service + copy - self.copy.at(start_s), evicted_at_s)
    }

    fn miss_service(&self, start_s: f64) -> Service {
        let (_, evicted_at_s) = self.miss(start_s);
        Service { start_s, end_s: start_s + self.miss_s, evicted_at_s: Some(evicted_at_s) }
    }

    /// The least cost of a request other than the first, if misses start at `from_s` at the
    /// earliest, and hits at `ready_s`.
    fn best_other(&self, arrival_s: f64, (from_s, ready_s): (f64, f64)) -> (f64, Service) {
        let (hit, hit_start_s) = self.best_hit(arrival_s.max(ready_s));
        let (miss, miss_start_s) = self.best_miss(arrival_s.max(from_s));
        if hit <= miss {
            let end_s = hit_start_s + self.hit_s;
            return (hit, Service { start_s: hit_start_s, end_s, evicted_at_s: None });
        }
        (miss, self.miss_service(miss_start_s))
    }

    /// The least cost of a hit that starts at `from_s` or later, and its start.
    fn best_hit(&self, from_s: f64) -> (f64, f64) {
        best_of((self.hit(from_s), from_s), &self.hits, from_s, self.cell_s)
    }

    /// The least cost of a miss that starts at `from_s` or later, and its start.
    fn best_miss(&self, from_s: f64) -> (f64, f64) {
        best_of((self.miss(from_s).0, from_s), &self.misses, from_s, self.cell_s)
    }

    /// The least cost of a miss that starts in an interval within a cell, and its start.
    fn best_miss_within(&self, from_s: f64, to_s: f64) -> (f64, f64) {
        let end = cell_from(from_s + self.miss_s, self.cell_s) as f64 * self.cell_s - self.miss_s;
        let starts = [from_s, to_s, end.clamp(from_s, to_s)];
        let costs = starts.map(|start_s| (self.miss(start_s).0, start_s));
        costs.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default()
    }
}

impl Lattice {
    fn fill(&mut self, cell_s: f64, (before_s, from_s): (f64, f64), cells: usize, cost: impl Fn(f64) -> f64) {
        self.before_s = before_s;
        self.first = cell_from(from_s + before_s, cell_s);
        self.least.clear();
        let mut best = (f64::INFINITY, 0.0);
        for cell in (self.first..=cells).rev() {
            let start_s = cell as f64 * cell_s - before_s;
            let cost = cost(start_s);
            if cost < best.0 {
                best = (cost, start_s);
            }
            self.least.push(best);
        }
        self.least.reverse();
    }

    /// The least cost of a start of the lattice at `from_s` or later. `None` after the last cell:
    /// without prices, an earlier start costs less.
    fn best(&self, from_s: f64, cell_s: f64) -> Option<(f64, f64)> {
        let cell = cell_from(from_s + self.before_s, cell_s);
        self.least.get(cell.saturating_sub(self.first)).copied()
    }
}

fn best_of(own: (f64, f64), lattices: &[Lattice; 2], from_s: f64, cell_s: f64) -> (f64, f64) {
    let later = lattices.iter().filter_map(|lattice| lattice.best(from_s, cell_s));
    later.fold(own, |best, other| if other.0 < best.0 { other } else { best })
}

/// The first cell that starts at a time or later.
fn cell_from(time_s: f64, cell_s: f64) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    let cell = (time_s / cell_s).ceil() as usize;
    cell
}
