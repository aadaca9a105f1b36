//! Wall time of a call by activity. Activities that overlap, as those of parallel branches of a
//! workflow, count once: runs before loads, and loads before waits.

/// The most intervals of one activity that are kept apart. The oldest interval is closed beyond
/// that, so that later activities no longer merge with it.
const INTERVALS_MAX: usize = 64;

/// The activities of a call. Times are nanoseconds since its placement.
#[derive(Debug, Clone, Default)]
pub(super) struct Timeline {
    runs: Union,
    runs_and_loads: Union,
    all: Union,
}

impl Timeline {
    /// Adds a run on the device.
    pub(super) fn run(&mut self, from_ns: u64, to_ns: u64) {
        self.runs.add(from_ns, to_ns);
        self.load(from_ns, to_ns);
    }

    /// Adds a load that the call waited for.
    pub(super) fn load(&mut self, from_ns: u64, to_ns: u64) {
        self.runs_and_loads.add(from_ns, to_ns);
        self.wait(from_ns, to_ns);
    }

    /// Adds a wait for a run slot, or for a batch to form.
    pub(super) fn wait(&mut self, from_ns: u64, to_ns: u64) {
        self.all.add(from_ns, to_ns);
    }

    /// Time with at least one run.
    pub(super) fn run_ns(&self) -> u64 {
        self.runs.len_ns()
    }

    /// Time with loads and no run.
    pub(super) fn load_ns(&self) -> u64 {
        self.runs_and_loads.len_ns().saturating_sub(self.runs.len_ns())
    }

    /// Time with waits and neither run nor load.
    pub(super) fn wait_ns(&self) -> u64 {
        self.all.len_ns().saturating_sub(self.runs_and_loads.len_ns())
    }
}

/// A union of intervals.
#[derive(Debug, Clone, Default)]
struct Union {
    /// Disjoint intervals, in order.
    open: Vec<(u64, u64)>,
    /// The length of the closed intervals.
    closed_ns: u64,
    /// The end of the last closed interval.
    closed_until_ns: u64,
}

impl Union {
    fn add(&mut self, from_ns: u64, to_ns: u64) {
        let mut from_ns = from_ns.max(self.closed_until_ns);
        let mut to_ns = to_ns;
        if from_ns >= to_ns {
            return;
        }
        let first = self.open.partition_point(|(_, end_ns)| *end_ns < from_ns);
        let behind = self.open.partition_point(|(start_ns, _)| *start_ns <= to_ns);
        for (start_ns, end_ns) in self.open.drain(first..behind) {
            from_ns = from_ns.min(start_ns);
            to_ns = to_ns.max(end_ns);
        }
        self.open.insert(first, (from_ns, to_ns));
        if self.open.len() > INTERVALS_MAX {
            let (start_ns, end_ns) = self.open.remove(0);
            self.closed_ns = self.closed_ns.saturating_add(end_ns - start_ns);
            self.closed_until_ns = end_ns;
        }
    }

    fn len_ns(&self) -> u64 {
        self.open.iter().map(|(start_ns, end_ns)| end_ns - start_ns).fold(self.closed_ns, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_intervals_count_once() {
        let mut union = Union::default();
        for (from_ns, to_ns, len_ns) in
            [(10, 20, 10), (30, 40, 20), (15, 18, 20), (5, 5, 20), (18, 31, 30), (0, 50, 50), (60, 40, 50)]
        {
            union.add(from_ns, to_ns);
            assert_eq!(union.len_ns(), len_ns, "{from_ns} to {to_ns}: {union:?}");
        }
        assert_eq!(union.open, [(0, 50)]);
    }

    #[test]
    fn number_of_intervals_is_bounded() {
        let mut union = Union::default();
        let count = 1_000;
        (0..count).for_each(|at| union.add(10 * at, 10 * at + 4));
        assert_eq!((union.open.len(), union.len_ns()), (INTERVALS_MAX, 4 * count));
        union.add(0, 10 * count);
        assert!(union.len_ns() <= 10 * count, "{union:?}");
    }

    #[test]
    fn each_moment_belongs_to_one_activity() {
        let mut timeline = Timeline::default();
        timeline.wait(0, 100);
        timeline.load(50, 80);
        timeline.run(70, 110);
        timeline.run(90, 120);
        assert_eq!((timeline.wait_ns(), timeline.load_ns(), timeline.run_ns()), (50, 20, 50));
    }
}
