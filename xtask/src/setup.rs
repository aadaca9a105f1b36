//! `cargo xtask setup`.

mod packages;

use crate::parallel;
use crate::prerequisites;
use crate::process;
use crate::repo::Repo;
use anyhow::{Context as _, Result, anyhow};
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_provision::apt;
use weir_provision::{NodeModules, OnnxRuntimeRelease, PackagesError, PythonEnvironment, Stamp, Toolchain};

/// Install what this machine lacks: a Rust toolchain for functions, ONNX Runtime, the compilers for
/// functions in other languages, clients for the tests, etcd and NATS
///
/// Except for the Rust target, etcd, NATS and a C++ compiler, everything goes into `.weir/` and, from
/// npm, `functions/node_modules`. Installed parts are kept.
#[derive(Debug, clap::Args)]
pub(crate) struct SetupArgs {}

pub(crate) fn run(repo: &Repo, _args: &SetupArgs) -> Result<()> {
    prerequisites::check()?;
    // Most of the time, an installation waits for the network.
    type Installation = fn(&Repo) -> Result<()>;
    let installations: [Installation; 5] = [
        |repo| clients(repo).map(drop),
        |repo| python(repo).map(drop),
        |repo| node_modules(&repo.functions()).map(drop),
        |repo| onnxruntime(repo).map(drop),
        // One after the other: apt locks its database.
        |repo| {
            toolchain(repo)?;
            compiler()?;
            etcd();
            nats();
            Ok(())
        },
    ];
    parallel::all(&installations, installations.len(), |install| install(repo))?;
    if has_chromium() {
        report("found", "chromium, for tests of the dashboard");
    } else {
        let install = prerequisites::install_command(&["chromium"]);
        report("skipped", &format!("the dashboard is not tested in a browser; `{install}` installs it"));
    }
    if has_promtool() {
        report("found", "promtool, for tests of the alerts");
    } else {
        let install = prerequisites::install_command(&["prometheus"]);
        report("skipped", &format!("the alerts are not tested; `{install}` installs promtool"));
    }
    Ok(())
}

/// Finds or installs the toolchain for functions in Rust.
pub(crate) fn toolchain(repo: &Repo) -> Result<Toolchain> {
    if let Ok(toolchain) = Toolchain::find(&repo.functions()) {
        report("found", &format!("Rust for {}: {toolchain}", weir_provision::TARGET));
        return Ok(toolchain);
    }
    let toolchain = Toolchain::find_or_install(&repo.functions(), &mut step)
        .map_err(|error| anyhow!("{error}\n\nWhat to do: {}", error.hint()))?;
    report("installed", &format!("Rust for {}: {toolchain}", weir_provision::TARGET));
    Ok(toolchain)
}

/// Installs the library that runs models on the CPU.
pub(crate) fn onnxruntime(repo: &Repo) -> Result<PathBuf> {
    let library = repo.onnxruntime();
    let version = OnnxRuntimeRelease::VERSION;
    let what = format!("ONNX Runtime {version} in {}", repo.show(&library));
    let stamp = Stamp::beside(&library, version);
    let folder = repo.local().join("lib");
    if stamp.is_current() && OnnxRuntimeRelease::notices(&folder).iter().all(|notice| notice.exists()) {
        report("found", &what);
        return Ok(library);
    }
    let fetch = || OnnxRuntimeRelease::for_this_machine()?.fetch(&folder, &mut step);
    let library = fetch().map_err(|error| anyhow!("{error}\n\nWhat to do: {}", error.hint()))?;
    stamp.write().with_context(|| format!("cannot mark {what} as installed"))?;
    report("installed", &what);
    Ok(library)
}

/// Installs the Python environment of `functions/requirements.txt`. Returns its folder of programs.
pub(crate) fn python(repo: &Repo) -> Result<PathBuf> {
    environment(repo, "python", &repo.functions().join("requirements.txt"))
}

/// Installs programs that check and fuzz the code. Returns their folder.
pub(crate) fn tools(repo: &Repo) -> Result<PathBuf> {
    environment(repo, "tools", &repo.root().join("xtask/requirements.txt"))
}

/// Installs third-party clients, which the tests run unmodified against a node.
fn clients(repo: &Repo) -> Result<PathBuf> {
    environment(repo, "clients", &repo.root().join("tests/clients/requirements.txt"))
}

/// Installs the Python environment `.weir/<name>` with the packages that `requirements` pins by
/// checksum. Returns its folder of programs.
pub(crate) fn environment(repo: &Repo, name: &str, requirements: &Path) -> Result<PathBuf> {
    let folder = repo.local().join(name);
    let environment = PythonEnvironment::pinned(&folder, requirements);
    let explained = |error: PackagesError| anyhow!("{error}\n\nWhat to do: {}", error.hint());
    let what = format!("{} in {}", environment.describe().map_err(explained)?, repo.show(&folder));
    let installed = environment.install(&mut step).map_err(explained)?;
    report(if installed { "installed" } else { "found" }, &what);
    Ok(environment.programs())
}

/// Installs the packages of the `package.json` in `folder`. Returns their folder of programs, or
/// `None` with a note if this machine has no npm.
pub(crate) fn node_modules(folder: &Path) -> Result<Option<PathBuf>> {
    let modules = NodeModules::new(folder);
    match modules.install(&mut step) {
        Ok(_) => Ok(Some(modules.programs())),
        Err(error @ PackagesError::NoProgram { .. }) => {
            report("skipped", &format!("{}: {error}; {}", folder.display(), error.hint()));
            Ok(None)
        }
        Err(error) => Err(anyhow!("{error}\n\nWhat to do: {}", error.hint())),
    }
}

/// Installs the C++ compiler, which compiles the kernels for the CPU in the GPU tests.
fn compiler() -> Result<()> {
    if process::succeeds(Command::new("c++").arg("--version")) {
        report("found", "c++, for tests of GPUs without one");
        return Ok(());
    }
    apt::install(&packages::COMPILER, &mut step).map_err(|why| {
        let command = apt::install_command(&packages::COMPILER);
        anyhow!("g++ is missing, which the tests of GPUs need: {why}\n\nWhat to do: `{command}` (Debian and Ubuntu, as root)")
    })?;
    report("installed", "g++, for tests of GPUs without one");
    Ok(())
}

/// Installs etcd for the tests and benchmarks of clusters, which are skipped without it.
pub(crate) fn etcd() {
    if has_etcd() {
        return report("found", "etcd, for tests of clusters");
    }
    match apt::install(&packages::ETCD, &mut step) {
        Ok(()) => report("installed", "etcd, for tests of clusters"),
        Err(why) => report("skipped", &format!("clusters are not tested: {why}")),
    }
}

/// Whether etcd is installed.
pub(crate) fn has_etcd() -> bool {
    process::succeeds(Command::new("etcd").arg("--version"))
}

/// Installs a NATS server for the tests of triggers, which are skipped without it.
pub(crate) fn nats() {
    if has_nats() {
        return report("found", "nats-server, for tests of triggers");
    }
    match apt::install(&packages::NATS, &mut step) {
        Ok(()) => report("installed", "nats-server, for tests of triggers"),
        Err(why) => report("skipped", &format!("triggers for streams are not tested: {why}")),
    }
}

/// Whether a NATS server is installed.
pub(crate) fn has_nats() -> bool {
    process::succeeds(Command::new("nats-server").arg("--version"))
}

/// Whether the browser is installed that the tests of the dashboard run, which are skipped without
/// it.
pub(crate) fn has_chromium() -> bool {
    process::succeeds(Command::new("chromium").arg("--version"))
}

/// Whether Prometheus' tool is installed, without which the alerts are not tested.
pub(crate) fn has_promtool() -> bool {
    process::succeeds(Command::new("promtool").arg("--version"))
}

/// Prints the next step.
pub(crate) fn step(what: &str) {
    eprintln!("  ... {what}");
}

/// Prints the result of a step.
pub(crate) fn report(verb: &str, what: &str) {
    eprintln!("{verb:>9} {what}");
}
