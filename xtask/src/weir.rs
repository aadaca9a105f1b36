//! The `weir` program: building it, and running a node.

use crate::process;
use crate::repo::Repo;
use anyhow::{Context as _, Result, bail};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Prefix of the line that `weir up` prints when it is ready.
const READY: &str = "weir listening on ";

/// Builds `weir` for the demo: without GPU support, in the profile that compiles fastest. Returns
/// its path.
pub(crate) fn build_for_demo(repo: &Repo) -> Result<PathBuf> {
    build(repo, "quick", &["--no-default-features"])
}

/// Builds `weir` with a Cargo profile. Returns its path.
pub(crate) fn build_with(repo: &Repo, profile: &str) -> Result<PathBuf> {
    let mut cargo = repo.cargo(".");
    cargo.args(["rustc", "--profile", profile, "-p", "weir-cli", "--bin", "weir"]);
    // Rust links with lld on x86-64. Equal functions, of which generic code has many, are linked
    // once.
    if cfg!(target_arch = "x86_64") {
        cargo.args(["--", "-C", "link-arg=-Wl,--icf=all"]);
    }
    process::run(&mut cargo)?;
    Ok(program(repo, profile))
}

fn build(repo: &Repo, profile: &str, features: &[&str]) -> Result<PathBuf> {
    let build = ["build", "--profile", profile, "-p", "weir-cli"];
    process::run(repo.cargo(".").args(build).args(features))?;
    Ok(program(repo, profile))
}

/// Path of `weir`, built with a Cargo profile.
fn program(repo: &Repo, profile: &str) -> PathBuf {
    // Cargo's folder of the `dev` profile is `debug`.
    target(repo).join(if profile == "dev" { "debug" } else { profile }).join("weir")
}

/// The programs that the end-to-end tests use.
pub(crate) struct TestPrograms {
    /// The node and its client.
    pub(crate) weir: PathBuf,
    /// The driver of a fake GPU.
    pub(crate) fake_cuda: PathBuf,
}

/// Builds the programs of the end-to-end tests, with the units of the workspace's build.
pub(crate) fn build_for_tests(repo: &Repo) -> Result<TestPrograms> {
    let mut cargo = repo.cargo(".");
    cargo.args(["build", "--workspace", "--bins", "--tests"]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    let output = cargo.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot start `{}`", process::line(&cargo)))?;
    if !output.status.success() {
        bail!("`{}` failed ({}); what it wrote is above", process::line(&cargo), output.status);
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let fake_cuda = variable_of_build(&messages, "WEIR_FAKE_CUDA_LIBRARY");
    let fake_cuda = fake_cuda.context("cargo does not say where the fake driver is")?;
    Ok(TestPrograms { weir: target(repo).join("debug/weir"), fake_cuda: fake_cuda.into() })
}

/// Builds all programs of the workspace, with the units of the workspace's build. Returns their
/// folder.
pub(crate) fn build_programs(repo: &Repo) -> Result<PathBuf> {
    process::run(repo.cargo(".").args(["build", "--workspace", "--bins"]))?;
    Ok(target(repo).join("debug"))
}

/// The value of a variable that a build script sets, in cargo's messages.
fn variable_of_build(messages: &str, name: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Message {
        #[serde(default)]
        env: Vec<(String, String)>,
    }
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
    messages.flat_map(|message| message.env).find_map(|(key, value)| (key == name).then_some(value))
}

/// Cargo's folder of products.
fn target(repo: &Repo) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repo.root().join("target"), PathBuf::from)
}

/// Node. Stopped on drop.
pub(crate) struct DemoNode {
    child: Child,
    url: String,
    /// Kept open: the node fails when it prints into a closed pipe.
    _stdout: BufReader<ChildStdout>,
    /// Temporary data folder, removed on drop.
    data: Option<PathBuf>,
}

impl DemoNode {
    /// Starts a node in a temporary folder on a free port.
    pub(crate) fn start(repo: &Repo, weir: &Path) -> Result<Self> {
        Self::start_with(repo, weir, |_| ())
    }

    /// Starts a node in a temporary folder on a free port; `settings` completes the command.
    pub(crate) fn start_with(repo: &Repo, weir: &Path, settings: impl FnOnce(&mut Command)) -> Result<Self> {
        let data = std::env::temp_dir().join(format!("weir-demo-{}", std::process::id()));
        let mut command = Command::new(weir);
        command
            .args(["up", "--listen", "127.0.0.1:0", "--no-deploy", "--data"])
            .arg(&data)
            .env("WEIR_ONNXRUNTIME", repo.onnxruntime())
            .current_dir(std::env::temp_dir());
        settings(&mut command);
        let mut node = Self::spawn(command)?;
        node.data = Some(data);
        Ok(node)
    }

    /// Runs `command`, which is or executes `weir up`, and waits until the node is ready.
    pub(crate) fn spawn(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", process::line(&command)))?;
        let mut stdout = BufReader::new(child.stdout.take().context("the node has no standard output")?);
        let mut node_line = String::new();
        stdout.read_line(&mut node_line).context("cannot read what the node prints")?;
        let Some(url) = node_line.trim().strip_prefix(READY) else {
            // The node has printed the reason on standard error.
            let _ = child.kill();
            bail!("the node did not start; what it wrote is above");
        };
        Ok(Self { url: url.to_owned(), child, _stdout: stdout, data: None })
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Stops the node with SIGTERM, and waits for its exit.
    pub(crate) fn stop(mut self) -> Result<()> {
        // Use the shell's builtin: a minimal Debian has no `kill` program.
        process::run(Command::new("sh").args(["-c", r#"kill "$1""#, "sh", &self.child.id().to_string()]))?;
        let status = self.child.wait().context("cannot wait for the node")?;
        if status.success() { Ok(()) } else { bail!("the node ended badly: {status}") }
    }

    /// Waits for the node's exit.
    pub(crate) fn wait(mut self) -> Result<()> {
        self.child.wait().context("cannot wait for the node")?;
        Ok(())
    }
}

impl Drop for DemoNode {
    fn drop(&mut self) {
        // Ignore errors of a node that has exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(data) = &self.data {
            let _ = std::fs::remove_dir_all(data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::variable_of_build;

    #[test]
    fn variables_of_build_scripts_are_found() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","package_id":"a"}"#,
            "\nnot JSON\n",
            r#"{"reason":"build-script-executed","env":[["OTHER","1"],["WANTED","/a/b"]]}"#,
        );
        assert_eq!(variable_of_build(messages, "WANTED").as_deref(), Some("/a/b"));
        assert_eq!(variable_of_build(messages, "MISSING"), None);
    }
}
