//! Costs of a function in each language: deployment, instantiation and calls.
//!
//! All functions are equivalent to `functions/echo-body`: they read the request body into memory
//! and return it. In every round each function is deployed to a new node without artefacts, so that
//! it is compiled.

use crate::args::Args;
use crate::process::PeakWatch;
use crate::report::{Section, TextTable};
use crate::stats::Spread;
use crate::weir::{BenchNode, Spans, Weir};
use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Instant;

/// Languages with their functions.
const LANGUAGES: [(&str, &str); 6] = [
    ("Rust", "echo-body"),
    ("C", "echo-body-c"),
    ("Go, experimental", "echo-body-go"),
    ("JavaScript", "echo-body-js"),
    ("TypeScript", "echo-body-ts"),
    ("Python", "echo-body-py"),
];
/// A small body, and one of 150,528 fp32 numbers: an image as model input.
const SMALL_BYTES: usize = 16;
const LARGE_BYTES: usize = 602_112;
/// Calls per body and round, after the warm-up calls.
const CALLS: usize = 50;
const CALLS_QUICK: usize = 3;
const WARM_UP_CALLS: usize = 5;

/// Measurements of one language over all rounds.
#[derive(Debug, Serialize)]
struct LanguageRounds {
    language: &'static str,
    function: &'static str,
    component_bytes: usize,
    compile_ms: Vec<f64>,
    compile_peak_bytes: Vec<f64>,
    instantiate_us: Vec<f64>,
    /// A fresh instance per call.
    fresh: Calls,
    /// Reused instances.
    reused: Calls,
}

/// Client latencies of calls with a small and with a large body, in microseconds.
#[derive(Debug, Default, Serialize)]
struct Calls {
    small_us: Vec<f64>,
    large_us: Vec<f64>,
}

/// Response of a node to a deployment.
#[derive(Deserialize)]
struct Deployed {
    compile_time_ms: u64,
}

pub(crate) fn run(args: &Args) -> Result<Section> {
    let scratch = tempfile::tempdir()?;
    let mut all = Vec::new();
    let mut left_out = Vec::new();
    for (language, function) in LANGUAGES {
        match std::fs::read(args.functions.join(function).with_extension("wasm")) {
            Ok(component) => all.push((component, LanguageRounds::new(language, function))),
            Err(error) => {
                left_out.push(format!("{language} is left out: {function} was not built ({error})."));
            }
        }
    }
    for round in 1..=args.rounds() {
        // Alternate the order, so that changes on the machine during a round do not favour one
        // language.
        all.reverse();
        for (component, measured) in &mut all {
            let folder = scratch.path().join(format!("{round}-{}", measured.function));
            measured.round(args, &folder, component)?;
            std::fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
            eprintln!("round {round}/{}  {}", args.rounds(), measured.language);
        }
    }
    all.sort_by_key(|(_, measured)| {
        LANGUAGES.iter().position(|(language, _)| *language == measured.language)
    });
    let all: Vec<_> = all.into_iter().map(|(_, measured)| measured).collect();
    let calls = calls(args);
    let mut notes = vec![format!(
        "Rounds: {}, each with one deploy and {calls} calls with either body for every language, one at a time.",
        args.rounds()
    )];
    notes.extend(left_out);
    Ok(Section {
        key: "languages",
        notes,
        tables: vec![deploy_table(&all), call_table(&all)],
        samples: serde_json::to_value(&all)?,
    })
}

impl LanguageRounds {
    fn new(language: &'static str, function: &'static str) -> Self {
        Self {
            language,
            function,
            component_bytes: 0,
            compile_ms: Vec::new(),
            compile_peak_bytes: Vec::new(),
            instantiate_us: Vec::new(),
            fresh: Calls::default(),
            reused: Calls::default(),
        }
    }

    /// Deploys the function to a new node in `folder`, and calls it.
    fn round(&mut self, args: &Args, folder: &Path, component: &[u8]) -> Result<()> {
        let node = Weir::new(args, folder)?.start(Spans::Off)?;
        let watch = PeakWatch::start(node.server.tree())?;
        let answer = node.put("/v1/functions/fresh", component)?;
        self.compile_peak_bytes.push(watch.stop()? as f64);
        let deployed: Deployed =
            serde_json::from_slice(&answer).context("the answer to a deploy is not what it was")?;
        self.compile_ms.push(deployed.compile_time_ms as f64);
        self.component_bytes = component.len();
        let mut calls_so_far = 0.0;
        let mut echo = |function, length| call(&node, function, length, calls(args), &mut calls_so_far);
        self.fresh.small_us.extend(echo("fresh", SMALL_BYTES)?);
        self.fresh.large_us.extend(echo("fresh", LARGE_BYTES)?);
        let instantiated = node.metrics_after(calls_so_far)?.get(INSTANTIATE_SUM)?;
        self.instantiate_us.push(instantiated * 1e6 / calls_so_far);

        node.put("/v1/functions/reused?reuse=true", component)?;
        let mut echo = |function, length| call(&node, function, length, calls(args), &mut calls_so_far);
        self.reused.small_us.extend(echo("reused", SMALL_BYTES)?);
        self.reused.large_us.extend(echo("reused", LARGE_BYTES)?);
        Ok(())
    }
}

const INSTANTIATE_SUM: &str = "weir_phase_seconds_sum{phase=\"instantiate\"}";

fn calls(args: &Args) -> usize {
    if args.quick { CALLS_QUICK } else { CALLS }
}

/// Client latencies in microseconds of calls with a body of `length` bytes.
fn call(
    node: &BenchNode,
    function: &str,
    length: usize,
    calls: usize,
    calls_so_far: &mut f64,
) -> Result<Vec<f64>> {
    let path = format!("/fn/{function}/");
    let body: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
    let mut times = Vec::new();
    for call in 0..WARM_UP_CALLS + calls {
        let started = Instant::now();
        let answer = node.post(&path, &body)?;
        let took = started.elapsed();
        ensure!(answer == body, "{} bytes came back of {length}", answer.len());
        *calls_so_far += 1.0;
        if call >= WARM_UP_CALLS {
            times.push(took.as_secs_f64() * 1e6);
        }
    }
    Ok(times)
}

fn deploy_table(all: &[LanguageRounds]) -> TextTable {
    let columns =
        ["", "component KB", "compile ms", "[least .. most]", "memory to compile MiB", "[least .. most]"];
    let mut table = TextTable::new("Deploying `echo-body`, medians", &columns);
    for measured in all {
        let (compile, compile_range) = cells(&measured.compile_ms, 1.0, 0);
        let (peak, peak_range) = cells(&measured.compile_peak_bytes, f64::from(1 << 20), 0);
        table.row([
            measured.language.to_owned(),
            (measured.component_bytes / 1_000).to_string(),
            compile,
            compile_range,
            peak,
            peak_range,
        ]);
    }
    table
}

fn call_table(all: &[LanguageRounds]) -> TextTable {
    let columns = [
        "",
        "instantiate µs",
        "16 B ms, fresh",
        "[least .. most]",
        "reused",
        "[least .. most]",
        "600 KB ms, fresh",
        "[least .. most]",
        "reused",
        "[least .. most]",
    ];
    let mut table = TextTable::new(
        "Calling `echo-body`, a fresh instance each and with `reuse = true`, medians",
        &columns,
    );
    for measured in all {
        let LanguageRounds { fresh, reused, .. } = measured;
        let (instantiate, _) = cells(&measured.instantiate_us, 1.0, 0);
        let mut row = vec![measured.language.to_owned(), instantiate];
        for samples in [&fresh.small_us, &reused.small_us, &fresh.large_us, &reused.large_us] {
            let (median, range) = cells(samples, 1e3, 2);
            row.extend([median, range]);
        }
        table.row(row);
    }
    table
}

/// Median and spread of samples in a unit.
fn cells(samples: &[f64], unit: f64, decimals: usize) -> (String, String) {
    Spread::from_samples(samples.iter().map(|sample| sample / unit)).map_or_else(Default::default, |spread| {
        let shown = |value: f64| format!("{value:.decimals$}");
        (shown(spread.median), format!("[{} .. {}]", shown(spread.min), shown(spread.max)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_show_median_and_range() {
        assert_eq!(cells(&[3e3, 1e3, 2e3], 1e3, 1), ("2.0".into(), "[1.0 .. 3.0]".into()));
        assert_eq!(cells(&[], 1.0, 0), (String::new(), String::new()));
    }
}
