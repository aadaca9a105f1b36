//! The first call after a restart, instances after that, and what a deployed function costs in memory.
//!
//! The node's own clocks tell: `weir_phase_fetch_seconds` is loading a function's machine code from its artefact, and
//! `weir_phase_instantiate_seconds` is making the sandbox. Their sums before and after one call give that call's times exactly.

use crate::args::Args;
use crate::process::Resident;
use crate::report::{Section, Table};
use crate::stats::{Spread, quantile};
use crate::weir::{Node, Spans, Weir};
use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

const PATH: &str = "/fn/hello/";
const RESTARTS: u32 = 30;
const RESTARTS_QUICK: u32 = 3;
/// Calls after the first one in each run of the node.
const LATER_CALLS: u32 = 20;
const FUNCTIONS: u32 = 1_000;
const FUNCTIONS_QUICK: u32 = 20;
/// How long a node may take to get quiet.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// One call, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
struct Call {
    fetch_us: f64,
    instantiate_us: f64,
    /// As the client sees it.
    whole_us: f64,
}

/// A node's memory with a number of functions.
#[derive(Debug, Clone, Copy, Serialize)]
struct Memory {
    functions: u32,
    /// After a restart and one call of one of them.
    deployed: Resident,
    /// After a call of each.
    called: Resident,
}

pub(crate) fn run(args: &Args) -> Result<Section> {
    let scratch = tempfile::tempdir()?;
    let component = args.functions.join("hello.wasm");
    let component =
        std::fs::read(&component).with_context(|| format!("cannot read {}", component.display()))?;
    let restarts = if args.quick { RESTARTS_QUICK } else { RESTARTS };
    let (first, later) = calls(args, scratch.path(), &component, restarts)?;
    let functions = if args.quick { FUNCTIONS_QUICK } else { FUNCTIONS };
    let (one, all) = memory(args, scratch.path(), &component, functions)?;
    Ok(Section {
        key: "coldstart",
        notes: vec![
            format!(
                "Calls: {restarts} restarts of the node, one first call and {LATER_CALLS} later ones each, one at a time."
            ),
            "Files are in the page cache, as after a restart of the process but not of the machine."
                .to_owned(),
        ],
        tables: vec![times(&first, &later), per_function(one, all)],
        samples: serde_json::json!({ "first": first, "later": later, "memory": [one, all] }),
    })
}

/// The first and the later calls over all restarts.
fn calls(args: &Args, scratch: &Path, component: &[u8], restarts: u32) -> Result<(Vec<Call>, Vec<Call>)> {
    let weir = Weir::new(args, &scratch.join("calls"))?;
    weir.start(Spans::Off)?.put("/v1/functions/hello", component)?;
    let (mut first, mut later) = (Vec::new(), Vec::new());
    for restart in 1..=restarts {
        let node = weir.start(Spans::Off)?;
        let mut counted = Counted::default();
        first.push(counted.call(&node)?);
        for _ in 0..LATER_CALLS {
            later.push(counted.call(&node)?);
        }
        eprintln!("restart {restart}/{restarts}  {:?}", first.last());
    }
    ensure!(first.iter().all(|call| call.fetch_us > 0.0), "a first call did not load its function");
    ensure!(later.iter().all(|call| call.fetch_us == 0.0), "a later call loaded its function again");
    Ok((first, later))
}

/// What the node has counted so far.
#[derive(Default)]
struct Counted {
    calls: f64,
    fetch_seconds: f64,
    instantiate_seconds: f64,
}

impl Counted {
    fn call(&mut self, node: &Node) -> Result<Call> {
        let started = Instant::now();
        node.get(PATH)?;
        let whole = started.elapsed();
        self.calls += 1.0;
        let metrics = node.metrics_after(self.calls)?;
        let fetch = metrics.get("weir_phase_fetch_seconds_sum")?;
        let instantiate = metrics.get("weir_phase_instantiate_seconds_sum")?;
        let call = Call {
            fetch_us: (fetch - self.fetch_seconds) * 1e6,
            instantiate_us: (instantiate - self.instantiate_seconds) * 1e6,
            whole_us: whole.as_secs_f64() * 1e6,
        };
        (self.fetch_seconds, self.instantiate_seconds) = (fetch, instantiate);
        Ok(call)
    }
}

/// Memory with one function and with `functions` of them.
fn memory(args: &Args, scratch: &Path, component: &[u8], functions: u32) -> Result<(Memory, Memory)> {
    let weir = Weir::new(args, &scratch.join("memory"))?;
    let deploy = |range: std::ops::Range<u32>| {
        let node = weir.start(Spans::Off)?;
        for index in range {
            node.put(&format!("/v1/functions/f{index}"), &variant(component, index))?;
            if (index + 1).is_multiple_of(100) {
                eprintln!("deployed {} functions", index + 1);
            }
        }
        anyhow::Ok(())
    };
    let measure = |functions: u32| {
        let node = weir.start(Spans::Off)?;
        let resident = || {
            node.server.tree().settle(SETTLE_MAX)?;
            node.server.tree().resident()
        };
        node.get("/fn/f0/")?;
        let deployed = resident()?;
        for index in 0..functions {
            node.get(&format!("/fn/f{index}/"))?;
        }
        anyhow::Ok(Memory { functions, deployed, called: resident()? })
    };
    deploy(0..1)?;
    let one = measure(1)?;
    deploy(1..functions)?;
    Ok((one, measure(functions)?))
}

/// The same component with a custom section that makes it another one: code is shared by content, which must not help here.
fn variant(component: &[u8], index: u32) -> Vec<u8> {
    const NAME: &[u8] = b"variant";
    let index = index.to_le_bytes();
    let length = 1 + NAME.len() + index.len();
    // Both lengths are below 128: their LEB128 is one byte.
    let head = [0, length as u8, NAME.len() as u8];
    [component, &head, NAME, &index].concat()
}

fn times(first: &[Call], later: &[Call]) -> Table {
    let columns = ["µs", "bound", "median", "p90", "least", "most"];
    let mut table = Table::new("Time to a sandbox, Rust `hello`", &columns);
    let mut row = |what: &str, bound: &str, calls: &[Call], value: fn(&Call) -> f64| {
        let mut sorted: Vec<f64> = calls.iter().map(value).collect();
        sorted.sort_by(f64::total_cmp);
        let (Some(p90), Some(spread)) = (quantile(&sorted, 0.9), Spread::of(sorted.iter().copied())) else {
            return;
        };
        let values = [spread.median, p90, spread.min, spread.max].map(|value| format!("{value:.1}"));
        table.row([what, bound].map(str::to_owned).into_iter().chain(values));
    };
    row("first call: load the artefact", "", first, |call| call.fetch_us);
    row("first call: instantiate", "", first, |call| call.instantiate_us);
    row("first call: both", "600", first, |call| call.fetch_us + call.instantiate_us);
    row("first call, as the client sees it", "", first, |call| call.whole_us);
    row("later calls: instantiate", "15", later, |call| call.instantiate_us);
    row("later calls, as the client sees them", "", later, |call| call.whole_us);
    table
}

fn per_function(one: Memory, all: Memory) -> Table {
    let title = format!("Memory of a node with {} different functions", all.functions);
    let columns = [
        "",
        "bound",
        "RSS per function KB",
        "not of files KB",
        "RSS of the node MiB",
        "with one function MiB",
    ];
    let mut table = Table::new(title, &columns);
    let mut row = |what: &str, bound: &str, one: Resident, many: Resident| {
        let each = |one: u64, many: u64| (many as f64 - one as f64) / f64::from(all.functions - 1) / 1e3;
        let mib = |bytes: u64| format!("{:.0}", bytes as f64 / f64::from(1 << 20));
        table.row([
            what.to_owned(),
            bound.to_owned(),
            format!("{:.1}", each(one.total_bytes, many.total_bytes)),
            format!("{:.1}", each(one.anonymous_bytes, many.anonymous_bytes)),
            mib(many.total_bytes),
            mib(one.total_bytes),
        ]);
    };
    row("deployed, after a restart", "150", one.deployed, all.deployed);
    row("each called once", "150", one.called, all.called);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_components_of_their_own() {
        let engine = wasmtime::Engine::default();
        let empty = b"\0asm\x0d\0\x01\0";
        let (a, b) = (variant(empty, 1), variant(empty, 1_000));
        assert_ne!(a, b);
        for component in [a, b] {
            wasmtime::component::Component::new(&engine, component).unwrap();
        }
    }
}
