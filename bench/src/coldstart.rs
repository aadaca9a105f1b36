//! First calls after a restart, later calls, the effect of a snapshot, and memory per function.
//!
//! The times are from the node's metric `weir_phase_seconds`: `fetch` is the time to load a
//! function's machine code from its artefact, `instantiate` the time to create the sandbox. The
//! difference of their sums before and after one call gives that call's exact times.

mod memory;
mod snapshot;

use crate::args::Args;
use crate::report::{Section, TextTable};
use crate::stats::{Spread, quantile};
use crate::weir::{BenchNode, Spans, Weir};
use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

const PATH: &str = "/fn/hello/";
const RESTARTS: u32 = 30;
const RESTARTS_QUICK: u32 = 3;
/// Calls after the first call in each run of the node.
const LATER_CALLS: u32 = 20;
const FUNCTIONS: u32 = 1_000;
const FUNCTIONS_QUICK: u32 = 20;

/// Times of one call, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
struct CallTimes {
    fetch_us: f64,
    instantiate_us: f64,
    /// Latency at the client.
    whole_us: f64,
}

pub(crate) fn run(args: &Args) -> Result<Section> {
    let scratch = tempfile::tempdir()?;
    let component = args.functions.join("hello.wasm");
    let component =
        std::fs::read(&component).with_context(|| format!("cannot read {}", component.display()))?;
    let restarts = if args.quick { RESTARTS_QUICK } else { RESTARTS };
    let (first, later) = calls(args, scratch.path(), &component, restarts)?;
    let embed = snapshot::calls(args, scratch.path(), restarts)?;
    let functions = if args.quick { FUNCTIONS_QUICK } else { FUNCTIONS };
    let (one, all) = memory::memory(args, scratch.path(), &component, functions)?;
    Ok(Section {
        key: "coldstart",
        notes: vec![
            format!(
                "The node restarts {restarts} times. After each restart, a client makes one first call and {LATER_CALLS} later calls, one at a time."
            ),
            "When a node starts, it loads the most recently deployed functions. `load` is the part of this load for which the first call waits."
                .to_owned(),
            "Files are in the page cache, as after a restart of the process without a restart of the machine."
                .to_owned(),
        ],
        tables: vec![times(&first, &later), snapshot::table(&embed), memory::per_function(one, all)],
        samples: serde_json::json!({ "first": first, "later": later, "embed_text": embed, "memory": [one, all] }),
    })
}

/// Measures the first and the later calls over all restarts.
fn calls(
    args: &Args,
    scratch: &Path,
    component: &[u8],
    restarts: u32,
) -> Result<(Vec<CallTimes>, Vec<CallTimes>)> {
    let weir = Weir::new(args, &scratch.join("calls"))?;
    weir.start(Spans::Off)?.put("/v1/functions/hello", component)?;
    let mut first = Vec::new();
    let mut later = Vec::new();
    for restart in 1..=restarts {
        let node = weir.start(Spans::Off)?;
        let mut counted = Counted::default();
        first.push(counted.call(&node)?);
        for _ in 0..LATER_CALLS {
            later.push(counted.call(&node)?);
        }
        eprintln!("restart {restart}/{restarts}  {:?}", first.last());
    }
    ensure!(later.iter().all(|call| call.fetch_us == 0.0), "a later call loaded its function again");
    Ok((first, later))
}

/// Counters of the node at the last call.
#[derive(Default)]
struct Counted {
    calls: f64,
    fetch_seconds: f64,
    instantiate_seconds: f64,
}

impl Counted {
    fn call(&mut self, node: &BenchNode) -> Result<CallTimes> {
        let started = Instant::now();
        node.get(PATH)?;
        let whole = started.elapsed();
        self.calls += 1.0;
        let metrics = node.metrics_after(self.calls)?;
        let fetch = metrics.get("weir_phase_seconds_sum{phase=\"fetch\"}")?;
        let instantiate = metrics.get("weir_phase_seconds_sum{phase=\"instantiate\"}")?;
        let call = CallTimes {
            fetch_us: (fetch - self.fetch_seconds) * 1e6,
            instantiate_us: (instantiate - self.instantiate_seconds) * 1e6,
            whole_us: whole.as_secs_f64() * 1e6,
        };
        self.fetch_seconds = fetch;
        self.instantiate_seconds = instantiate;
        Ok(call)
    }
}

fn times(first: &[CallTimes], later: &[CallTimes]) -> TextTable {
    let columns = ["µs", "bound", "median", "p90", "min", "max"];
    let mut table = TextTable::new("Time to create a sandbox, Rust `hello`", &columns);
    let mut row = |what: &str, bound: &str, calls: &[CallTimes], value: fn(&CallTimes) -> f64| {
        let mut sorted: Vec<f64> = calls.iter().map(value).collect();
        sorted.sort_by(f64::total_cmp);
        let (Some(p90), Some(spread)) =
            (quantile(&sorted, 0.9), Spread::from_samples(sorted.iter().copied()))
        else {
            return;
        };
        let values = [spread.median, p90, spread.min, spread.max].map(|value| format!("{value:.1}"));
        table.row([what, bound].map(str::to_owned).into_iter().chain(values));
    };
    row("first call: load the rest of the artefact", "", first, |call| call.fetch_us);
    row("first call: instantiate", "", first, |call| call.instantiate_us);
    row("first call: both", "600", first, |call| call.fetch_us + call.instantiate_us);
    row("first call: latency at the client", "", first, |call| call.whole_us);
    row("later calls: instantiate", "15", later, |call| call.instantiate_us);
    row("later calls: latency at the client", "", later, |call| call.whole_us);
    table
}
