//! `cargo xtask bench`.

use crate::demo::build_function;
use crate::functions::{self, FunctionsArgs};
use crate::repo::Repo;
use crate::setup::{self, report, step};
use crate::{models, process};
use anyhow::{Context as _, Result, bail};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The release that Weir is compared with: the one that it is built on.
const WASMTIME_VERSION: &str = "48.0.8";
/// The functions that are measured.
const FUNCTIONS: [&str; 11] = [
    "hello",
    "host-calls",
    "infer",
    "embed-text",
    "misbehave",
    "echo-body",
    "echo-body-c",
    "echo-body-go",
    "echo-body-js",
    "echo-body-py",
    "echo-body-ts",
];

/// Measure Weir side by side with axum, `wasmtime serve`, ONNX Runtime, uvicorn, Ray Serve and BentoML, on this machine
///
/// Brings what it needs: wrk from the distribution, and into `.weir/bench/` the wasmtime command line (built from crates.io, some minutes the
/// first time) and Python environments, that of Ray Serve and BentoML (600 MB) only where `serving` is measured. A full run takes about
/// an hour and a half; docs/measurements.md explains the figures.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Rounds; each measures every contender once
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// How long each measurement lasts
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// What to measure, of hello, inference, serving, coldstart, neighbours, languages, cluster, faults, batching, workflows, overload and calls [default: all of them]
    #[arg(long, value_delimiter = ',', value_name = "SUITES")]
    only: Vec<String>,
    /// One round of one second and few restarts: to see that everything runs, not for figures
    #[arg(long)]
    quick: bool,
    /// Write every sample to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Put the figures into docs/measurements.md
    #[arg(long, conflicts_with = "quick")]
    write: bool,
}

pub(crate) fn run(repo: &Repo, args: &BenchArgs) -> Result<()> {
    wrk()?;
    setup::etcd();
    let wasmtime = wasmtime(repo)?;
    let sources = repo.root().join("bench/python");
    let python = setup::environment(repo, "bench/python", &sources.join("requirements.txt"))?.join("python");
    let onnxruntime = setup::onnxruntime(repo)?;
    functions::run(repo, &FunctionsArgs::of(&FUNCTIONS))?;
    let models = models::light(repo)?;
    models::minilm(repo)?;
    let serving = serving(repo, args)?;
    let programs = programs(repo)?;
    let snapshot = build_function(repo, &programs.join("weir"), "embed-text", "embed_text.snapshot.wasm")?;

    let mut bench = match &serving {
        Some(_) => on_loopback(&programs.join("weir-bench"))?,
        None => Command::new(programs.join("weir-bench")),
    };
    bench.args(["--rounds", &args.rounds.to_string(), "--seconds", &args.seconds.to_string()]);
    if !args.only.is_empty() {
        bench.args(["--only", &args.only.join(",")]);
    }
    if args.quick {
        bench.arg("--quick");
    }
    let mut file = |name: &str, path: &Path| {
        bench.arg(name).arg(path);
    };
    file("--weir", &programs.join("weir"));
    file("--wasmtime", &wasmtime);
    file("--python", &python);
    if let Some(python) = &serving {
        file("--serving-python", python);
    }
    file("--scripts", &sources);
    file("--functions", &repo.built_functions());
    file("--embed-snapshot", &snapshot);
    file("--models", &models);
    file("--onnxruntime", &onnxruntime);
    if let Some(path) = &args.json {
        file("--json", path);
    }
    if args.write {
        file("--write", &repo.root().join("docs/measurements.md"));
    }
    bench.args(["--commit", &commit(repo)]);
    // In the place of this program, so that a Ctrl-C is over when the benchmark has ended what it started.
    Err(bench.exec()).with_context(|| format!("cannot start `{}`", process::line(&bench)))
}

/// The Python of the servers of models, where these are measured.
fn serving(repo: &Repo, args: &BenchArgs) -> Result<Option<PathBuf>> {
    if !args.only.is_empty() && !args.only.iter().any(|suite| suite == "serving") {
        return Ok(None);
    }
    let requirements = repo.root().join("bench/python/serving/requirements.txt");
    let programs = setup::environment(repo, "bench/serving", &requirements)?;
    Ok(Some(programs.join("python")))
}

/// `program` in a network namespace of its own: what it starts can be reached from here only, whatever it listens on.
fn on_loopback(program: &Path) -> Result<Command> {
    const LOOPBACK: [&str; 5] = ["ip", "link", "set", "lo", "up"];
    // As root, or as one who is root in there only.
    for options in [&["--net"][..], &["--map-root-user", "--net"]] {
        if process::succeeds(Command::new("unshare").args(options).args(LOOPBACK)) {
            let mut command = Command::new("unshare");
            let script = format!("{} && exec \"$0\" \"$@\"", LOOPBACK.join(" "));
            command.args(options).args(["sh", "-c", &script]).arg(program);
            return Ok(command);
        }
    }
    bail!(
        "Ray listens on all networks, so `serving` is measured in a network namespace, and this user cannot make one.\n\nWhat to do: install `unshare` and `ip` (Debian and Ubuntu: `apt-get install util-linux iproute2`), run this as root or allow namespaces to users (`sysctl kernel.apparmor_restrict_unprivileged_userns=0`), or name the other suites with --only"
    )
}

/// The load generator.
fn wrk() -> Result<()> {
    // It has no way to ask for its version that succeeds; asked in vain, it still says who it is.
    if Command::new("wrk").arg("-v").output().is_ok() {
        report("found", "wrk");
        return Ok(());
    }
    step("apt-get install wrk");
    let install = ["install", "--yes", "--no-install-recommends", "wrk"];
    process::answer(Command::new("apt-get").args(install).env("DEBIAN_FRONTEND", "noninteractive"))
        .context("the load generator wrk is missing; What to do: install it (Debian and Ubuntu, as root: `apt-get update && apt-get install wrk`; Fedora: `dnf install wrk`; macOS has no /proc, which the benchmarks read)")?;
    report("installed", "wrk");
    Ok(())
}

/// The `wasmtime` program, as crates.io has it.
fn wasmtime(repo: &Repo) -> Result<PathBuf> {
    let root = repo.local().join("bench");
    let program = root.join("bin/wasmtime");
    let what = format!("wasmtime {WASMTIME_VERSION} in {}", repo.show(&program));
    let there = Command::new(&program).arg("--version").output();
    if there.is_ok_and(|there| String::from_utf8_lossy(&there.stdout).contains(WASMTIME_VERSION)) {
        report("found", &what);
        return Ok(program);
    }
    step(&format!("cargo install wasmtime-cli --version {WASMTIME_VERSION} (some minutes)"));
    let mut install = repo.cargo(".");
    install.args(["install", "wasmtime-cli", "--version", WASMTIME_VERSION]);
    install.args(["--locked", "--force", "--quiet", "--root"]);
    process::run(install.arg(&root).env("CARGO_TARGET_DIR", root.join("target")))?;
    // Half a gigabyte that nothing needs any more.
    std::fs::remove_dir_all(root.join("target")).context("cannot remove what the build left")?;
    report("installed", &what);
    Ok(program)
}

/// Build Weir and the programs it is compared with, all with the profile that Weir is shipped with. Gives the folder they are in.
fn programs(repo: &Repo) -> Result<PathBuf> {
    step("cargo build --profile dist -p weir-cli -p weir-bench (some minutes)");
    let build = ["build", "--profile", "dist", "--quiet", "-p", "weir-cli", "-p", "weir-bench"];
    process::run(repo.cargo(".").args(build))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    Ok(repo.root().join(target).join("dist"))
}

/// What is measured.
fn commit(repo: &Repo) -> String {
    let git =
        |arguments: &[&str]| process::answer(Command::new("git").args(arguments).current_dir(repo.root()));
    match (git(&["rev-parse", "--short", "HEAD"]), git(&["status", "--porcelain", "--untracked-files=no"])) {
        (Ok(commit), Ok(changes)) if changes.is_empty() => commit,
        (Ok(commit), _) => format!("{commit} with changes"),
        (Err(_), _) => "unknown".to_owned(),
    }
}
