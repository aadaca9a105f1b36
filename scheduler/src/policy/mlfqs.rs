//! Long and short ones by lot.

use super::cycle::Cycle;
use super::line::Line;
use super::{Placement, Placer, Policy, Request};
use crate::View;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::collections::BTreeMap;
use weir_types::InvocationId;

/// `mlfqs` of seed 001, chapter 6: invocations are sorted into buckets by the length of their runs; a lot draws the bucket whose oldest goes
/// to the next device that is free. Each bucket is served about equally often, however much is in it.
///
/// A bucket holds runs up to twice as long as those of the one before. This is the work-conserving form; what the thesis prints is
/// [`Planned`](super::Planned).
pub struct Mlfqs {
    placer: Placer,
    buckets: BTreeMap<u32, Line>,
    /// The bucket that was drawn and has not been served yet.
    drawn: Option<u32>,
    cycle: Cycle,
    lots: Pcg64,
}

impl Mlfqs {
    /// With this choice of victims, and lots that follow from `seed`.
    #[must_use]
    pub fn new(placer: Placer, seed: u64) -> Self {
        let (buckets, cycle) = Default::default();
        Self { placer, buckets, drawn: None, cycle, lots: Pcg64::seed_from_u64(seed) }
    }

    /// The bucket to serve: the one that was drawn before, as long as it has something that may start, or a new one.
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

/// The bucket of runs that take this long.
pub(crate) fn bucket_of(run_time_ns: u64) -> u32 {
    run_time_ns.max(1).ilog2()
}

impl Policy for Mlfqs {
    fn name(&self) -> &'static str {
        "mlfqs"
    }

    fn arrived(&mut self, request: Request, view: &View) {
        let bucket = bucket_of(view.expected_run_time_ns(&request));
        self.buckets.entry(bucket).or_default().push(request);
    }

    fn next(&mut self, now_ns: u64, view: &View) -> Option<Placement> {
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

    fn remove(&mut self, invocation: InvocationId, _view: &View) -> Option<Request> {
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
