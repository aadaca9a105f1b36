//! Groups of devices: which dispatcher places an invocation, if there are several.
//!
//! One dispatcher places at most some ten thousand invocations per second. A larger cluster divides
//! its devices into groups with a dispatcher each. A [`GroupRouter`] chooses the group of an
//! invocation, and the group's dispatcher chooses the device as in a cluster without groups.
//!
//! - *Home groups.* Rendezvous hashing gives each family of models an order of preference over the
//!   groups, weighted by their devices. Routers agree on it without communication, and a change of
//!   the groups moves only the families of the groups that changed.
//! - *Width.* A family uses the first groups of its order: as many as its demand needs, where
//!   [`SHARE`] of a group's devices may belong to one family. Dispatchers report the demand, so all
//!   routers widen a popular family.
//! - *Two choices.* Each invocation has two of the family's groups as candidates. The router chooses
//!   the candidate with less work per run slot.
//! - *Overflow.* If both candidates have more work than the average group, by at least the time of a
//!   load, the family uses the next group of its order as well, for [`OVERFLOW_NS`].
//!
//! Reports are old by up to an interval. Meanwhile, a router adds the work that it has sent itself,
//! so that it does not send everything to the group that was idle at the last report.

mod demand;
pub use demand::DemandMeter;

use std::collections::{BTreeMap, HashMap};
use weir_types::DeviceId;

/// Part of a group's run slots that the demand of one family may occupy before the family uses a
/// further group.
const SHARE: f64 = 0.1;

/// Time for which a family uses a group that it overflowed to.
const OVERFLOW_NS: u64 = 20_000_000_000;

/// Number of families that a router remembers. Orders of other families are computed again.
const FAMILIES_MAX: usize = 65_536;

/// A group of devices with its own dispatcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// A family of models: models that share weights, and should therefore share devices. Routers of
/// different nodes and versions compute equal keys from equal names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FamilyKey(u64);

impl FamilyKey {
    /// Creates the key of a family from the parts of its name.
    #[must_use]
    pub fn new(tenant: &str, name: &str) -> Self {
        // FNV-1a, with a byte that no name contains as the separator.
        let bytes = tenant.bytes().chain([0xff]).chain(name.bytes());
        Self(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        }))
    }
}

/// Work of the devices of a scheduler, by device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceBacklogs {
    /// Devices by node and ordinal, with the predicted device time, in nanoseconds, of the invocations
    /// that have not ended on them, with their loads.
    pub devices: Vec<(DeviceId, u64)>,
    /// The sum of further devices; `None` without any.
    pub others_ns: Option<u64>,
}

/// Work of a scheduler's devices, and the work that waits for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Devices that are up.
    pub devices: u32,
    /// Run slots of these devices.
    pub slots: u32,
    /// Predicted device time, in nanoseconds, of the invocations that have not ended on the devices,
    /// with their loads.
    pub committed_ns: u64,
    /// Predicted device time, in nanoseconds, of the invocations that wait for a device. Above 0 as
    /// soon as an invocation waits while there is no device.
    pub waiting_ns: u64,
    /// Number of invocations that wait for a device, or for their tenant's turn.
    pub waiting: u64,
}

/// Periodic report of a group's dispatcher.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupReport {
    /// The work of the group.
    pub backlog: Backlog,
    /// Demand of the families that occupy the most run slots, in run slots: device time that arrives
    /// per unit of time.
    pub demands: Vec<(FamilyKey, f64)>,
}

/// An invocation to route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoutedCall {
    /// The family of its largest model.
    pub family: FamilyKey,
    /// A number that differs between invocations, for the choice of the candidates.
    pub number: u64,
    /// Predicted device time, in nanoseconds.
    pub run_time_ns: u64,
    /// Predicted time of loading its models, in nanoseconds.
    pub load_time_ns: u64,
}

/// Chooses the groups of invocations.
#[derive(Debug, Default)]
pub struct GroupRouter {
    groups: BTreeMap<GroupId, KnownGroup>,
    /// Demand of families over all groups, in run slots.
    demands: HashMap<FamilyKey, f64>,
    families: HashMap<FamilyKey, RoutedFamily>,
    /// Run slots of all groups.
    slots: u64,
    /// Work of all groups, with the work sent since their reports.
    work_ns: u64,
}

/// The groups of a family.
#[derive(Debug)]
struct RoutedFamily {
    /// The groups with devices, in order of preference.
    order: Vec<GroupId>,
    /// The number of groups that the family used at its last overflow, and when this ends.
    overflow: (usize, u64),
}

#[derive(Debug, Default)]
struct KnownGroup {
    report: GroupReport,
    /// Predicted work of the invocations sent there since the report.
    sent_ns: u64,
}

impl KnownGroup {
    fn work_ns(&self) -> u64 {
        let Backlog { committed_ns, waiting_ns, .. } = self.report.backlog;
        committed_ns.saturating_add(waiting_ns).saturating_add(self.sent_ns)
    }
}

impl GroupRouter {
    /// Adds a group or replaces its report.
    pub fn report(&mut self, group: GroupId, report: GroupReport) {
        let slots = report.backlog.slots;
        for (family, slots) in &report.demands {
            *self.demands.entry(*family).or_default() += slots;
        }
        let known = KnownGroup { report, sent_ns: 0 };
        self.work_ns = self.work_ns.saturating_add(known.work_ns());
        let before = self.groups.insert(group, known);
        if before.as_ref().is_none_or(|before| before.report.backlog.slots != slots) {
            self.families.clear();
        }
        self.slots += u64::from(slots);
        self.withdraw(before);
    }

    /// Removes a group whose dispatcher is gone.
    pub fn remove(&mut self, group: GroupId) {
        let before = self.groups.remove(&group);
        if before.is_some() {
            self.families.clear();
        }
        self.withdraw(before);
    }

    /// Chooses the group of an invocation that arrives at `now_ns`; `None` if no group has a device.
    pub fn route(&mut self, now_ns: u64, call: &RoutedCall) -> Option<GroupId> {
        let demanded = self.width(call.family);
        let RoutedFamily { order, overflow: (used, until_ns) } = self.family(call.family);
        let width = demanded.max(if now_ns < *until_ns { *used } else { 0 }).min(order.len());
        let [first, second] = candidates(width, call.number)?.map(|rank| order[rank]);
        let next = order.get(width).copied();
        let [first_ns, second_ns] = [first, second].map(|group| self.per_slot_ns(group));
        let mut chosen = if second_ns < first_ns { second } else { first };
        let mean_ns = self.work_ns / self.slots.max(1);
        if let Some(next) = next
            && first_ns.min(second_ns) > mean_ns.saturating_add(call.load_time_ns)
        {
            self.family(call.family).overflow = (width + 1, now_ns.saturating_add(OVERFLOW_NS));
            chosen = next;
        }
        let known = self.groups.get_mut(&chosen)?;
        known.sent_ns = known.sent_ns.saturating_add(call.run_time_ns);
        self.work_ns = self.work_ns.saturating_add(call.run_time_ns);
        Some(chosen)
    }

    fn per_slot_ns(&self, group: GroupId) -> u64 {
        self.groups.get(&group).map_or(u64::MAX, |known| {
            known.work_ns().checked_div(u64::from(known.report.backlog.slots)).unwrap_or(u64::MAX)
        })
    }

    /// The group that a family prefers; `None` if no group has a device.
    pub fn home(&mut self, family: FamilyKey) -> Option<GroupId> {
        self.family(family).order.first().copied()
    }

    /// The number of groups that a family uses.
    #[must_use]
    pub fn width(&self, family: FamilyKey) -> usize {
        let each = self.slots as f64 / self.groups.len().max(1) as f64 * SHARE;
        let demand = self.demands.get(&family).copied().unwrap_or(0.0);
        let groups = if each > 0.0 { (demand / each).ceil() } else { 1.0 };
        (groups as usize).clamp(1, self.groups.len().max(1))
    }

    /// Subtracts the run slots, the work and the demand of an earlier report.
    fn withdraw(&mut self, before: Option<KnownGroup>) {
        let Some(before) = before else { return };
        self.slots -= u64::from(before.report.backlog.slots);
        self.work_ns = self.work_ns.saturating_sub(before.work_ns());
        for (family, slots) in before.report.demands {
            if let Some(demand) = self.demands.get_mut(&family) {
                *demand -= slots;
                // Sums of floats rarely return to exactly zero.
                if *demand < 1e-6 {
                    self.demands.remove(&family);
                }
            }
        }
    }

    fn family(&mut self, family: FamilyKey) -> &mut RoutedFamily {
        if self.families.len() >= FAMILIES_MAX && !self.families.contains_key(&family) {
            self.families.clear();
        }
        let groups = &self.groups;
        self.families.entry(family).or_insert_with(|| {
            let scored = groups.iter().filter(|(_, group)| group.report.backlog.slots > 0);
            let mut scored: Vec<_> =
                scored.map(|(id, group)| (score(family, *id, group.report.backlog.slots), *id)).collect();
            scored.sort_by(|(a, a_id), (b, b_id)| b.total_cmp(a).then(a_id.cmp(b_id)));
            RoutedFamily { order: scored.into_iter().map(|(_, id)| id).collect(), overflow: (0, 0) }
        })
    }
}

/// The ranks of two candidates among the `width` groups of a family; equal if there is one group.
fn candidates(width: usize, number: u64) -> Option<[usize; 2]> {
    if width < 2 {
        return (width == 1).then_some([0, 0]);
    }
    let draw = mixed(number);
    let first = (draw >> 32) as usize % width;
    let other = (draw & 0xffff_ffff) as usize % (width - 1);
    Some([first, if other < first { other } else { other + 1 }])
}

/// Weighted rendezvous hashing: a group is first with a probability in proportion to its run slots.
fn score(family: FamilyKey, group: GroupId, slots: u32) -> f64 {
    let draw = mixed(family.0 ^ mixed(u64::from(group.0)));
    // Uniform in (0, 1).
    let uniform = ((draw >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -f64::from(slots) / uniform.ln()
}

/// The finalizer of SplitMix64: a bijection whose results look random.
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests;
