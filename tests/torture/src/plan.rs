//! Faults of a run, chosen by its seed alone: equal seeds give equal faults in equal order, whatever
//! the time that they take.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Number of nodes of the cluster.
pub const NODES: usize = 3;

/// Pause between two steps, in milliseconds.
const PAUSE_MS: std::ops::Range<u64> = 300..4_000;
/// Pause before a step that meets a healed cluster, so that its faults are the only ones.
const LONG_PAUSE_MS: std::ops::Range<u64> = 12_000..15_000;
/// Chance of a long pause.
const LONG_PAUSE: f64 = 0.25;
/// Chance of a second fault at the same time.
const SECOND: f64 = 0.25;

/// How a link is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// Connections are closed, and new ones are refused.
    Refuse,
    /// Connections stay open and carry nothing, as in a network that loses all packets.
    Silence,
}

/// Fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum Fault {
    /// SIGKILL for a node, which starts again.
    KillNode {
        /// Index of the node.
        node: usize,
        /// Time until the new start.
        down_ms: u64,
    },
    /// SIGTERM for a node, which drains, ends and starts again.
    TerminateNode {
        /// Index of the node.
        node: usize,
        /// Time from its end to the new start.
        down_ms: u64,
    },
    /// SIGSTOP for a node, and SIGCONT.
    PauseNode {
        /// Index of the node.
        node: usize,
        /// Time between the signals.
        for_ms: u64,
    },
    /// SIGKILL for the worker process of the models of a node.
    KillWorker {
        /// Index of the node.
        node: usize,
    },
    /// SIGKILL for all nodes, which start again.
    KillAllNodes {
        /// Time until the new start.
        down_ms: u64,
    },
    /// SIGKILL for etcd, which starts again on its data.
    KillEtcd {
        /// Time until the new start.
        down_ms: u64,
    },
    /// SIGSTOP for etcd, and SIGCONT.
    PauseEtcd {
        /// Time between the signals.
        for_ms: u64,
    },
    /// A node cannot reach etcd.
    CutEtcd {
        /// Index of the node.
        node: usize,
        /// How the link is cut.
        how: Cut,
        /// Duration.
        for_ms: u64,
    },
    /// Other nodes cannot reach a node, which can reach them.
    CutPeer {
        /// Index of the node.
        node: usize,
        /// How the links are cut.
        how: Cut,
        /// Duration.
        for_ms: u64,
    },
    /// Other nodes cannot reach a node, which cannot reach etcd.
    Isolate {
        /// Index of the node.
        node: usize,
        /// How the links are cut.
        how: Cut,
        /// Duration.
        for_ms: u64,
    },
}

/// Part of the cluster that a fault affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// One node, or its links.
    Node(usize),
    /// All nodes.
    AllNodes,
    /// Etcd.
    Etcd,
}

impl Fault {
    /// Part of the cluster that the fault affects.
    #[must_use]
    pub fn target(&self) -> Target {
        match *self {
            Self::KillNode { node, .. }
            | Self::TerminateNode { node, .. }
            | Self::PauseNode { node, .. }
            | Self::KillWorker { node }
            | Self::CutEtcd { node, .. }
            | Self::CutPeer { node, .. }
            | Self::Isolate { node, .. } => Target::Node(node),
            Self::KillAllNodes { .. } => Target::AllNodes,
            Self::KillEtcd { .. } | Self::PauseEtcd { .. } => Target::Etcd,
        }
    }

    /// Name of the kind, for the summary.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::KillNode { .. } => "node killed",
            Self::TerminateNode { .. } => "node terminated",
            Self::PauseNode { .. } => "node paused",
            Self::KillWorker { .. } => "model worker killed",
            Self::KillAllNodes { .. } => "all nodes killed",
            Self::KillEtcd { .. } => "etcd killed",
            Self::PauseEtcd { .. } => "etcd paused",
            Self::CutEtcd { .. } => "node cut from etcd",
            Self::CutPeer { .. } => "node cut from nodes",
            Self::Isolate { .. } => "node isolated",
        }
    }

    /// Whether both faults can be caused at the same time.
    fn is_beside(&self, other: &Self) -> bool {
        let is_everything = |target| matches!(target, Target::AllNodes);
        self.target() != other.target() && !is_everything(self.target()) && !is_everything(other.target())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::KillNode { node, down_ms } => write!(f, "kill node {node}, down for {down_ms} ms"),
            Self::TerminateNode { node, down_ms } => {
                write!(f, "terminate node {node}, down for {down_ms} ms")
            }
            Self::PauseNode { node, for_ms } => write!(f, "pause node {node} for {for_ms} ms"),
            Self::KillWorker { node } => write!(f, "kill the model worker of node {node}"),
            Self::KillAllNodes { down_ms } => write!(f, "kill all nodes, down for {down_ms} ms"),
            Self::KillEtcd { down_ms } => write!(f, "kill etcd, down for {down_ms} ms"),
            Self::PauseEtcd { for_ms } => write!(f, "pause etcd for {for_ms} ms"),
            Self::CutEtcd { node, how, for_ms } => {
                write!(f, "cut node {node} from etcd ({how}) for {for_ms} ms")
            }
            Self::CutPeer { node, how, for_ms } => {
                write!(f, "cut node {node} from other nodes ({how}) for {for_ms} ms")
            }
            Self::Isolate { node, how, for_ms } => write!(f, "isolate node {node} ({how}) for {for_ms} ms"),
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refuse => "connections refused",
            Self::Silence => "packets lost",
        })
    }
}

/// Faults that are caused at the same time, after a pause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Pause before the faults.
    pub pause_ms: u64,
    /// One fault, or two with different targets.
    pub faults: Vec<Fault>,
}

/// Endless sequence of steps.
#[derive(Debug)]
pub struct Plan(StdRng);

impl Plan {
    /// Returns the plan of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    fn fault(&mut self) -> Fault {
        let random = &mut self.0;
        let node = random.random_range(0..NODES);
        let how = if random.random_bool(0.5) { Cut::Refuse } else { Cut::Silence };
        // Shorter and longer than the lease and the heartbeat timeout of the nodes.
        let for_ms = if random.random_bool(0.5) {
            random.random_range(200..1_500)
        } else {
            random.random_range(2_500..8_000)
        };
        let down_ms = if random.random_bool(0.5) { 0 } else { random.random_range(100..5_000) };
        // The weights are out of 100.
        match random.random_range(0..100) {
            0..20 => Fault::KillNode { node, down_ms },
            20..32 => Fault::TerminateNode { node, down_ms },
            32..47 => Fault::PauseNode { node, for_ms },
            47..54 => Fault::KillWorker { node },
            54..58 => Fault::KillAllNodes { down_ms },
            58..66 => Fault::KillEtcd { down_ms },
            66..73 => Fault::PauseEtcd { for_ms },
            73..82 => Fault::CutEtcd { node, how, for_ms },
            82..91 => Fault::CutPeer { node, how, for_ms },
            _ => Fault::Isolate { node, how, for_ms },
        }
    }
}

impl Iterator for Plan {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let is_long = self.0.random_bool(LONG_PAUSE);
        let pause_ms = self.0.random_range(if is_long { LONG_PAUSE_MS } else { PAUSE_MS });
        let mut faults = vec![self.fault()];
        if self.0.random_bool(SECOND) {
            // Several candidates, because many do not fit beside the first fault.
            let candidates: Vec<Fault> = (0..8).map(|_| self.fault()).collect();
            let fitting: Vec<Fault> =
                candidates.into_iter().filter(|second| second.is_beside(&faults[0])).collect();
            faults.extend(fitting.choose(&mut self.0).copied());
        }
        Some(Step { pause_ms, faults })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn equal_seeds_give_equal_faults() {
        let steps = |seed| Plan::new(seed).take(200).collect::<Vec<_>>();
        assert_eq!(steps(7), steps(7));
        assert_ne!(steps(7), steps(8));
    }

    #[test]
    fn every_kind_of_fault_occurs_on_every_node() {
        let faults: Vec<Fault> = Plan::new(1).take(2_000).flat_map(|step| step.faults).collect();
        let kinds: BTreeSet<_> = faults.iter().map(Fault::kind).collect();
        assert_eq!(kinds.len(), 10, "{kinds:?}");
        for node in 0..NODES {
            let kinds: BTreeSet<_> =
                faults.iter().filter(|fault| fault.target() == Target::Node(node)).map(Fault::kind).collect();
            assert_eq!(kinds.len(), 7, "{kinds:?}");
        }
    }

    #[test]
    fn simultaneous_faults_have_different_targets() {
        let pairs: Vec<Step> = Plan::new(3).take(2_000).filter(|step| step.faults.len() > 1).collect();
        assert!(pairs.len() > 200, "{}", pairs.len());
        for step in pairs {
            let [one, other] = step.faults[..] else { panic!("at most two faults: {step:?}") };
            assert_ne!(one.target(), other.target());
            assert!(one.target() != Target::AllNodes && other.target() != Target::AllNodes);
        }
    }
}
