//! Faults of a cluster of three nodes under load: lost calls, repeated calls, and recovery time.
//!
//! Calls go to nodes that do not fail themselves, so that the cluster is measured instead of the
//! clients' connections. If all nodes are restarted in turn, clients retry on the next node, as a
//! load balancer would.

mod calls;
mod nodes;

use crate::args::Args;
use crate::report::{Section, TextTable};
use anyhow::{Context as _, Result};
use calls::{Callers, ClientCall, Doors};
use nodes::{ClusterProcess, Nodes};
use rustix::process::Signal;
use serde::Serialize;
use std::time::Duration;

/// Number of functions. Each runs a model, and the node that holds the model runs the function.
pub(crate) const FUNCTIONS: usize = 9;
/// Run time of a call.
const RUN_TIME_MS: f64 = 30.0;
/// Duration above which a call counts as disturbed.
const HELD_UP: Duration = Duration::from_secs(1);
/// Duration of a hang.
const AWAY: Duration = Duration::from_secs(5);
/// Heartbeat timeout and lease of the nodes: the minimum of both settings.
const LEASE_MS: u64 = 2_000;

/// Kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    KillNode,
    HangNode,
    KillDispatcher,
    EtcdAway,
    RollingRestart,
}

impl Fault {
    const ALL: [Self; 5] =
        [Self::KillNode, Self::HangNode, Self::KillDispatcher, Self::EtcdAway, Self::RollingRestart];

    fn name(self) -> &'static str {
        match self {
            Self::KillNode => "a node is killed",
            Self::HangNode => "a node hangs for 5 s",
            Self::KillDispatcher => "the dispatcher is killed",
            Self::EtcdAway => "etcd hangs for 5 s",
            Self::RollingRestart => "all nodes are restarted in turn",
        }
    }

    /// Causes the fault on the node `victim`, if it affects a node.
    fn happen(self, nodes: &mut Nodes, victim: usize) -> Result<()> {
        match self {
            Self::KillNode | Self::KillDispatcher => nodes.signal(ClusterProcess::Node(victim), Signal::KILL),
            Self::HangNode => hang(nodes, ClusterProcess::Node(victim)),
            Self::EtcdAway => hang(nodes, ClusterProcess::Etcd),
            Self::RollingRestart => (0..nodes.count()).try_for_each(|node| nodes.restart(node)),
        }
    }
}

fn hang(nodes: &Nodes, part: ClusterProcess) -> Result<()> {
    nodes.signal(part, Signal::STOP)?;
    std::thread::sleep(AWAY);
    nodes.signal(part, Signal::CONT)
}

/// Result of one fault.
#[derive(Debug, Serialize)]
struct FaultOutcome {
    fault: &'static str,
    calls: usize,
    lost: usize,
    /// Lost calls that the cluster may run again.
    lost_although_idempotent: usize,
    rescheduled: f64,
    turned_away: u32,
    slowest_ms: f64,
    recovered_after_ms: f64,
    /// Errors of the first lost calls.
    told: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<Section> {
    let outcomes = Fault::ALL
        .into_iter()
        .map(|fault| play(args, fault).with_context(|| format!("the cluster failed while {}", fault.name())));
    let outcomes = outcomes.collect::<Result<Vec<_>>>()?;
    let samples = serde_json::to_value(&outcomes)?;
    Ok(Section {
        key: "faults",
        notes: vec![format!(
            "A cluster of three nodes and an etcd runs on this machine, with leases and a heartbeat timeout of {LEASE_MS} ms. Clients call {FUNCTIONS} functions, each of which runs a model for {RUN_TIME_MS} ms; every other function is idempotent. \
             Each fault is measured in a new cluster. A call is lost if its response is not a success. A rescheduled call ran on another node after the loss of its node. A client retry is a call that a stopping or stopped node did not accept, and that the client sent to the next node. \
             The recovery time is from the fault to the end of the last call that was lost or took more than {} ms.",
            HELD_UP.as_millis()
        )],
        tables: vec![table(&outcomes)],
        samples,
    })
}

fn play(args: &Args, fault: Fault) -> Result<FaultOutcome> {
    let (before, after) = if args.quick { (1, 8) } else { (4, 16) };
    let scratch = tempfile::tempdir()?;
    let mut nodes = Nodes::start(args, scratch.path(), LEASE_MS)?;
    nodes.deploy(args, RUN_TIME_MS)?;
    let dispatcher = nodes.settle()?;
    let victim = if fault == Fault::KillDispatcher { dispatcher } else { (dispatcher + 1) % nodes.count() };
    let is_spared = |node: &usize| match fault {
        Fault::KillNode | Fault::HangNode | Fault::KillDispatcher => *node != victim,
        Fault::EtcdAway | Fault::RollingRestart => true,
    };
    let doors = (0..nodes.count()).filter(is_spared).map(|node| nodes.url(node).to_owned()).collect();
    let callers = Callers::start(&Doors::new(doors))?;
    std::thread::sleep(Duration::from_secs(before));
    let at = callers.now();
    fault.happen(&mut nodes, victim)?;
    std::thread::sleep(Duration::from_secs(after));
    let calls = callers.stop()?;
    let rescheduled = nodes.rescheduled();
    Ok(outcome(fault, &calls, at, rescheduled))
}

/// Evaluates the calls. `at` is the time of the fault.
fn outcome(fault: Fault, calls: &[ClientCall], at: Duration, rescheduled: f64) -> FaultOutcome {
    let lost: Vec<_> = calls.iter().filter(|call| call.lost.is_some()).collect();
    let disturbed = calls.iter().filter(|call| call.lost.is_some() || call.took > HELD_UP);
    let recovered = disturbed.map(|call| (call.began + call.took).saturating_sub(at)).max();
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    FaultOutcome {
        fault: fault.name(),
        calls: calls.len(),
        lost: lost.len(),
        lost_although_idempotent: lost.iter().filter(|call| call.is_idempotent).count(),
        rescheduled,
        turned_away: calls.iter().map(|call| call.turned_away).sum(),
        slowest_ms: calls.iter().map(|call| milliseconds(call.took)).fold(0.0, f64::max),
        recovered_after_ms: milliseconds(recovered.unwrap_or_default()),
        told: lost.iter().filter_map(|call| call.lost.clone()).take(3).collect(),
    }
}

fn table(outcomes: &[FaultOutcome]) -> TextTable {
    let columns = [
        "fault",
        "calls",
        "lost",
        "lost although idempotent",
        "rescheduled",
        "client retries",
        "slowest ms",
        "recovered after ms",
    ];
    let mut table = TextTable::new("Faults under load", &columns);
    for outcome in outcomes {
        table.row([
            outcome.fault.to_owned(),
            outcome.calls.to_string(),
            outcome.lost.to_string(),
            outcome.lost_although_idempotent.to_string(),
            format!("{:.0}", outcome.rescheduled),
            outcome.turned_away.to_string(),
            format!("{:.0}", outcome.slowest_ms),
            format!("{:.0}", outcome.recovered_after_ms),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_time_is_the_end_of_the_last_disturbed_call() {
        let call = |began_ms, took_ms, lost: Option<&str>, is_idempotent| ClientCall {
            began: Duration::from_millis(began_ms),
            took: Duration::from_millis(took_ms),
            is_idempotent,
            turned_away: 1,
            lost: lost.map(str::to_owned),
        };
        let calls = [
            call(0, 30, None, true),
            call(990, 40, Some("502"), false),
            call(1_100, 1_500, None, true),
            call(5_000, 30, None, true),
        ];
        let outcome = outcome(Fault::KillNode, &calls, Duration::from_millis(1_000), 1.0);
        assert_eq!((outcome.calls, outcome.lost, outcome.lost_although_idempotent), (4, 1, 0));
        assert_eq!(
            (outcome.slowest_ms, outcome.recovered_after_ms, outcome.turned_away),
            (1_500.0, 1_600.0, 4)
        );
        assert_eq!(super::outcome(Fault::EtcdAway, &calls[..1], Duration::ZERO, 0.0).recovered_after_ms, 0.0);
    }
}
