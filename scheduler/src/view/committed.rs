//! Work committed to a device: invocations that were placed there and have not ended.
//!
//! Each invocation commits the device time that it is predicted to take, and the *occupancy* of a
//! run slot: its device time divided by its wall time without waits. The occupancy of an inference
//! is 1. A function that uses the device for 1 % of its life has an occupancy of 0.01: it holds a
//! pin, not the device. A load is committed to the copy engine instead. Invocations that wait for
//! loads do not use the run slots yet, so invocations of loaded models do not wait for them.
//!
//! All sums are integers, so they return to exactly zero when everything has ended.

use crate::estimate::round_ns;

/// The occupancy of an invocation that uses a run slot for all of its life.
const WHOLE: u128 = 1 << 20;

/// Upper bound on each committed time, which keeps the sums exact: about 13 days.
const TIME_NS_MAX: u64 = 1 << 50;

/// Standard deviations by which the number of busy run slots may lie below its mean before a device
/// counts as full. The device time of invocations with time off the device comes at random moments,
/// so slots idle now and then although the mean demand equals the number of slots.
const SPREAD: f64 = 0.4;

/// Part of a run slot that may idle while a device counts as full: a run that is off the device for
/// 3 % of its life, as for the hand-over between runs, needs no successor there.
const IDLE: f64 = 0.1;

/// A commitment: the predicted work of one invocation, which counts as load of its device until the
/// invocation ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Commitment {
    /// Device time of the invocation if it runs alone.
    run_ns: u64,
    /// Device time that the invocation adds: less than `run_ns` if it joins a batch.
    added_ns: u64,
    /// Time off the device, without waits and loads.
    off_device_ns: u64,
    /// Time of its loads that have not completed.
    load_ns: u64,
    /// Whether the invocation waits for loads, possibly those of other invocations.
    is_loading: bool,
}

impl Commitment {
    pub(super) fn new(run_ns: u64, added_ns: u64, off_device_ns: u64, load_ns: u64) -> Self {
        let [run_ns, off_device_ns, load_ns] =
            [run_ns, off_device_ns, load_ns].map(|time_ns| time_ns.min(TIME_NS_MAX));
        let added_ns = added_ns.min(run_ns);
        Self { run_ns, added_ns, off_device_ns, load_ns, is_loading: load_ns > 0 }
    }

    /// The same work, which waits for loads.
    pub(super) fn loading(self) -> Self {
        Self { is_loading: true, ..self }
    }

    /// The same work after all loads have completed.
    pub(super) fn loaded(self) -> Self {
        Self { load_ns: 0, is_loading: false, ..self }
    }

    /// The work of an invocation that does not use the device at present: it holds only its pins.
    pub(super) fn lapsed(self) -> Self {
        Self { added_ns: 0, ..self.loaded() }
    }

    /// Device time that the invocation adds.
    pub(super) fn added_ns(&self) -> u64 {
        self.added_ns
    }

    fn occupancy(&self) -> u128 {
        let life_ns = u128::from(self.run_ns) + u128::from(self.off_device_ns);
        (WHOLE * u128::from(self.added_ns)).checked_div(life_ns).unwrap_or(0)
    }
}

/// The work of the invocations of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CommittedWork {
    /// Loads that have not completed.
    load_ns: u128,
    /// Invocations that have all their models.
    loaded: Committed,
    /// All invocations, as if the loads had completed.
    all: Committed,
}

impl CommittedWork {
    pub(super) fn add(&mut self, work: &Commitment) {
        self.load_ns += u128::from(work.load_ns);
        self.all.add(work);
        if !work.is_loading {
            self.loaded.add(work);
        }
    }

    /// Removes work that was added before.
    pub(super) fn remove(&mut self, work: &Commitment) {
        self.load_ns = self.load_ns.saturating_sub(u128::from(work.load_ns));
        self.all.remove(work);
        if !work.is_loading {
            self.loaded.remove(work);
        }
    }

    /// Loads committed to the copy engine.
    pub(super) fn load_ns(&self) -> u64 {
        u64::try_from(self.load_ns).unwrap_or(u64::MAX)
    }

    /// The work ahead of an invocation of loaded models.
    pub(super) fn loaded(&self) -> &Committed {
        &self.loaded
    }

    /// The work ahead of an invocation that waits for loads: that of all invocations.
    pub(super) fn all(&self) -> &Committed {
        &self.all
    }

    /// Whether invocations wait for loads.
    pub(super) fn awaits_loads(&self) -> bool {
        self.load_ns > 0 || self.all != self.loaded
    }
}

/// The sums over invocations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Committed {
    run_ns: u128,
    occupancy: u128,
    /// Sum of the squares of occupancies.
    occupancy_squared: u128,
    /// Sum of the products of device time and occupancy.
    weighted_ns: u128,
}

impl Committed {
    pub(super) fn add(&mut self, work: &Commitment) {
        let added_ns = u128::from(work.added_ns);
        let occupancy = work.occupancy();
        self.run_ns += added_ns;
        self.occupancy += occupancy;
        self.occupancy_squared += occupancy * occupancy;
        self.weighted_ns += added_ns * occupancy;
    }

    /// Removes work that was added before.
    pub(super) fn remove(&mut self, work: &Commitment) {
        let added_ns = u128::from(work.added_ns);
        let occupancy = work.occupancy();
        self.run_ns = self.run_ns.saturating_sub(added_ns);
        self.occupancy = self.occupancy.saturating_sub(occupancy);
        self.occupancy_squared = self.occupancy_squared.saturating_sub(occupancy * occupancy);
        self.weighted_ns = self.weighted_ns.saturating_sub(added_ns * occupancy);
    }

    /// Device time committed to run slots.
    pub(super) fn run_ns(&self) -> u64 {
        u64::try_from(self.run_ns).unwrap_or(u64::MAX)
    }

    /// Mean number of run slots that are asked for.
    fn mean_in_use(&self) -> f64 {
        self.occupancy as f64 / WHOLE as f64
    }

    /// Variance of the number of run slots that are asked for: 0 without time off the device.
    fn variance(&self) -> f64 {
        (self.mean_in_use() - self.occupancy_squared as f64 / (WHOLE * WHOLE) as f64).max(0.0)
    }

    /// Number of run slots in use at almost all times.
    fn slots_in_use(&self) -> f64 {
        self.mean_in_use() - SPREAD * self.variance().sqrt()
    }

    /// Whether an idle run slot is expected.
    pub(super) fn has_idle_slot(&self, slots: u32) -> bool {
        self.slots_in_use() < f64::from(slots) - IDLE
    }

    /// Work that waits until a run slot is free, divided by the number of slots.
    pub(super) fn queued_ns(&self, slots: u32) -> u64 {
        let in_use = self.slots_in_use();
        let slots = f64::from(slots);
        if in_use <= slots { 0 } else { round_ns(self.run_ns as f64 * (in_use - slots) / in_use / slots) }
    }

    /// Expected wait of one more invocation for a run slot; `first_end_after_ns` is the time until
    /// the first invocation is expected to end.
    pub(super) fn wait_ns(&self, slots: u32, first_end_after_ns: u64) -> u64 {
        let in_use = self.mean_in_use();
        let of_slots = f64::from(slots);
        let rest_ns = self.mean_run_ns().min(first_end_after_ns);
        if in_use < of_slots {
            // The probability that all slots are in use. Without time off the device, some slot is
            // idle for sure.
            let all_used = if self.variance() > 0.0 { (in_use / of_slots).powf(of_slots) } else { 0.0 };
            return round_ns(all_used * rest_ns as f64);
        }
        let queued_ns = self.run_ns as f64 * (in_use - of_slots) / in_use / of_slots;
        round_ns(queued_ns).saturating_add(rest_ns)
    }

    /// Mean device time of the invocations in run slots.
    pub(super) fn mean_run_ns(&self) -> u64 {
        let mean_ns = self.weighted_ns.checked_div(self.occupancy).unwrap_or(0);
        u64::try_from(mean_ns).unwrap_or(u64::MAX)
    }

    /// Whether one more invocation may be committed: a run slot is idle, or would be idle within
    /// `ahead_ns`.
    pub(super) fn is_below(&self, slots: u32, ahead_ns: u64) -> bool {
        self.has_idle_slot(slots)
            || self.queued_ns(slots).saturating_add(self.mean_run_ns() / u64::from(slots.max(1))) < ahead_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const AHEAD_NS: u64 = 10 * MS;

    /// Number of invocations that a device takes at once.
    fn taken(slots: u32, work: Commitment) -> u32 {
        let mut committed = Committed::default();
        let mut count = 0;
        while committed.is_below(slots, AHEAD_NS) && count < 100_000 {
            committed.add(&work);
            count += 1;
        }
        count
    }

    fn inference(run_ns: u64) -> Commitment {
        Commitment::new(run_ns, run_ns, 0, 0)
    }

    #[test]
    fn long_runs_fill_each_slot_once() {
        assert_eq!(taken(1, inference(1_300 * MS)), 1);
        assert_eq!(taken(4, inference(1_300 * MS)), 4);
        assert_eq!(taken(1, inference(u64::MAX)), 1);
    }

    #[test]
    fn hand_over_does_not_open_a_device_with_a_long_run() {
        let with_hand_over = |run_ns| Commitment::new(run_ns, run_ns, 2 * MS, 0);
        assert_eq!(taken(1, with_hand_over(1_300 * MS)), 1);
        assert_eq!(taken(1, with_hand_over(100 * MS)), 1);
        assert_eq!(taken(4, with_hand_over(1_300 * MS)), 4);
        assert_eq!(taken(1, with_hand_over(20 * MS)), 2);
    }

    #[test]
    fn short_runs_are_committed_up_to_the_bound() {
        assert_eq!(taken(1, inference(4 * MS)), 3);
        assert_eq!(taken(1, inference(MS)), 10);
        assert_eq!(taken(2, inference(4 * MS)), 6);
    }

    /// Twenty invocations with an occupancy of 5 % demand one slot, and a few more keep it busy.
    #[test]
    fn time_off_the_device_is_filled_by_other_invocations() {
        let thin = |run_ns| Commitment::new(run_ns, run_ns, 19 * run_ns, 0);
        assert!((26..=40).contains(&taken(1, thin(5 * MS))), "{}", taken(1, thin(5 * MS)));
        assert!((26..=40).contains(&taken(1, thin(500 * MS))), "{}", taken(1, thin(500 * MS)));
        assert!(taken(2, thin(5 * MS)) > 45);
        assert_eq!(
            taken(1, Commitment::new(0, 0, MS, 0)),
            100_000,
            "without device time, only pins are held"
        );
    }

    #[test]
    fn wait_is_the_work_ahead() {
        let wait_ns = |works: &[Commitment], slots, first_end_ns| {
            let mut committed = Committed::default();
            works.iter().for_each(|work| committed.add(work));
            committed.wait_ns(slots, first_end_ns)
        };
        let run = inference(100 * MS);
        assert_eq!(wait_ns(&[], 1, u64::MAX), 0);
        assert_eq!(wait_ns(&[run], 1, 30 * MS), 30 * MS);
        assert_eq!(wait_ns(&[run], 2, 30 * MS), 0);
        assert_eq!(wait_ns(&[run; 3], 1, 30 * MS), 230 * MS);
        assert_eq!(wait_ns(&[run; 4], 2, 30 * MS), 130 * MS);
        let half = Commitment::new(100 * MS, 100 * MS, 100 * MS, 0);
        assert_eq!(wait_ns(&[half], 1, u64::MAX), 50 * MS, "half of the time, the slot is in use");
        assert_eq!(wait_ns(&[half; 4], 1, u64::MAX), 300 * MS);
        // A run with a short hand-over waits for the rest of the earlier run, like a run without a
        // hand-over.
        let handed_over = Commitment::new(1_000 * MS, 1_000 * MS, MS, 0);
        assert!(wait_ns(&[handed_over], 1, 30 * MS).abs_diff(30 * MS) < MS);
    }

    #[test]
    fn joining_a_batch_adds_little() {
        let mut committed = Committed::default();
        committed.add(&inference(50 * MS));
        (0..7).for_each(|_| committed.add(&Commitment::new(50 * MS, 3 * MS, 0, 0)));
        assert_eq!(committed.run_ns(), 71 * MS);
        assert!(committed.has_idle_slot(2) && !committed.is_below(1, AHEAD_NS));
    }

    #[test]
    fn only_invocations_that_load_wait_for_loads() {
        let mut committed = CommittedWork::default();
        let cold = Commitment::new(100 * MS, 100 * MS, 0, 3_000 * MS);
        committed.add(&cold);
        assert!(committed.loaded().is_below(1, AHEAD_NS) && !committed.all().is_below(1, AHEAD_NS));
        assert_eq!(committed.load_ns(), 3_000 * MS);
        // An invocation that waits for the same load adds none.
        let joins = inference(100 * MS).loading();
        committed.add(&joins);
        assert_eq!(committed.load_ns(), 3_000 * MS);
        assert_eq!([committed.loaded(), committed.all()].map(Committed::run_ns), [0, 200 * MS]);
        for work in [cold, joins] {
            committed.remove(&work);
            committed.add(&work.loaded());
        }
        assert!(!committed.loaded().is_below(1, AHEAD_NS) && !committed.awaits_loads());
        // Its invocation may use the device for no time at all.
        committed.add(&Commitment::new(0, 0, MS, 3_000 * MS));
        assert!(committed.awaits_loads());
        committed.remove(&Commitment::new(0, 0, MS, 3_000 * MS));
        assert_eq!(committed.load_ns(), 0);
    }

    proptest! {
        /// Commitments leave in any order, and nothing is left.
        #[test]
        fn committed_work_returns_to_zero(
            all in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()), 0..80),
        ) {
            let mut all: Vec<_> = all
                .into_iter()
                .map(|(run, added, off, load, order)| (order, Commitment::new(run, added, off, load)))
                .collect();
            let mut committed = CommittedWork::default();
            all.iter().for_each(|(_, work)| committed.add(work));
            all.sort_by_key(|(order, _)| *order);
            for (order, work) in &all {
                prop_assert!(committed.all().slots_in_use() >= -SPREAD);
                prop_assert!(committed.loaded().run_ns() <= committed.all().run_ns());
                committed.remove(work);
                if order % 2 == 0 {
                    committed.add(&work.loaded());
                    committed.remove(&work.loaded());
                }
            }
            prop_assert_eq!(committed, CommittedWork::default());
        }
    }
}
