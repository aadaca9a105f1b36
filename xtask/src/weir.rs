//! The `weir` program: building it, and running a node of it.

use crate::process;
use crate::repo::Repo;
use anyhow::{Context as _, Result, bail};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// What `weir up` prints once it answers, before its address.
const READY: &str = "weir listening on ";

/// Build `weir` for the demo: without GPUs, in the profile that compiles fastest. Gives the program's path.
pub(crate) fn build_for_demo(repo: &Repo) -> Result<PathBuf> {
    build(repo, "quick", &["--no-default-features"])
}

/// Build `weir` with one of Cargo's profiles. Gives the program's path.
pub(crate) fn build_with(repo: &Repo, profile: &str) -> Result<PathBuf> {
    build(repo, profile, &[])
}

fn build(repo: &Repo, profile: &str, features: &[&str]) -> Result<PathBuf> {
    let build = ["build", "--profile", profile, "-p", "weir-cli"];
    process::run(repo.cargo(".").args(build).args(features))?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repo.root().join("target"), PathBuf::from);
    // Cargo's own exception.
    Ok(target.join(if profile == "dev" { "debug" } else { profile }).join("weir"))
}

/// A node. Stopped when dropped.
pub(crate) struct Node {
    child: Child,
    url: String,
    /// Kept open: the node would fail to print into a closed pipe.
    _stdout: BufReader<ChildStdout>,
    /// Its folder, if that goes when it does.
    data: Option<PathBuf>,
}

impl Node {
    /// A node in a temporary folder, on a free port.
    pub(crate) fn start(repo: &Repo, weir: &Path) -> Result<Self> {
        let data = std::env::temp_dir().join(format!("weir-demo-{}", std::process::id()));
        let mut command = Command::new(weir);
        command
            .args(["up", "--listen", "127.0.0.1:0", "--no-deploy", "--data"])
            .arg(&data)
            .env("WEIR_ONNXRUNTIME", repo.onnxruntime())
            .current_dir(std::env::temp_dir());
        let mut node = Self::spawn(command)?;
        node.data = Some(data);
        Ok(node)
    }

    /// Run `command`, which is or becomes `weir up`, and wait until the node answers.
    pub(crate) fn spawn(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", process::line(&command)))?;
        let mut stdout = BufReader::new(child.stdout.take().context("the node has no standard output")?);
        let mut node_line = String::new();
        stdout.read_line(&mut node_line).context("cannot read what the node prints")?;
        let Some(url) = node_line.trim().strip_prefix(READY) else {
            // It has said on standard error why it did not start.
            let _ = child.kill();
            bail!("the node did not start; what it wrote is above");
        };
        Ok(Self { url: url.to_owned(), child, _stdout: stdout, data: None })
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Ask it to stop, as Ctrl-C does, and wait until it has.
    pub(crate) fn stop(mut self) -> Result<()> {
        // The shell's own: a minimal Debian has no program of that name.
        process::run(Command::new("sh").args(["-c", r#"kill "$1""#, "sh", &self.child.id().to_string()]))?;
        let status = self.child.wait().context("cannot wait for the node")?;
        if status.success() { Ok(()) } else { bail!("the node ended badly: {status}") }
    }

    /// Wait until it ends.
    pub(crate) fn wait(mut self) -> Result<()> {
        self.child.wait().context("cannot wait for the node")?;
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Neither matters once it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(data) = &self.data {
            let _ = std::fs::remove_dir_all(data);
        }
    }
}
