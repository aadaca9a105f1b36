//! Requests that only run a fresh sandbox.

use crate::args::Args;
use crate::collector::Collector;
use crate::contender::{Contender, Results, compare, connections};
use crate::load::{CONNECTIONS, LoadSpec, Sample};
use crate::report::{Section, TextTable};
use crate::server::ServerProcess;
use crate::stats::Spread;
use crate::weir::{Spans, Weir};
use anyhow::{Context as _, Result, ensure};
use std::path::Path;
use std::process::Command;

const AXUM: &str = "axum, no sandbox";
const LOOP: &str = "bare loop, same limits";
const SERVE: &str = "wasmtime serve";
const TUNED: &str = "wasmtime serve, tuned";
const WEIR: &str = "Weir";
const LOGGED: &str = "Weir, spans of every request";
const EXPORTED: &str = "Weir, spans of every request exported";

/// Flags that make `wasmtime serve` fastest.
const TUNED_FLAGS: &str = "-Opooling-allocator=y,pooling-memory-keep-resident=2097152,pooling-table-keep-resident=65536,\
                           pooling-pagemap-scan=y,pooling-async-stack-keep-resident=65536";

pub(crate) fn run(args: &Args) -> Result<Section> {
    let scratch = tempfile::tempdir()?;
    let component = args.functions.join("hello.wasm");
    let load = LoadSpec::new(scratch.path(), None, args.seconds())?;
    let collector = Collector::start()?;
    let weir = Weir::new(args, scratch.path())?;
    let bytes = std::fs::read(&component).with_context(|| format!("cannot read {}", component.display()))?;
    weir.start(Spans::Off)?.put("/v1/functions/hello", &bytes)?;

    let wasmtime = args.wasmtime.as_ref().context("the suite `hello` needs --wasmtime")?;
    let log = scratch.path().join("log");
    let start = |program: &Path, arguments: &[&str], operand: Option<&Path>| {
        let mut command = Command::new(program);
        command.args(arguments).args(operand);
        ServerProcess::start(command, &log)
    };
    let serve = ["serve", "-Scli", "--addr", "127.0.0.1:0"];
    let tuned = [&serve[..], &[TUNED_FLAGS]].concat();
    let beside = std::env::current_exe()?;
    let axum = beside.with_file_name("axum-hello");
    let bare = beside.with_file_name("proxy-loop");
    let contenders = [
        Contender::server(AXUM, &load, "/", || start(&axum, &[], None)),
        Contender::server(LOOP, &load, "/", || start(&bare, &[], Some(&component))),
        Contender::server(SERVE, &load, "/", || start(wasmtime, &serve, Some(&component))),
        Contender::server(TUNED, &load, "/", || start(wasmtime, &tuned, Some(&component))),
        Contender::server(WEIR, &load, "/fn/hello/", || Ok(weir.start(Spans::Off)?.server)),
        Contender::server(LOGGED, &load, "/fn/hello/", || Ok(weir.start(Spans::Logged)?.server)),
        Contender::server(EXPORTED, &load, "/fn/hello/", || {
            Ok(weir.start(Spans::Exported(&collector))?.server)
        }),
    ];
    let results = compare(&contenders, args.rounds())?;
    ensure!(collector.received_bytes() > 0, "the node exported no spans");
    Ok(Section {
        key: "hello",
        notes: vec![others(&results)],
        tables: vec![table("GET of `hello`", &results), against(&results), goals(&results)],
        samples: serde_json::to_value(&results)?,
    })
}

/// Results of each contender, with the spread of the CPU time.
pub(crate) fn table(title: &str, results: &Results) -> TextTable {
    let columns =
        ["", "connections", "req/s", "p50 ms", "p99 ms", "server CPU µs/request", "[min .. max]", "RSS MiB"];
    let mut table = TextTable::new(title, &columns);
    for name in results.names() {
        for connections in connections(results, name) {
            let median = |what: fn(&Sample) -> f64| {
                results.spread(name, connections, what).map_or(f64::NAN, |spread| spread.median)
            };
            let Some(cpu) = results.spread(name, connections, cpu) else { continue };
            table.row([
                name.to_owned(),
                connections.to_string(),
                format!("{:.0}", median(throughput)),
                format!("{:.2}", median(|sample| sample.p50_us) / 1e3),
                format!("{:.2}", median(|sample| sample.p99_us) / 1e3),
                format!("{:.1}", cpu.median),
                format!("[{:.1} .. {:.1}]", cpu.min, cpu.max),
                format!("{:.0}", median(|sample| sample.resident_bytes as f64) / f64::from(1 << 20)),
            ]);
        }
    }
    table
}

/// Describes the share of the machine that other programs took.
pub(crate) fn others(results: &Results) -> String {
    let Some(others) = results.others() else { return String::new() };
    format!(
        "Other programs took {:.0} % of the machine at the median measurement and {:.0} % at the worst.",
        others.median * 100.0,
        others.max * 100.0
    )
}

pub(crate) fn cpu(sample: &Sample) -> f64 {
    sample.cpu_us_per_request
}

pub(crate) fn throughput(sample: &Sample) -> f64 {
    sample.requests_per_second
}

/// Formats a ratio with its spread over the rounds.
pub(crate) fn ratio(spread: Option<Spread>) -> String {
    spread.map_or_else(String::new, |Spread { median, min, max }| {
        format!("{median:.2}x [{min:.2} .. {max:.2}]")
    })
}

fn against(results: &Results) -> TextTable {
    let mut table = TextTable::new(
        "Weir over each peer: medians of the rounds' ratios [least .. most]",
        &["Weir over", "connections", "CPU per request", "throughput"],
    );
    for peer in [AXUM, LOOP, SERVE, TUNED] {
        for connections in CONNECTIONS {
            let cpu = results.ratio(WEIR, peer, connections, cpu);
            let throughput = results.ratio(WEIR, peer, connections, throughput);
            table.row([peer.to_owned(), connections.to_string(), ratio(cpu), ratio(throughput)]);
        }
    }
    table
}

fn goals(results: &Results) -> TextTable {
    let mut table =
        TextTable::new("Bounds", &["", "bound", "goal", "1 connection", "8 connections", "64 connections"]);
    let mut row = |what: &str, bound: &str, goal: &str, value: &dyn Fn(u32) -> Option<Spread>| {
        let values = CONNECTIONS
            .map(|connections| value(connections).map_or_else(String::new, |s| format!("{:.2}x", s.median)));
        table.row([what, bound, goal].map(str::to_owned).into_iter().chain(values));
    };
    row("CPU per request over `wasmtime serve`", "0.45x", "0.35x", &|c| results.ratio(WEIR, SERVE, c, cpu));
    row("CPU per request over `wasmtime serve`, tuned", "1.10x", "", &|c| results.ratio(WEIR, TUNED, c, cpu));
    row("CPU per request over the bare loop", "1.30x", "1.15x", &|c| results.ratio(WEIR, LOOP, c, cpu));
    row("throughput over `wasmtime serve`", "2.00x", "2.50x", &|c| {
        // One connection measures latency, not throughput.
        (c > 1).then(|| results.ratio(WEIR, SERVE, c, throughput)).flatten()
    });
    row("CPU per request with spans of every request logged, over none", "", "", &|c| {
        results.ratio(LOGGED, WEIR, c, cpu)
    });
    row("CPU per request with spans of every request exported, over none", "1.15x", "", &|c| {
        results.ratio(EXPORTED, WEIR, c, cpu)
    });
    table
}
