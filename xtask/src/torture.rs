//! `cargo xtask torture`.

use crate::functions::{self, BuildFunctionsArgs};
use crate::process;
use crate::repo::Repo;
use crate::{setup, weir};
use anyhow::{Context as _, Result, bail};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

/// The function that the clients deploy.
const FUNCTION: &str = "stamp";

/// Run clients and random faults against a cluster, and check every answer
///
/// Three nodes and an etcd on this machine are killed, stopped, paused and cut from each other
/// while clients deploy, roll back, push, store, call and infer. Then the history of all operations
/// is checked against the documented guarantees. Equal seeds choose equal faults and requests; their
/// timing differs.
#[derive(Debug, clap::Args)]
pub(crate) struct TortureArgs {
    /// Duration of the faults
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    minutes: f64,
    /// Seed of the faults and of the clients' requests [default: random]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Write the counts and the broken promises to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(repo: &Repo, args: &TortureArgs) -> Result<()> {
    if !setup::has_etcd() {
        bail!("etcd is missing; `cargo xtask setup` installs it");
    }
    setup::onnxruntime(repo)?;
    functions::run(repo, &BuildFunctionsArgs::from_names(&[FUNCTION]))?;
    let programs = weir::build_programs(repo)?;
    let out = repo.root().join("target/torture");
    let mut torture = Command::new(programs.join("weir-torture"));
    torture.arg("--minutes").arg(args.minutes.to_string());
    if let Some(seed) = args.seed {
        torture.arg("--seed").arg(seed.to_string());
    }
    if let Some(path) = &args.json {
        torture.arg("--json").arg(path);
    }
    torture.arg("--weir").arg(programs.join("weir"));
    torture.arg("--component").arg(repo.built_functions().join(FUNCTION).with_extension("wasm"));
    torture.arg("--out").arg(out);
    // Replace this process, so that Ctrl-C ends the nodes first.
    Err(torture.exec()).with_context(|| format!("cannot start `{}`", process::line(&torture)))
}
