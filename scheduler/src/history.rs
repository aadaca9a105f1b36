//! The latest decisions about invocations by tenant, with reasons and outcomes: they tell a tenant
//! why a call ran where it did.

use crate::{Action, EstimateRatio, InvocationOutcome, Rejection, Why};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};
use weir_types::{DeviceId, InvocationId, NodeId, TenantId};

/// The decision about an invocation, and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlacementRecord {
    /// The invocation.
    #[serde(with = "weir_types::invocation_digits")]
    pub invocation: InvocationId,
    /// The node that runs it; `None` if it was rejected.
    pub node: Option<NodeId>,
    /// The device; `None` without models.
    pub device: Option<DeviceId>,
    /// Why it was rejected, if it was.
    pub rejection: Option<Rejection>,
    /// The reasons of the placement. Of a rejection, the best estimate, and as alternatives the
    /// devices that came closest, the best one included.
    pub why: Why,
    /// Its actual times, once it has ended.
    pub outcome: Option<InvocationOutcome>,
}

impl PlacementRecord {
    /// The record of an action that decides about an invocation; `None` for other actions.
    #[must_use]
    pub fn for_action(action: &Action) -> Option<Self> {
        match action {
            Action::Start { invocation, node, device, why, .. } => Some(Self {
                invocation: *invocation,
                node: Some(*node),
                device: *device,
                rejection: None,
                why: why.clone(),
                outcome: None,
            }),
            Action::Reject { invocation, why, estimate, alternatives } => Some(Self {
                invocation: *invocation,
                node: None,
                device: None,
                rejection: Some(*why),
                why: Why { estimate: *estimate, alternatives: alternatives.clone(), queued_ns: 0 },
                outcome: None,
            }),
            Action::Reserved { .. } | Action::Load { .. } | Action::Release { .. } | Action::WakeAt(_) => {
                None
            }
        }
    }
}

/// The latest placements by tenant. A full history drops the oldest placement of the tenant; with
/// too many tenants, it drops the tenant whose latest placement is oldest.
#[derive(Debug)]
pub struct PlacementHistory {
    per_tenant_max: usize,
    tenants_max: usize,
    tenants: HashMap<TenantId, Placements>,
    /// Tenants by the number of their latest placement.
    by_latest: BTreeMap<u64, TenantId>,
    recorded: u64,
}

#[derive(Debug, Default)]
struct Placements {
    latest: u64,
    /// Numbers of the first and the following placements are consecutive.
    first: u64,
    records: VecDeque<PlacementRecord>,
    numbers: HashMap<InvocationId, u64>,
}

impl PlacementHistory {
    /// An empty history of at most `per_tenant_max` placements for each of at most `tenants_max`
    /// tenants.
    #[must_use]
    pub fn new(per_tenant_max: usize, tenants_max: usize) -> Self {
        let (tenants, by_latest) = Default::default();
        Self { per_tenant_max, tenants_max, tenants, by_latest, recorded: 0 }
    }

    /// Adds a placement.
    pub fn add(&mut self, tenant: &TenantId, record: PlacementRecord) {
        if self.per_tenant_max == 0 || self.tenants_max == 0 {
            return;
        }
        if !self.tenants.contains_key(tenant)
            && self.tenants.len() >= self.tenants_max
            && let Some((_, oldest)) = self.by_latest.pop_first()
        {
            self.tenants.remove(&oldest);
        }
        self.recorded += 1;
        let placements = self.tenants.entry(tenant.clone()).or_default();
        self.by_latest.remove(&placements.latest);
        placements.latest = self.recorded;
        self.by_latest.insert(self.recorded, tenant.clone());
        placements.add(record, self.per_tenant_max);
    }

    /// A tenant's placement, if it is kept.
    #[must_use]
    pub fn get(&self, tenant: &TenantId, invocation: InvocationId) -> Option<&PlacementRecord> {
        let placements = self.tenants.get(tenant)?;
        placements.records.get(placements.index(invocation)?)
    }

    /// Adds the outcome of an invocation that has ended. Returns the ratio of its estimate to the
    /// outcome, if its placement is kept.
    pub fn end(
        &mut self,
        tenant: &TenantId,
        invocation: InvocationId,
        outcome: InvocationOutcome,
    ) -> Option<EstimateRatio> {
        let placements = self.tenants.get_mut(tenant)?;
        let index = placements.index(invocation)?;
        let record = placements.records.get_mut(index)?;
        record.outcome = Some(outcome);
        Some(record.why.compare(&outcome))
    }

    /// Number of placements that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tenants.values().map(|placements| placements.records.len()).sum()
    }

    /// Whether no placement is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }
}

impl Placements {
    fn add(&mut self, record: PlacementRecord, len_max: usize) {
        if self.records.len() >= len_max
            && let Some(oldest) = self.records.pop_front()
        {
            if self.numbers.get(&oldest.invocation) == Some(&self.first) {
                self.numbers.remove(&oldest.invocation);
            }
            self.first += 1;
        }
        self.numbers.insert(record.invocation, self.first + self.records.len() as u64);
        self.records.push_back(record);
    }

    fn index(&self, invocation: InvocationId) -> Option<usize> {
        usize::try_from(self.numbers.get(&invocation)?.checked_sub(self.first)?).ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::{Alternative, Estimate};
    use proptest::prelude::*;

    fn tenant(index: u8) -> TenantId {
        TenantId::new(&format!("t{index}")).unwrap()
    }

    fn record(invocation: u64, run_time_ns: u64) -> PlacementRecord {
        let estimate = Estimate { run_time_ns, ..Estimate::default() };
        PlacementRecord::for_action(&Action::Start {
            invocation: InvocationId(invocation),
            node: NodeId(0),
            device: None,
            evict: Vec::new(),
            why: Why { estimate, ..Why::default() },
        })
        .unwrap()
    }

    #[test]
    fn outcome_joins_its_placement() {
        let mut history = PlacementHistory::new(2, 2);
        history.add(&tenant(0), record(7, 100));
        let outcome = InvocationOutcome { run_time_ns: 50, ..InvocationOutcome::default() };
        let ratio = history.end(&tenant(0), InvocationId(7), outcome).unwrap();
        assert_eq!(ratio.run, Some(2.0));
        assert_eq!(history.get(&tenant(0), InvocationId(7)).unwrap().outcome, Some(outcome));
        assert_eq!(
            history.get(&tenant(1), InvocationId(7)),
            None,
            "placements of other tenants are not found"
        );
        assert_eq!(history.end(&tenant(0), InvocationId(8), outcome), None);
    }

    #[test]
    fn rejection_is_kept_with_its_estimate() {
        let invocation = InvocationId(3);
        let estimate = Estimate { wait_ns: 9, ..Estimate::default() };
        let device = DeviceId { node: NodeId(1), ordinal: 2 };
        let alternatives = vec![Alternative { device, estimate }];
        let action =
            Action::Reject { invocation, why: Rejection::Slo, estimate, alternatives: alternatives.clone() };
        let record = PlacementRecord::for_action(&action).unwrap();
        assert_eq!(
            (record.node, record.rejection, record.why.estimate),
            (None, Some(Rejection::Slo), estimate)
        );
        assert_eq!(record.why.alternatives, alternatives);
        let json = serde_json::to_string(&record).unwrap();
        assert!(json.starts_with(r#"{"invocation":"0000000000000003","#), "{json}");
        assert_eq!(serde_json::from_str::<PlacementRecord>(&json).unwrap(), record);
    }

    proptest! {
        /// Each tenant has its latest placements, and the tenants are the latest.
        #[test]
        fn history_keeps_the_latest_placements(adds in prop::collection::vec((0_u8..5, 0_u64..30), 0..200)) {
            let mut history = PlacementHistory::new(4, 3);
            let mut all: Vec<(u8, Vec<u64>)> = Vec::new();
            for (number, (index, invocation)) in (0..).zip(adds) {
                history.add(&tenant(index), record(invocation, number));
                let mut own =
                    all.iter().position(|(other, _)| *other == index).map_or(Vec::new(), |at| all.remove(at).1);
                own.push(invocation);
                own.drain(..own.len().saturating_sub(4));
                all.push((index, own));
                all.drain(..all.len().saturating_sub(3));
                prop_assert_eq!(history.len(), all.iter().map(|(_, own)| own.len()).sum::<usize>());
                for index in 0..5 {
                    let own = all.iter().find(|(other, _)| *other == index).map_or(&[][..], |(_, own)| own);
                    for invocation in 0..30 {
                        let found = history.get(&tenant(index), InvocationId(invocation));
                        prop_assert_eq!(found.is_some(), own.contains(&invocation));
                    }
                }
                let latest = history.get(&tenant(index), InvocationId(invocation)).unwrap();
                prop_assert_eq!(latest.why.estimate.run_time_ns, number);
            }
        }
    }
}
