//! Effect of pre-initialisation on `embed-text`, which parses a vocabulary of 30,522 words, either
//! in every fresh instance or once at build time.

use crate::args::Args;
use crate::report::TextTable;
use crate::stats::Spread;
use crate::weir::{Spans, Weir};
use anyhow::{Context as _, Result};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

const SENTENCE: &[u8] = b"A cat sits on the mat.";
const LATER_CALLS: u32 = 5;

/// One build of the function, with call times in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct SnapshotBuild {
    how: &'static str,
    component_bytes: usize,
    first: Vec<SnapshotCallTimes>,
    later: Vec<SnapshotCallTimes>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct SnapshotCallTimes {
    /// Latency at the client.
    whole_ms: f64,
    model_load_ms: f64,
    model_run_ms: f64,
}

/// Measures first and later calls with and without a snapshot, alternating, each on a restarted
/// node.
pub(super) fn calls(args: &Args, scratch: &Path, restarts: u32) -> Result<[SnapshotBuild; 2]> {
    let weir = Weir::new(args, &scratch.join("embed"))?;
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let plain = read(&args.functions.join("embed-text.wasm"))?;
    let snapshot = read(&args.embed_snapshot)?;
    let node = weir.start(Spans::Off)?;
    node.put("/v1/models/minilm/versions/1", &read(&args.model("minilm"))?)?;
    let mut built = [("plain", "as compiled", plain), ("snapshot", "pre-initialised", snapshot)].map(
        |(name, how, component)| {
            let built =
                SnapshotBuild { how, component_bytes: component.len(), first: Vec::new(), later: Vec::new() };
            (name, component, built)
        },
    );
    for (name, component, _) in &built {
        node.put(&format!("/v1/functions/{name}?models=minilm"), component)?;
    }
    drop(node);
    for restart in 1..=restarts {
        for (name, _, built) in &mut built {
            let node = weir.start(Spans::Off)?;
            let mut counted = [0.0; 2];
            let mut calls = 0.0;
            let mut call = || {
                let started = Instant::now();
                node.post(&format!("/fn/{name}/"), SENTENCE)?;
                let whole = started.elapsed();
                calls += 1.0;
                let metrics = node.metrics_after(calls)?;
                let now = [
                    metrics.get("weir_phase_seconds_sum{phase=\"model_load\"}")?,
                    metrics.get("weir_phase_seconds_sum{phase=\"model_run\"}")?,
                ];
                let [load, run] = [now[0] - counted[0], now[1] - counted[1]];
                counted = now;
                anyhow::Ok(SnapshotCallTimes {
                    whole_ms: whole.as_secs_f64() * 1e3,
                    model_load_ms: load * 1e3,
                    model_run_ms: run * 1e3,
                })
            };
            built.first.push(call()?);
            for _ in 0..LATER_CALLS {
                built.later.push(call()?);
            }
        }
        eprintln!("restart {restart}/{restarts}  embed-text");
    }
    Ok(built.map(|(_, _, built)| built))
}

pub(super) fn table(all: &[SnapshotBuild]) -> TextTable {
    let columns = [
        "ms, medians",
        "component KB",
        "call",
        "latency at the client",
        "[min .. max]",
        "model load",
        "model run",
        "other",
    ];
    let mut table = TextTable::new("`embed-text`, one sentence", &columns);
    for built in all {
        for (which, calls) in [("first after a restart", &built.first), ("later", &built.later)] {
            let spread = |value: fn(&SnapshotCallTimes) -> f64| Spread::from_samples(calls.iter().map(value));
            let median =
                |value| spread(value).map_or_else(String::new, |spread| format!("{:.1}", spread.median));
            let Some(whole) = spread(|call| call.whole_ms) else { continue };
            table.row([
                built.how.to_owned(),
                (built.component_bytes / 1_000).to_string(),
                which.to_owned(),
                format!("{:.1}", whole.median),
                format!("[{:.1} .. {:.1}]", whole.min, whole.max),
                median(|call| call.model_load_ms),
                median(|call| call.model_run_ms),
                median(|call| call.whole_ms - call.model_load_ms - call.model_run_ms),
            ]);
        }
    }
    table
}
