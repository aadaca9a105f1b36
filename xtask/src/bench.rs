//! `cargo xtask bench`.

use crate::demo::build_function;
use crate::functions::{self, BuildFunctionsArgs};
use crate::repo::Repo;
use crate::setup::{self, report, step};
use crate::{models, process};
use anyhow::{Context as _, Result, bail};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The release that Weir is built on.
const WASMTIME_VERSION: &str = "48.0.8";
/// Functions that the benchmarks measure.
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

/// Benchmark Weir against axum, `wasmtime serve`, ONNX Runtime, uvicorn, Ray Serve and BentoML, on
/// this machine
///
/// Installs missing tools: wrk from the distribution, and into `.weir/bench/` Python environments,
/// the wasmtime command line for `hello` (built from crates.io, some minutes the first time), and
/// Ray Serve and BentoML for `serving` (600 MB). A full run takes about an hour and a half;
/// docs/measurements.md explains the results.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Number of rounds; each round measures every contender once
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// Seconds per measurement
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// Suites to run: hello, inference, serving, coldstart, neighbours, tenants, languages, cluster,
    /// faults, batching, workflows, overload, calls, isolation [default: all]
    #[arg(long, value_delimiter = ',', value_name = "SUITES")]
    only: Vec<String>,
    /// Run one round of one second with few restarts, as a smoke test; the results are meaningless
    #[arg(long)]
    quick: bool,
    /// Write all samples to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results into docs/measurements.md
    #[arg(long, conflicts_with = "quick")]
    write: bool,
}

impl BenchArgs {
    fn selects(&self, suite: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == suite)
    }
}

pub(crate) fn run(repo: &Repo, args: &BenchArgs) -> Result<()> {
    wrk()?;
    setup::etcd();
    let wasmtime = args.selects("hello").then(|| wasmtime(repo)).transpose()?;
    let sources = repo.root().join("bench/python");
    let python = setup::environment(repo, "bench/python", &sources.join("requirements.txt"))?.join("python");
    let onnxruntime = setup::onnxruntime(repo)?;
    functions::run(repo, &BuildFunctionsArgs::from_names(&FUNCTIONS))?;
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
    if let Some(wasmtime) = &wasmtime {
        file("--wasmtime", wasmtime);
    }
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
    // Replace this process, so that after Ctrl-C the benchmark can end the programs that it
    // started.
    Err(bench.exec()).with_context(|| format!("cannot start `{}`", process::line(&bench)))
}

/// Python with the model servers, if `serving` is selected.
fn serving(repo: &Repo, args: &BenchArgs) -> Result<Option<PathBuf>> {
    if !args.selects("serving") {
        return Ok(None);
    }
    let requirements = repo.root().join("bench/python/serving/requirements.txt");
    let programs = setup::environment(repo, "bench/serving", &requirements)?;
    Ok(Some(programs.join("python")))
}

/// Command that runs `program` in its own network namespace, so that its listeners are unreachable
/// from outside.
fn on_loopback(program: &Path) -> Result<Command> {
    const LOOPBACK: [&str; 5] = ["ip", "link", "set", "lo", "up"];
    // As root, or as a user who becomes root only in the namespace.
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

/// Installs the load generator if it is missing.
fn wrk() -> Result<()> {
    // wrk has no version option that succeeds, but starting it shows that it is installed.
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

/// Installs the `wasmtime` program from crates.io.
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
    // Half a gigabyte of build artefacts.
    std::fs::remove_dir_all(root.join("target")).context("cannot remove what the build left")?;
    report("installed", &what);
    Ok(program)
}

/// Builds Weir and the peer programs, all with Weir's release profile. Returns their folder.
fn programs(repo: &Repo) -> Result<PathBuf> {
    step("cargo build --profile dist -p weir-cli -p weir-bench (some minutes)");
    let build = ["build", "--profile", "dist", "--quiet", "-p", "weir-cli", "-p", "weir-bench"];
    process::run(repo.cargo(".").args(build))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    Ok(repo.root().join(target).join("dist"))
}

/// The commit under test.
fn commit(repo: &Repo) -> String {
    let git =
        |arguments: &[&str]| process::answer(Command::new("git").args(arguments).current_dir(repo.root()));
    match (git(&["rev-parse", "--short", "HEAD"]), git(&["status", "--porcelain", "--untracked-files=no"])) {
        (Ok(commit), Ok(changes)) if changes.is_empty() => commit,
        (Ok(commit), _) => format!("{commit} with changes"),
        (Err(_), _) => "unknown".to_owned(),
    }
}
