//! Improves a schedule by search, with knowledge of all arrivals: an upper bound on the latency of
//! the best schedule under the LALB paper's device rules.

use super::{SimulatedPlacement, SimulatedSchedule, Workload};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use smallvec::SmallVec;

/// Maximum number of moves of [`search_moves`].
const MOVES_MAX: u64 = 1_500_000;

/// Maximum number of requests that the moves of [`search_moves`] put into sequences.
const WORK_MAX: u64 = 400_000_000;

/// Temperature of the annealing at the start and at the end, in nanoseconds of latency.
const TEMPERATURES_NS: (f64, f64) = (1.5e9, 0.02e9);

/// Number of moves that takes a few seconds: fewer for workloads with many requests per device.
#[must_use]
pub fn search_moves(workload: &Workload) -> u32 {
    let per_device = workload.requests().len() as u64 / u64::from(workload.devices()) + 1;
    u32::try_from(MOVES_MAX.min(WORK_MAX / per_device)).unwrap_or(u32::MAX)
}

/// A schedule of the same requests that is not slower on average, found by simulated annealing in
/// `moves` moves.
///
/// The schedule is a sequence of requests for each device. A move gives some requests for one model
/// to another device, or to another place in the sequence. Each device starts its requests as early
/// as it can, and evicts the model that it needs last. Requests that `schedule` did not place remain
/// without a placement.
#[must_use]
pub fn improve_schedule(
    workload: &Workload,
    schedule: &SimulatedSchedule,
    moves: u32,
    seed: u64,
) -> SimulatedSchedule {
    let mut search = Search::new(workload, schedule);
    let given_ns = schedule_ns(&schedule.placed);
    let mut rng = Pcg64::seed_from_u64(seed);
    let (hot_ns, cold_ns) = TEMPERATURES_NS;
    let mut best_ns = search.sum_ns();
    let mut best = search.sequences.clone();
    for number in 0..moves {
        let progress = f64::from(number) / f64::from(moves);
        let temperature_ns = hot_ns * (cold_ns / hot_ns).powf(progress);
        let allowed_ns = -temperature_ns * (1.0 - rng.random::<f64>()).ln();
        if search.try_move(&mut rng, allowed_ns) && search.sum_ns() < best_ns {
            best_ns = search.sum_ns();
            best.clone_from(&search.sequences);
        }
    }
    if best_ns >= given_ns {
        return schedule.clone();
    }
    let mut placed = vec![None; workload.requests().len()];
    let mut computed_ns = 0;
    for (device, sequence) in (0_u32..).zip(&best) {
        search.timer.play(workload, sequence, |number, (started_at_ns, ended_at_ns), hit| {
            let model = workload.requests()[number as usize].model;
            computed_ns += workload.models()[model as usize].run_time_ns;
            placed[number as usize] = Some(SimulatedPlacement { device, started_at_ns, ended_at_ns, hit });
        });
    }
    SimulatedSchedule { placed, computed_ns, ..SimulatedSchedule::default() }
}

fn schedule_ns(placed: &[Option<SimulatedPlacement>]) -> u64 {
    placed.iter().flatten().map(|placed| placed.ended_at_ns).sum()
}

struct Search<'a> {
    workload: &'a Workload,
    /// By device: its requests in the order of their starts.
    sequences: Vec<Vec<u32>>,
    /// By device: the sum of the ends of its requests.
    ends_ns: Vec<u64>,
    /// By request; `None` without a placement.
    devices: Vec<Option<u32>>,
    timer: SequenceTimer,
    /// The changed sequences of a move.
    from: Vec<u32>,
    to: Vec<u32>,
    moved: Vec<u32>,
}

impl<'a> Search<'a> {
    fn new(workload: &'a Workload, schedule: &SimulatedSchedule) -> Self {
        let mut starts: Vec<(u64, u32, u32)> = (0..)
            .zip(&schedule.placed)
            .filter_map(|(number, placed)| placed.map(|placed| (placed.started_at_ns, number, placed.device)))
            .collect();
        starts.sort_unstable();
        let mut sequences = vec![Vec::new(); workload.devices() as usize];
        let mut devices = vec![None; schedule.placed.len()];
        for (_, number, device) in starts {
            sequences[device as usize].push(number);
            devices[number as usize] = Some(device);
        }
        let mut timer = SequenceTimer::new(workload);
        let ends_ns = sequences.iter().map(|sequence| timer.ends_ns(workload, sequence)).collect();
        let (from, to, moved) = Default::default();
        Self { workload, sequences, ends_ns, devices, timer, from, to, moved }
    }

    fn sum_ns(&self) -> u64 {
        self.ends_ns.iter().sum()
    }

    /// Makes a random move if it adds at most `allowed_ns` to the sum of latencies. Returns whether
    /// it was made.
    fn try_move(&mut self, rng: &mut Pcg64, allowed_ns: f64) -> bool {
        let number = rng.random_range(0..self.devices.len());
        let Some(from) = self.devices[number] else { return false };
        let others = self.workload.devices() - 1;
        let stays = others == 0 || rng.random_range(0..5) == 0;
        let to = if stays { from } else { (from + 1 + rng.random_range(0..others)) % (others + 1) };
        let count = if stays { 1 } else { 1 << rng.random_range(0_u32..6) };
        self.take(from, u32::try_from(number).unwrap_or(u32::MAX), count);
        self.to.clear();
        self.to.extend(if stays { &self.from } else { &self.sequences[to as usize] });
        let earlier = if self.moved.len() == 1 { rng.random_range(0_usize..5).saturating_sub(1) } else { 0 };
        let later = if earlier == 0 { rng.random_range(0_usize..4).saturating_sub(1) } else { 0 };
        self.insert(earlier, later);
        let from_ns = if stays { 0 } else { self.timer.ends_ns(self.workload, &self.from) };
        let to_ns = self.timer.ends_ns(self.workload, &self.to);
        let before_ns = self.ends_ns[to as usize] + if stays { 0 } else { self.ends_ns[from as usize] };
        if (from_ns + to_ns) as f64 > before_ns as f64 + allowed_ns {
            return false;
        }
        if !stays {
            std::mem::swap(&mut self.sequences[from as usize], &mut self.from);
            self.ends_ns[from as usize] = from_ns;
        }
        std::mem::swap(&mut self.sequences[to as usize], &mut self.to);
        self.ends_ns[to as usize] = to_ns;
        self.moved.iter().for_each(|number| self.devices[*number as usize] = Some(to));
        true
    }

    /// Takes a request, and up to `count` in all of those for the same model from there on, out of
    /// the sequence of a device: into `moved`. The rest is in `from`.
    fn take(&mut self, device: u32, number: u32, count: usize) {
        let requests = self.workload.requests();
        let model = requests[number as usize].model;
        self.from.clear();
        self.moved.clear();
        for other in &self.sequences[device as usize] {
            let is_behind = *other == number || !self.moved.is_empty();
            if is_behind && self.moved.len() < count && requests[*other as usize].model == model {
                self.moved.push(*other);
            } else {
                self.from.push(*other);
            }
        }
    }

    /// Inserts the moved requests into `to` by arrival, or some places earlier or later.
    fn insert(&mut self, earlier: usize, later: usize) {
        let requests = self.workload.requests();
        let arrived_at_ns = |number: u32| requests[number as usize].arrived_at_ns;
        for number in &self.moved {
            let before = |other: &u32| arrived_at_ns(*other) <= arrived_at_ns(*number);
            let at = self.to.iter().rposition(before).map_or(0, |at| at + 1);
            let at = (at.saturating_sub(earlier) + later).min(self.to.len());
            self.to.insert(at, *number);
        }
    }
}

/// Computes the times of a device's sequence.
struct SequenceTimer {
    /// By place in the sequence: the place of the next request for the same model.
    next: Vec<u32>,
    /// By model: the place of its request found last. `u32::MAX`: none.
    places: Vec<u32>,
}

impl SequenceTimer {
    fn new(workload: &Workload) -> Self {
        Self { next: Vec::new(), places: vec![u32::MAX; workload.models().len()] }
    }

    /// The sum of the ends of all requests.
    fn ends_ns(&mut self, workload: &Workload, sequence: &[u32]) -> u64 {
        let mut sum_ns = 0;
        self.play(workload, sequence, |_, (_, ended_at_ns), _| sum_ns += ended_at_ns);
        sum_ns
    }

    /// Serves the sequence on an empty device. `ended` receives each request, its start and end,
    /// and whether it was a hit.
    fn play(&mut self, workload: &Workload, sequence: &[u32], mut ended: impl FnMut(u32, (u64, u64), bool)) {
        let model_of = |number: u32| workload.requests()[number as usize].model;
        self.next.clear();
        let places = 0..u32::try_from(sequence.len()).unwrap_or(u32::MAX);
        for (place, number) in places.zip(sequence).rev() {
            let last = std::mem::replace(&mut self.places[model_of(*number) as usize], place);
            self.next.push(last);
        }
        sequence.iter().for_each(|number| self.places[model_of(*number) as usize] = u32::MAX);
        // Models in memory, each with the place of its next request.
        let mut held = SmallVec::<[(u32, u32); 8]>::new();
        let mut free_bytes = workload.capacity_bytes();
        let mut free_at_ns = 0;
        for (number, next) in sequence.iter().zip(self.next.iter().rev()) {
            let request = workload.requests()[*number as usize];
            let costs = workload.models()[request.model as usize];
            let start_ns = request.arrived_at_ns.max(free_at_ns);
            free_at_ns = start_ns + costs.run_time_ns;
            let resident = held.iter_mut().find(|(model, _)| *model == request.model);
            let hit = resident.is_some();
            if let Some((_, place)) = resident {
                *place = *next;
            } else {
                free_at_ns += costs.load_time_ns;
                while free_bytes < costs.bytes {
                    let last = (0..held.len()).max_by_key(|at| held[*at].1);
                    let Some((victim, _)) = last.map(|last| held.swap_remove(last)) else { break };
                    free_bytes += workload.models()[victim as usize].bytes;
                }
                free_bytes = free_bytes.saturating_sub(costs.bytes);
                held.push((request.model, *next));
            }
            ended(*number, (start_ns, free_at_ns), hit);
        }
    }
}
