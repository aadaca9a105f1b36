//! Placements per second through one dispatcher: `cargo bench -p weir-cluster --bench dispatcher`.
//!
//! A dispatcher and several nodes run in this process, each with its own placements, link and HTTP/2
//! connection over TCP on loopback, and with mutual TLS under `--tls`. The nodes send what nodes
//! send for calls that run a model: the arrival, the start of the run, its end, and the answer of a
//! call that ran on another node. The transfer of the call itself is left out: it goes directly from
//! node to node. The dispatcher has separate threads, whose processor time is measured separately.
//!
//! In each round, a closed loop finds the maximum rate, and an open loop at half of that rate
//! measures the time from a call's due time to its placement. `--rate` measures the open loop only,
//! at that rate. `--profile` attributes the dispatcher's processor time to its parts with `perf`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a benchmark fails by panicking")]

mod cluster;
mod cpu;
mod load;

use clap::Parser;
use cluster::BenchCluster;
use cpu::CpuTimes;
use load::Measured;
use std::time::Duration;

/// Measures placements per second through one dispatcher.
#[derive(Debug, Clone, Parser)]
struct Args {
    /// Nodes that request placements
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    nodes: u32,
    /// Models on each node
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    models: u32,
    /// Calls at a time of each node, in the closed loop
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    callers: u32,
    /// Threads of the dispatcher, and of all nodes together
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Rounds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Seconds per measurement
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Placements per second of the open loop [default: half of the closed loop's]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rate: Option<u32>,
    /// Connect the nodes with mutual TLS instead of plain TCP with a shared secret
    #[arg(long)]
    tls: bool,
    /// Attribute the dispatcher's processor time to its parts, with perf
    #[arg(long)]
    profile: bool,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let args = Args::parse();
    let time = Duration::from_secs(args.seconds);
    println!(
        "{} nodes with {} models each, {}, {} threads for the dispatcher and {} for the nodes",
        args.nodes,
        args.models,
        if args.tls { "mutual TLS" } else { "plain TCP" },
        args.threads,
        args.threads
    );
    println!("| loop | placements/s | p50 ms | p99 ms | elsewhere | dispatcher µs | nodes µs |");
    println!("|---|---:|---:|---:|---:|---:|---:|");
    let mut shares = Vec::new();
    for _ in 0..args.rounds {
        let cluster = BenchCluster::start(&args);
        let rate = args.rate.map_or_else(
            || {
                let profile = args.profile.then(|| cpu::Profile::start(time));
                let closed = measured(&cluster, || load::closed(&cluster, args.callers, time));
                row("closed", &closed);
                if let Some(profile) = profile {
                    shares.push((closed.cpu.dispatcher_us(closed.load.placed()), profile.shares()));
                }
                closed.load.per_second() / 2.0
            },
            f64::from,
        );
        row("open", &measured(&cluster, || load::open(&cluster, rate, time)));
    }
    if let Some((total_us, shares)) = shares.last() {
        println!("\n| part of the dispatcher | share | µs per placement |\n|---|---:|---:|");
        for (part, share) in shares {
            println!("| {part} | {:.1} % | {:.2} |", share * 100.0, share * total_us);
        }
    }
}

/// A load, and the processor time meanwhile.
struct WithCpu {
    load: Measured,
    cpu: CpuTimes,
}

fn measured(cluster: &BenchCluster, load: impl FnOnce() -> Measured) -> WithCpu {
    load::closed(cluster, 4, Duration::from_millis(500));
    let before = CpuTimes::read();
    let load = load();
    WithCpu { load, cpu: CpuTimes::read().since(&before) }
}

fn row(name: &str, WithCpu { load, cpu }: &WithCpu) {
    println!(
        "| {name} | {:.0} | {:.3} | {:.3} | {:.0} % | {:.1} | {:.1} |",
        load.per_second(),
        load.quantile_ms(0.5),
        load.quantile_ms(0.99),
        load.elsewhere() * 100.0,
        cpu.dispatcher_us(load.placed()),
        cpu.nodes_us(load.placed()),
    );
}
