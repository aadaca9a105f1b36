//! Multi-level queues by run time, with a random choice of the level.

use super::cycle::Cycle;
use super::line::Line;
use super::{PlacementDecision, PlacementRequest, Policy, RoomFinder};
use crate::View;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::collections::BTreeMap;
use weir_types::InvocationId;

/// `mlfqs` of the KaaS thesis, chapter 6: invocations are sorted into buckets by their run time. A
/// random draw selects the bucket whose oldest invocation goes to the next free device. Each bucket
/// is served about equally often, whatever its length.
///
/// The run times of a bucket are up to twice as long as those of the bucket before. This policy is
/// work-conserving; [`Planned`](super::Planned) implements the thesis as printed.
pub struct Mlfqs {
    placer: RoomFinder,
    buckets: BTreeMap<u32, Line>,
    /// The bucket that was drawn and not served yet.
    drawn: Option<u32>,
    cycle: Cycle,
    lots: Pcg64,
}

impl Mlfqs {
    /// Creates the policy with a victim selection and a random seed.
    #[must_use]
    pub fn new(placer: RoomFinder, seed: u64) -> Self {
        let (buckets, cycle) = Default::default();
        Self { placer, buckets, drawn: None, cycle, lots: Pcg64::seed_from_u64(seed) }
    }

    /// The bucket to serve: the drawn bucket while one of its invocations may start, else a new
    /// draw.
    fn draw(&mut self, view: &View) -> Option<u32> {
        let can_serve = |bucket: u32| self.buckets.get(&bucket).is_some_and(|line| line.head(view).is_some());
        if let Some(drawn) = self.drawn.filter(|drawn| can_serve(*drawn)) {
            return Some(drawn);
        }
        let full: Vec<u32> = self.buckets.keys().copied().filter(|bucket| can_serve(*bucket)).collect();
        if full.is_empty() {
            return None;
        }
        self.drawn = full.get(self.lots.random_range(0..full.len())).copied();
        self.drawn
    }
}

/// The bucket for a run time.
pub(crate) fn bucket_of(run_time_ns: u64) -> u32 {
    run_time_ns.max(1).ilog2()
}

impl Policy for Mlfqs {
    fn name(&self) -> &'static str {
        "mlfqs"
    }

    fn arrived(&mut self, request: PlacementRequest, view: &View) {
        let bucket = bucket_of(view.expected_run_time_ns(&request));
        self.buckets.entry(bucket).or_default().push(request);
    }

    fn next(&mut self, now_ns: u64, view: &View) -> Option<PlacementDecision> {
        view.open().next()?;
        let bucket = self.draw(view)?;
        let line = self.buckets.get_mut(&bucket)?;
        let (place, head) = line.head(view)?;
        let device = self.cycle.next_free(now_ns, view, &self.placer, head)?;
        self.cycle.used(device);
        self.drawn = None;
        let request = line.take(place)?;
        if line.is_empty() {
            self.buckets.remove(&bucket);
        }
        self.placer.place(now_ns, view, device, request).ok()
    }

    fn remove(&mut self, invocation: InvocationId, _view: &View) -> Option<PlacementRequest> {
        let mut found = None;
        for (bucket, line) in &mut self.buckets {
            if let Some((_, request)) = line.remove(invocation) {
                found = Some((*bucket, line.is_empty(), request));
                break;
            }
        }
        let (bucket, is_empty, request) = found?;
        if is_empty {
            self.buckets.remove(&bucket);
        }
        Some(request)
    }

    fn waiting(&self) -> usize {
        self.buckets.values().map(Line::len).sum()
    }
}
