//! One run: start, set up, faults under load, healing, audit, checks.

use crate::Args;
use crate::audit::{self, HEALED_WITHIN};
use crate::clients::{CLIENTS, Client, Shared};
use crate::cluster::{Cluster, SETTINGS};
use crate::injector::Injector;
use crate::recorder::Recorder;
use crate::report::{Failure, Summary};
use crate::requests::Requests;
use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use weir_torture::checker;
use weir_torture::plan::Plan;

/// Interval of the lines about progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(15);
/// Time for which the clients go on after the last fault.
const AFTERMATH: Duration = Duration::from_secs(3);

/// Runs once. Returns whether all promises were kept.
pub(crate) async fn run(args: &Args) -> Result<bool> {
    ensure!(args.minutes > 0.0 && args.minutes.is_finite(), "--minutes must be more than 0");
    let seed = args.seed.unwrap_or_else(rand::random);
    let folder = std::path::absolute(&args.out)?;
    make_empty(&folder)?;
    eprintln!("seed {seed}, {} min; logs and history: {}", args.minutes, folder.display());
    let component = std::fs::read(&args.component)
        .with_context(|| format!("cannot read {}", args.component.display()))?
        .into();
    let weir = std::path::absolute(&args.weir)?;
    let cluster = Cluster::start(&weir, &folder).await?;
    let recorder = Arc::new(Recorder::start(&folder.join("history.jsonl"))?);
    let shared = Arc::new(Shared {
        requests: Requests::new(cluster.urls())?,
        recorder: recorder.clone(),
        component,
        is_over: AtomicBool::new(false),
        accepted: Mutex::new(VecDeque::new()),
    });
    let mut failures = under_load(args.minutes, seed, &cluster, &shared).await?;
    let healed = if failures.is_empty() { healed(&shared, &mut failures).await } else { None };
    failures.extend(cluster.panics().into_iter().map(Failure::process));
    let history = recorder.history()?;
    // The checks take too long for a thread of the runtime.
    let checked = history.clone();
    let violations = tokio::task::spawn_blocking(move || checker::check(&checked, SETTINGS)).await?;
    failures.extend(violations.into_iter().map(Failure::from));
    let summary = Summary::new(seed, args.minutes, &history, healed, failures);
    summary.print(&folder);
    if let Some(path) = &args.json {
        summary.write(path)?;
    }
    Ok(summary.has_passed())
}

/// Runs the clients and the faults. Returns what went wrong with the processes.
async fn under_load(
    minutes: f64,
    seed: u64,
    cluster: &Cluster,
    shared: &Arc<Shared>,
) -> Result<Vec<Failure>> {
    let mut clients = Vec::new();
    for index in 0..CLIENTS {
        let mut client = Client::new(index, seed, shared.clone());
        ensure!(client.set_up().await, "the cluster rejects the deploys of client {index}");
        clients.push(client);
    }
    let mut running = JoinSet::new();
    for client in clients {
        running.spawn(client.run());
    }
    let injector = Injector::new(cluster, &shared.recorder);
    let duration = Duration::from_secs_f64(minutes * 60.0);
    let failures = tokio::select! {
        failures = injector.run(Plan::new(seed), duration) => failures,
        () = progress(&shared.recorder) => Vec::new(),
        () = shared.recorder.watch_stalls() => Vec::new(),
    };
    tokio::time::sleep(AFTERMATH).await;
    shared.is_over.store(true, Ordering::Relaxed);
    while let Some(ended) = running.join_next().await {
        ended.context("a client failed")?;
    }
    Ok(failures.into_iter().map(Failure::process).collect())
}

/// Prints the counts from time to time, without end.
async fn progress(recorder: &Recorder) {
    loop {
        tokio::time::sleep(PROGRESS_EVERY).await;
        let (operations, acknowledged) = recorder.counts();
        let now = recorder.now() as f64 / 1e6;
        eprintln!("{now:>7.1} s  {operations} operations, {acknowledged} acknowledged");
    }
}

/// Waits for the healed cluster, and records the state of its nodes. Returns the time of healing.
async fn healed(shared: &Shared, failures: &mut Vec<Failure>) -> Option<Duration> {
    eprintln!("the faults are over; waiting for the cluster, for {} s at most", HEALED_WITHIN.as_secs());
    let healed = match audit::heal(shared).await {
        Ok(took) => Some(took),
        Err(error) => {
            failures.push(Failure::healing(format!("{error:#}")));
            None
        }
    };
    match audit::states(shared).await {
        Ok(states) => shared.recorder.finals(states),
        Err(error) => failures.push(Failure::healing(format!("{error:#}"))),
    }
    healed
}

/// Makes an empty folder.
fn make_empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}
