//! The watch over canaries: the dispatcher of a cluster, or a node without one, judges each canary
//! every second by its calls on all nodes, and promotes it or rolls it back.
//!
//! A new dispatcher begins with the counts that the nodes have, so a change of the dispatcher loses
//! only the division into latest and earlier calls.

use super::age;
use crate::NodeState;
use crate::versions::VersionedResource;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;
use weir_control::registry::{
    FunctionEntry, FunctionParts, Observed, RecentCalls, RegistryError, TrialCounts, Verdict, compare, judge,
    judge_recent,
};
use weir_types::api::{Canary, EventKind};
use weir_types::{Name, NodeId, TenantId};

/// The path of the counts for other nodes of the cluster.
pub(crate) const CANARIES_PATH: &str = "/cluster/v1/canaries";

/// The interval of decisions.
const JUDGE_EVERY: Duration = Duration::from_secs(1);

/// Judges canaries while this node leads, until the node ends.
pub async fn watch_canaries(node: Weak<NodeState>, leads: impl Fn() -> bool) {
    let mut ticks = tokio::time::interval(JUDGE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut recent = Recent::default();
    loop {
        ticks.tick().await;
        let Some(node) = node.upgrade() else { return };
        let canaries = if leads() { node.registry.canaries() } else { Vec::new() };
        let current: HashSet<_> = canaries.iter().filter_map(|(tenant, entry)| key(tenant, entry)).collect();
        recent.retain(|canary, _| current.contains(canary));
        if canaries.is_empty() {
            continue;
        }
        let (elsewhere, _) = counts_elsewhere(&node).await;
        for (tenant, entry) in canaries {
            decide(&node, &tenant, &entry, &elsewhere, &mut recent).await;
        }
    }
}

/// A canary of a function.
type CanaryKey = (TenantId, Name, Canary);

/// The latest calls of each canary. Has no more entries than there are canaries.
type Recent = HashMap<CanaryKey, RecentCalls>;

fn key(tenant: &TenantId, entry: &FunctionEntry) -> Option<CanaryKey> {
    Some((tenant.clone(), entry.name.clone(), entry.head.canary?))
}

/// Decides about the canary of one function.
async fn decide(
    node: &NodeState,
    tenant: &TenantId,
    entry: &FunctionEntry,
    elsewhere: &[TrialCounts],
    recent: &mut Recent,
) {
    let Some(key) = key(tenant, entry) else { return };
    let canary = key.2;
    let name = &entry.name;
    let version = canary.version;
    let (new, active) = observed(tenant, entry, canary, elsewhere);
    let now = Instant::now();
    let recent = recent.entry(key).or_insert_with(|| RecentCalls::new(now));
    let (recent_new, recent_active) = recent.advance(now, &new, &active);
    let mut verdict = judge(canary, age(canary), &new, &active);
    let mut numbers = compare(&new, (entry.head.active, &active));
    if !matches!(verdict, Verdict::RollBack(_))
        && let Some(reason) = judge_recent(&recent_new, &recent_active)
    {
        verdict = Verdict::RollBack(reason);
        numbers = format!("lately, {}", compare(&recent_new, (entry.head.active, &recent_active)));
    }
    let (changed, kind, text) = match verdict {
        Verdict::Continue => return,
        Verdict::Promote => (
            node.registry.promote(tenant, name, Some(canary)).await,
            EventKind::CanaryPromoted,
            format!("version {version} of function {name} was promoted: {numbers}"),
        ),
        Verdict::RollBack(reason) => (
            node.registry.end_canary(tenant, name, canary).await,
            EventKind::CanaryRolledBack,
            format!("canary {version} of function {name} was rolled back, because {reason}: {numbers}"),
        ),
    };
    match changed {
        Ok(_) => {
            node.note_canary(kind, tenant, name, text);
            FunctionParts::rolled_back(node);
        }
        // A request was first.
        Err(RegistryError::NoCanary(..) | RegistryError::NotThere(..)) => {}
        Err(error) => tracing::warn!(%tenant, function = %name, %error, "{kind} failed; it is tried again"),
    }
}

/// The calls of a canary and of the active version, on all nodes.
pub(super) fn observed(
    tenant: &TenantId,
    entry: &FunctionEntry,
    canary: Canary,
    elsewhere: &[TrialCounts],
) -> (Observed, Observed) {
    let (mut new, mut active) = entry.shared.trial.observed(canary).unwrap_or_default();
    let is_same = |counts: &&TrialCounts| {
        let is_same_canary = counts.version == canary.version && counts.started_at_ms == canary.started_at_ms;
        is_same_canary && counts.tenant == *tenant && counts.name == entry.name
    };
    for counts in elsewhere.iter().filter(is_same) {
        new.add(&counts.canary);
        active.add(&counts.active);
    }
    (new, active)
}

/// The counts of this node, for the other nodes.
pub(crate) fn counts_here(node: &NodeState) -> Vec<TrialCounts> {
    let counts = |(tenant, entry): (TenantId, Arc<FunctionEntry>)| {
        let trial = entry.head.canary?;
        let (canary, active) = entry.shared.trial.observed(trial)?;
        let Canary { version, started_at_ms, .. } = trial;
        Some(TrialCounts { tenant, name: entry.name.clone(), version, started_at_ms, canary, active })
    };
    node.registry.canaries().into_iter().filter_map(counts).collect()
}

/// The counts of the other nodes, and the nodes that did not answer.
pub(super) async fn counts_elsewhere(node: &NodeState) -> (Vec<TrialCounts>, Vec<NodeId>) {
    let Some(cluster) = &node.cluster else { return Default::default() };
    let answers = cluster.ask_others::<Vec<TrialCounts>>(|_| CANARIES_PATH.to_owned()).await;
    let mut all = Vec::new();
    let mut unreachable = Vec::new();
    for (node, answer) in answers {
        match answer {
            Some(counts) => all.extend(counts),
            None => unreachable.push(node),
        }
    }
    (all, unreachable)
}
