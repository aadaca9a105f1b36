//! `cargo xtask conformance`.

mod expectations;
mod page;

use crate::process;
use crate::repo::Repo;
use crate::setup::{self, environment, report};
use crate::weir::{self, DemoNode, TestPrograms};
use anyhow::{Context as _, Result, bail};
use expectations::Expectations;
use page::Row;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Run suites that others wrote against a node, and compare with the known failures
///
/// Fails if a case fails that is not listed in `tests/conformance/SUITE.txt`, if a listed case
/// passes or fails otherwise, and if a listed failure has no reason. A complete run writes the table
/// in `docs/conformance.md`. The suites are pinned by version and checksum.
#[derive(Debug, clap::Args)]
pub(crate) struct ConformanceArgs {
    /// Run each Nth case only
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,
    /// Write the failures of this run to the lists. The reason of a new failure is the node's
    /// message; a failure without a message needs a reason before the next run
    #[arg(long, conflicts_with = "every")]
    update: bool,
}

/// A case that was run, as a suite prints it.
#[derive(Debug, Deserialize)]
struct Case {
    case: String,
    #[serde(flatten)]
    outcome: Outcome,
}

/// The outcome of a case.
#[derive(Debug, Deserialize)]
struct Outcome {
    /// [`PASS`], or what failed.
    outcome: String,
    /// The message of the node's refusal in general terms; empty without one.
    why: String,
}

/// The outcome of a case that passes.
const PASS: &str = "pass";

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.outcome)?;
        if self.why.is_empty() { Ok(()) } else { write!(f, " ({})", self.why) }
    }
}

/// A device on which onnx.backend.test runs.
struct Target {
    /// Name in the tables.
    part: &'static str,
    /// The list of known failures.
    list: &'static str,
    /// Value of the parameter `device` at the push; `None` on the processor.
    device: Option<&'static str>,
}

const TARGETS: [Target; 2] = [
    Target { part: "processor", list: "onnx_backend_cpu.txt", device: None },
    Target { part: "GPU executor, fake driver", list: "onnx_backend_cuda.txt", device: Some("cuda") },
];

pub(crate) fn run(repo: &Repo, args: &ConformanceArgs) -> Result<()> {
    setup::onnxruntime(repo)?;
    let programs = weir::build_for_tests(repo)?;
    let rows = TARGETS.iter().map(|target| onnx_backend(repo, &programs, target, args));
    // All targets run, so that one run lists all differences.
    let (rows, failed): (Vec<_>, Vec<_>) = rows.partition(Result::is_ok);
    for failure in failed.iter().filter_map(|row| row.as_ref().err()) {
        eprintln!("{failure:#}");
    }
    if !failed.is_empty() {
        bail!("{} of {} conformance runs differ from what is expected", failed.len(), TARGETS.len());
    }
    if args.every == 1 {
        let rows = rows.into_iter().collect::<Result<Vec<_>>>()?;
        page::write(&repo.root().join("docs/conformance.md"), &rows)?;
    }
    Ok(())
}

/// A sample of the cases, for `cargo xtask test`.
pub(crate) fn sample(repo: &Repo, every: u32) -> Result<()> {
    run(repo, &ConformanceArgs { every, update: false })
}

/// onnx.backend.test on a device, through the Open Inference Protocol.
fn onnx_backend(
    repo: &Repo,
    programs: &TestPrograms,
    target: &Target,
    args: &ConformanceArgs,
) -> Result<Row> {
    // The model scripts need the same package.
    let requirements = repo.functions().join("embed-text/model/requirements.txt");
    let python = environment(repo, "python-models", &requirements)?.join("python");
    let version = pinned(&requirements, "onnx")?;
    report("running", &format!("onnx.backend.test of onnx {version}: {}", target.part));
    let driver = target.device.map(|_| programs.fake_cuda.as_path());
    let node = DemoNode::start_with(repo, &programs.weir, |up| match driver {
        // A seed makes the order of the fake's streams reproducible.
        Some(driver) => {
            up.args(["--devices", "cuda"]);
            up.env("WEIR_CUDA_LIBRARY", driver).env("WEIR_FAKE_CUDA", "devices=1,seed=3");
        }
        None => {
            up.args(["--devices", "cpu"]);
        }
    })?;
    let mut suite = Command::new(python);
    suite.args(["-B", "-W", "ignore"]).arg(file(repo, "onnx_backend.py"));
    suite.args(["--every", &args.every.to_string()]).env("WEIR_URL", node.url());
    suite.args(target.device.into_iter().flat_map(|device| ["--device", device]));
    let outcomes = outcomes(suite)?;
    node.stop()?;
    let known = compare(repo, &file(repo, target.list), &outcomes, args)?;
    Ok(Row {
        suite: format!("`onnx.backend.test` of onnx {version}"),
        part: target.part,
        passed: outcomes.values().filter(|outcome| outcome.outcome == PASS).count(),
        cases: outcomes.len(),
        known,
    })
}

/// Runs a suite, and returns the outcome of each case.
fn outcomes(mut command: Command) -> Result<BTreeMap<String, Outcome>> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", process::line(&command)))?;
    let stdout = child.stdout.take().context("the suite has no standard output")?;
    let mut outcomes = BTreeMap::new();
    for line in BufReader::new(stdout).lines() {
        let line = line.context("cannot read what the suite prints")?;
        let Case { case, outcome } = serde_json::from_str(&line).context("the suite printed no case")?;
        outcomes.insert(case, outcome);
        if outcomes.len().is_multiple_of(100) {
            report("running", &format!("{} cases so far", outcomes.len()));
        }
    }
    let status = child.wait().context("cannot wait for the suite")?;
    if !status.success() || outcomes.is_empty() {
        bail!("the suite failed ({status}) after {} cases", outcomes.len());
    }
    Ok(outcomes)
}

/// Compares with the known failures, or replaces them. Returns them.
fn compare(
    repo: &Repo,
    list: &Path,
    outcomes: &BTreeMap<String, Outcome>,
    args: &ConformanceArgs,
) -> Result<Expectations> {
    let shown = repo.show(list);
    let text = match std::fs::read_to_string(list) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && args.update => String::new(),
        text => text.with_context(|| format!("cannot read {shown}"))?,
    };
    let known = Expectations::parse(&text).with_context(|| format!("cannot use {shown}"))?;
    if args.update {
        let updated = known.updated(outcomes);
        std::fs::write(list, updated.to_string()).with_context(|| format!("cannot write {shown}"))?;
        report("written", &shown.to_string());
        return explained(updated, &shown);
    }
    let differences = known.differences(outcomes, args.every == 1);
    for difference in &differences {
        eprintln!("  {difference}");
    }
    if !differences.is_empty() {
        bail!(
            "{} cases differ from {shown}; `cargo xtask conformance --update` lists the failures of a run",
            differences.len()
        );
    }
    report("passed", &format!("{} cases as expected", outcomes.len()));
    explained(known, &shown)
}

/// Fails if a known failure has no reason.
fn explained(known: Expectations, shown: &impl fmt::Display) -> Result<Expectations> {
    let outcomes: Vec<_> = known.unexplained().collect();
    if outcomes.is_empty() {
        return Ok(known);
    }
    bail!("{shown} has no reason for [{}]: write why these cases fail", outcomes.join("], ["))
}

fn file(repo: &Repo, name: &str) -> PathBuf {
    repo.root().join("tests/conformance").join(name)
}

/// The version of a package in a file of pinned requirements.
fn pinned(requirements: &Path, package: &str) -> Result<String> {
    let text = std::fs::read_to_string(requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    let version = text.lines().find_map(|line| line.strip_prefix(package)?.strip_prefix("=="));
    let version = version.and_then(|rest| rest.split_whitespace().next());
    version.map(str::to_owned).with_context(|| format!("{} does not pin {package}", requirements.display()))
}
