//! Clients and random faults against a cluster of three nodes; `cargo xtask torture` starts it.

mod audit;
mod clients;
mod cluster;
mod injector;
mod process;
mod proxy;
mod recorder;
mod report;
mod requests;
mod run;

use anyhow::Result;
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit status of shells for a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Runs clients and random faults against a cluster, and checks the history of all operations.
#[derive(Debug, Parser)]
struct Args {
    /// Duration of the faults.
    #[arg(long, value_name = "N")]
    minutes: f64,
    /// Seed of the faults and of the clients' choices [default: random]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Writes the counts and violations to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The `weir` program.
    #[arg(long, value_name = "FILE")]
    weir: PathBuf,
    /// The component that the clients deploy.
    #[arg(long, value_name = "FILE")]
    component: PathBuf,
    /// Folder of the logs and the history. A folder of an earlier run is replaced.
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

fn main() -> ExitCode {
    // With the S3 client in the same build, reqwest requires a TLS provider even for plain HTTP.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(until_interrupted(&Args::parse())));
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs until the end or Ctrl-C. Dropping the run ends its processes.
async fn until_interrupted(args: &Args) -> Result<ExitCode> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        passed = run::run(args) => Ok(if passed? { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
        _ = tokio::signal::ctrl_c() => Ok(interrupted(args)),
        _ = terminate.recv() => Ok(interrupted(args)),
    }
}

fn interrupted(args: &Args) -> ExitCode {
    eprintln!("interrupted; the processes are ended, and the logs are in {}", args.out.display());
    ExitCode::from(INTERRUPTED)
}
