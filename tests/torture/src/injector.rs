//! Causes faults, and undoes them.

use crate::cluster::Cluster;
use crate::recorder::Recorder;
use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};
use tokio::time::sleep;
use weir_torture::history::FaultRecord;
use weir_torture::plan::{Cut, Fault, Plan};

/// Source of the faults of a run.
pub(crate) struct Injector<'a> {
    cluster: &'a Cluster,
    recorder: &'a Recorder,
    /// Unexpected ends of processes, and failed starts and ends.
    failures: Mutex<Vec<String>>,
}

impl<'a> Injector<'a> {
    pub(crate) fn new(cluster: &'a Cluster, recorder: &'a Recorder) -> Self {
        Self { cluster, recorder, failures: Mutex::new(Vec::new()) }
    }

    /// Causes the faults of a plan for a time. The last faults are undone afterwards. Returns what
    /// went wrong with the processes.
    pub(crate) async fn run(self, plan: Plan, duration: Duration) -> Vec<String> {
        let until = Instant::now() + duration;
        for step in plan {
            sleep(Duration::from_millis(step.pause_ms)).await;
            self.look_after_processes().await;
            if Instant::now() >= until || !self.failures.lock().is_empty() {
                break;
            }
            futures::future::join_all(step.faults.iter().map(|fault| self.play(*fault))).await;
        }
        self.failures.into_inner()
    }

    async fn play(&self, fault: Fault) {
        let begin_us = self.recorder.now();
        eprintln!("{:>7.1} s  {fault}", begin_us as f64 / 1e6);
        if let Err(error) = self.cause(fault).await {
            self.failures.lock().push(format!("{fault}: {error:#}"));
        }
        self.recorder.fault(FaultRecord { fault, begin_us, end_us: self.recorder.now() });
    }

    /// Notes processes that have ended unexpectedly.
    async fn look_after_processes(&self) {
        let mut failures = Vec::new();
        for (number, node) in self.cluster.nodes.iter().enumerate() {
            if let Some(status) = node.process.lock().await.ended() {
                failures.push(format!("node {number} ended unexpectedly ({status})"));
            }
        }
        if let Some(status) = self.cluster.etcd.lock().await.ended() {
            failures.push(format!("etcd ended unexpectedly ({status})"));
        }
        self.failures.lock().extend(failures);
    }

    async fn cause(&self, fault: Fault) -> Result<()> {
        match fault {
            Fault::KillNode { node, down_ms } => self.kill_node(node, down_ms).await,
            Fault::TerminateNode { node, down_ms } => {
                let mut process = self.cluster.nodes[node].process.lock().await;
                let status = process.terminate().await?.context("it did not end in time")?;
                anyhow::ensure!(status.success(), "it ended with {status}");
                wait(down_ms).await;
                process.start().await
            }
            Fault::PauseNode { node, for_ms } => {
                let process = self.cluster.nodes[node].process.lock().await;
                process.signal(Signal::STOP)?;
                wait(for_ms).await;
                process.signal(Signal::CONT)
            }
            Fault::KillWorker { node } => {
                // A worker may have ended meanwhile, and a node without models has none.
                let workers = self.cluster.nodes[node].workers().await;
                let pids = workers.into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed()));
                pids.for_each(|pid| _ = kill_process(pid, Signal::KILL));
                Ok(())
            }
            Fault::KillAllNodes { down_ms } => {
                let nodes = (0..self.cluster.nodes.len()).map(|node| self.kill_node(node, down_ms));
                futures::future::try_join_all(nodes).await.map(drop)
            }
            Fault::KillEtcd { down_ms } => {
                let mut etcd = self.cluster.etcd.lock().await;
                etcd.kill().await?;
                wait(down_ms).await;
                etcd.start().await
            }
            Fault::PauseEtcd { for_ms } => {
                let etcd = self.cluster.etcd.lock().await;
                etcd.signal(Signal::STOP)?;
                wait(for_ms).await;
                etcd.signal(Signal::CONT)
            }
            Fault::CutEtcd { .. } | Fault::CutPeer { .. } | Fault::Isolate { .. } => {
                self.cut(fault).await;
                Ok(())
            }
        }
    }

    async fn kill_node(&self, node: usize, down_ms: u64) -> Result<()> {
        let mut process = self.cluster.nodes[node].process.lock().await;
        process.kill().await?;
        wait(down_ms).await;
        process.start().await
    }

    async fn cut(&self, fault: Fault) {
        let set = |cut: &dyn Fn(Cut) -> Option<Cut>| match fault {
            Fault::CutEtcd { node, how, .. } => self.cluster.nodes[node].to_etcd.set(cut(how)),
            Fault::CutPeer { node, how, .. } => self.cluster.nodes[node].from_peers.set(cut(how)),
            Fault::Isolate { node, how, .. } => {
                self.cluster.nodes[node].to_etcd.set(cut(how));
                self.cluster.nodes[node].from_peers.set(cut(how));
            }
            _ => {}
        };
        let (Fault::CutEtcd { for_ms, .. } | Fault::CutPeer { for_ms, .. } | Fault::Isolate { for_ms, .. }) =
            fault
        else {
            return;
        };
        set(&Some);
        wait(for_ms).await;
        set(&|_| None);
    }
}

async fn wait(ms: u64) {
    sleep(Duration::from_millis(ms)).await;
}
