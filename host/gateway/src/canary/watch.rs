//! The watch over canaries: the dispatcher of a cluster, or a node without one, judges each canary
//! every second by its calls on all nodes, and promotes it or rolls it back.
//!
//! A new dispatcher begins with the counts that the nodes have, so a change of the dispatcher loses
//! only the division into latest and earlier calls.

use super::age;
use super::subject::{CanaryFault, CanaryKey, CanarySubject};
use crate::NodeState;
use serde::de::DeserializeOwned;
use std::collections::{HashMap, HashSet};
use std::sync::Weak;
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;
use weir_control::canary::{RecentCalls, TrialCounts, Verdict, compare, judge, judge_recent};
use weir_types::NodeId;
use weir_types::api::EventKind;

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
        let canaries = if leads() { CanarySubject::all(&node) } else { Vec::new() };
        let current: HashSet<&CanaryKey> = canaries.iter().map(|subject| &subject.key).collect();
        recent.retain(|canary, _| current.contains(canary));
        if canaries.is_empty() {
            continue;
        }
        let (elsewhere, _) = counts_elsewhere(&node).await;
        for subject in canaries {
            decide(&node, &subject, &elsewhere, &mut recent).await;
        }
    }
}

/// The latest calls of each canary. Has no more entries than there are canaries.
type Recent = HashMap<CanaryKey, RecentCalls>;

/// Decides about one canary.
async fn decide(node: &NodeState, subject: &CanarySubject, elsewhere: &[TrialCounts], recent: &mut Recent) {
    let CanaryKey { of, tenant, name, canary } = &subject.key;
    let version = canary.version;
    let resource = of.resource();
    let (new, active) = subject.observed(elsewhere);
    let now = Instant::now();
    let recent = recent.entry(subject.key.clone()).or_insert_with(|| RecentCalls::new(now));
    let (recent_new, recent_active) = recent.advance(now, &new, &active);
    let mut verdict = judge(*canary, age(*canary), &new, &active);
    let mut numbers = compare(&new, (subject.active, &active));
    if !matches!(verdict, Verdict::RollBack(_))
        && let Some(reason) = judge_recent(&recent_new, &recent_active)
    {
        verdict = Verdict::RollBack(reason);
        numbers = format!("lately, {}", compare(&recent_new, (subject.active, &recent_active)));
    }
    let (changed, kind, text) = match verdict {
        Verdict::Continue => return,
        Verdict::Promote => (
            subject.promote(node).await,
            EventKind::CanaryPromoted,
            format!("version {version} of {resource} {name} was promoted: {numbers}"),
        ),
        Verdict::RollBack(reason) => (
            subject.end(node).await,
            EventKind::CanaryRolledBack,
            format!("canary {version} of {resource} {name} was rolled back, because {reason}: {numbers}"),
        ),
    };
    match changed {
        Ok(()) => subject.note(node, kind, text),
        // A request was first.
        Err(CanaryFault::Superseded) => {}
        Err(CanaryFault::Failed(error)) => {
            tracing::warn!(%tenant, %name, error, "{kind} of a {resource} failed; it is tried again");
        }
    }
}

/// The counts of this node, for the other nodes.
pub(crate) fn counts_here(node: &NodeState) -> Vec<TrialCounts> {
    CanarySubject::all(node).iter().filter_map(CanarySubject::counts).collect()
}

/// The counts of the other nodes, and the nodes that did not answer.
pub(super) async fn counts_elsewhere(node: &NodeState) -> (Vec<TrialCounts>, Vec<NodeId>) {
    lists_elsewhere(node, CANARIES_PATH).await
}

/// The lists that the other nodes give at `path`, together, and the nodes that did not answer.
pub(crate) async fn lists_elsewhere<T: DeserializeOwned>(
    node: &NodeState,
    path: &str,
) -> (Vec<T>, Vec<NodeId>) {
    let Some(cluster) = &node.cluster else { return Default::default() };
    let answers = cluster.ask_others::<Vec<T>>(|_| path.to_owned()).await;
    let mut all = Vec::new();
    let mut unreachable = Vec::new();
    for (node, answer) in answers {
        match answer {
            Some(list) => all.extend(list),
            None => unreachable.push(node),
        }
    }
    (all, unreachable)
}
