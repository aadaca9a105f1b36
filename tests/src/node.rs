//! Node process under test: `weir up` with a temporary folder.
//!
//! The process ends with [`TestNode::stop`] (SIGTERM, graceful), [`TestNode::kill`] (SIGKILL, like
//! a crash), or the drop of the `TestNode` (SIGKILL). The folder is removed with the last node that
//! was started on it. The log is printed if the test fails.

use crate::{Issued, TestClient, write_private};
use std::ffi::OsString;
use std::fs::File;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// Time limit for a node's start and shutdown. Generous, for busy machines.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of `unshare` for a process with separate mounts.
const UNSHARE: [&str; 3] = ["--user", "--map-root-user", "--mount"];

/// Number of log lines printed when a test fails.
const LOG_LINES_SHOWN: usize = 100;

/// Running node. Dereferences to its [`TestClient`].
pub struct TestNode {
    /// Dropped, and so killed, before the folder of the builder is removed.
    child: Child,
    builder: NodeBuilder,
    client: TestClient,
}

/// Builder of a [`TestNode`].
#[derive(Debug, Clone)]
pub struct NodeBuilder {
    listen: String,
    data: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
    binary: PathBuf,
    folder: Arc<TempDir>,
    /// Working directory of the process; `None`: the temporary folder.
    within: Option<PathBuf>,
    /// Soft and hard limit on open files.
    open_files: Option<(u64, u64)>,
    /// Size of the file system that the data folder has for itself.
    disk_bytes: Option<u64>,
}

impl TestNode {
    /// Returns a builder with the default settings and a free loopback port.
    #[must_use]
    pub fn builder() -> NodeBuilder {
        let folder = tempfile::Builder::new()
            .prefix("weir-test-")
            .tempdir()
            .expect("a temporary folder cannot be created");
        NodeBuilder {
            listen: "127.0.0.1:0".to_owned(),
            data: folder.path().join("data"),
            arguments: Vec::new(),
            environment: Vec::new(),
            binary: binary(),
            folder: Arc::new(folder),
            within: None,
            open_files: None,
            disk_bytes: None,
        }
    }

    /// Starts a node with the default settings.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// The client of this node.
    #[must_use]
    pub fn client(&self) -> &TestClient {
        &self.client
    }

    /// Process ID of the node.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id().expect("the node has ended")
    }

    /// Data folder of the node.
    #[must_use]
    pub fn data(&self) -> &Path {
        self.builder.data()
    }

    /// Data folder as the node sees it. With [`NodeBuilder::small_disk`], it differs from
    /// [`data`](Self::data).
    #[must_use]
    pub fn data_seen_by_node(&self) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.pid()));
        root.join(self.data().strip_prefix("/").expect("an absolute path"))
    }

    /// Path of the node's `weir` binary.
    #[must_use]
    pub fn binary(&self) -> &Path {
        self.builder.binary()
    }

    /// Runs the `weir` command line against this node. Returns standard output, or standard error
    /// if the command fails.
    pub async fn weir(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(self.binary());
        command
            .args(arguments)
            .env("WEIR_URL", self.url("").as_str().trim_end_matches('/'))
            .kill_on_drop(true);
        let output = command.output().await.expect("the command line cannot be run");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// The node's log so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.builder.log()
    }

    /// Kills the node with SIGKILL. The returned builder starts a node on the same folder.
    pub async fn kill(mut self) -> NodeBuilder {
        self.child.kill().await.expect("the node could not be killed");
        self.builder.clone()
    }

    /// Stops the node with SIGTERM and waits for its exit.
    pub async fn stop(mut self) -> NodeBuilder {
        self.terminate();
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        let status = ended.expect("the node did not end").expect("the node cannot be waited for");
        assert!(status.success(), "the node ended with {status}");
        self.builder.clone()
    }

    /// Sends SIGTERM without waiting.
    pub fn terminate(&self) {
        crate::signal(self.pid(), "TERM");
    }
}

impl NodeBuilder {
    /// Sets a `[node]` setting, as `weir up --set` does.
    #[must_use]
    pub fn set(mut self, key: &str, value: impl std::fmt::Display) -> Self {
        self.arguments.extend(["--set".into(), format!("{key}={value}").into()]);
        self
    }

    /// Adds an argument of `weir up`.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// Sets the soft and the hard limit on open files.
    #[must_use]
    pub fn open_files(mut self, soft: u64, hard: u64) -> Self {
        self.open_files = Some((soft, hard));
        self
    }

    /// Gives the data folder a file system of `bytes` in memory, which ends with the node. `None`
    /// where users may not mount file systems, with the reason printed.
    #[must_use]
    pub fn small_disk(self, bytes: u64) -> Option<Self> {
        let probe = std::process::Command::new("unshare")
            .args(UNSHARE)
            .args(["sh", "-c", "mount -t tmpfs none /mnt"])
            .output();
        match probe {
            Ok(output) if output.status.success() => Some(Self { disk_bytes: Some(bytes), ..self }),
            Ok(output) => {
                eprintln!("skipped: cannot mount: {}", String::from_utf8_lossy(&output.stderr));
                None
            }
            Err(error) => {
                eprintln!("skipped: cannot run unshare: {error}");
                None
            }
        }
    }

    /// Requires one of these tokens, each a line of a token file.
    #[must_use]
    pub fn tokens(self, lines: &[&str]) -> Self {
        let path = self.folder.path().join("tokens");
        write_private(&path, &lines.join("\n"));
        self.argument("--token-file").argument(path)
    }

    /// Speaks TLS with this certificate.
    #[must_use]
    pub fn tls(self, issued: &Issued) -> Self {
        self.argument("--tls-cert").argument(&issued.certificate).argument("--tls-key").argument(&issued.key)
    }

    /// Starts the node in `folder`. In a project's folder the node builds and deploys the function.
    #[must_use]
    pub fn within(self, folder: &Path) -> Self {
        Self { within: Some(folder.to_owned()), ..self }
    }

    /// Listens on `address` instead of the loopback interface.
    #[must_use]
    pub fn listen(self, address: &str) -> Self {
        Self { listen: address.to_owned(), ..self }
    }

    /// Uses the data folder of another node.
    #[must_use]
    pub fn data_of(self, other: &TestNode) -> Self {
        Self { data: other.data().to_owned(), ..self }
    }

    /// Runs a copy of the `weir` binary, which the test may delete.
    #[must_use]
    pub fn copy_of_binary(self) -> Self {
        let copy = self.folder.path().join("weir");
        std::fs::copy(&self.binary, &copy).expect("the binary cannot be copied");
        Self { binary: copy, ..self }
    }

    /// Path of the `weir` binary.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Data folder.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The log of the nodes of this builder so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Starts the node, and waits until it is ready.
    pub async fn start(self) -> TestNode {
        self.try_start().await.unwrap_or_else(|log| panic!("the node did not start; its log:\n{log}"))
    }

    /// Starts the node, or returns its log if it does not become ready.
    pub async fn try_start(self) -> Result<TestNode, String> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("the log cannot be opened");
        let mut command = match (self.open_files, self.disk_bytes) {
            (None, None) => Command::new(&self.binary),
            (None, Some(bytes)) => {
                std::fs::create_dir_all(&self.data).expect("the mount point cannot be made");
                let mut unshare = Command::new("unshare");
                let script = "mount -t tmpfs -o size=\"$0\" none \"$1\" && shift && exec \"$@\"";
                unshare.args(UNSHARE).args(["sh", "-c", script]).arg(bytes.to_string());
                unshare.arg(&self.data).arg(&self.binary);
                unshare
            }
            (Some((soft, hard)), _) => {
                let mut shell = Command::new("sh");
                let script = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\"");
                shell.arg("-c").arg(script).arg(&self.binary);
                shell
            }
        };
        command.arg("up").args(["--listen", &self.listen, "--data"]).arg(&self.data);
        command.arg("--set").arg(compile_cache()).args(&self.arguments);
        // Remove the settings of the developer's environment.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("WEIR_") || text.starts_with("OTEL_") {
                command.env_remove(&name);
            }
        }
        if let Some(library) =
            std::env::var_os("WEIR_ONNXRUNTIME").or_else(|| crate::onnxruntime().map(Into::into))
        {
            command.env("WEIR_ONNXRUNTIME", library);
        }
        command
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(self.within.as_deref().unwrap_or(self.folder.path()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.binary.display()));
        let mut lines = BufReader::new(child.stdout.take().expect("standard output is piped")).lines();
        let Ok(Some(url)) = tokio::time::timeout(PATIENCE, ready(&mut lines)).await else {
            let _ = child.kill().await;
            return Err(std::fs::read_to_string(self.log_path()).unwrap_or_default());
        };
        // Drain the output, so that the pipe never fills. The task ends with the node.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(TestNode { builder: self, child, client: TestClient::new(url) })
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }
}

impl Deref for TestNode {
    type Target = TestClient;
    fn deref(&self) -> &TestClient {
        &self.client
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let shown = lines.len().saturating_sub(LOG_LINES_SHOWN);
            eprintln!("the last lines of the node's log:\n{}", lines[shown..].join("\n"));
        }
    }
}

/// Returns the address in the node's ready line, or `None` if the node ends before.
async fn ready(lines: &mut Lines<BufReader<ChildStdout>>) -> Option<String> {
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(url) = line.strip_prefix("weir listening on ") {
            return Some(url.trim().to_owned());
        }
    }
    None
}

/// Path of the `weir` binary under test: `WEIR_BIN`, or the binary in the tests' target folder.
/// Setting of the compile cache that all nodes of the tests share: most tests deploy the same
/// interpreters.
fn compile_cache() -> String {
    let binary = binary();
    let folder = binary.parent().expect("a binary is in a folder").join("compile-cache");
    format!("sandbox.compile_cache.folder={}", folder.display())
}

fn binary() -> PathBuf {
    if let Some(binary) = std::env::var_os("WEIR_BIN") {
        return binary.into();
    }
    let tests = std::env::current_exe().expect("the test runs from a file");
    let folder = tests.parent().and_then(Path::parent).expect("tests are in target/PROFILE/deps");
    let binary = folder.join("weir");
    let path = binary.display();
    assert!(
        binary.is_file(),
        "{path} is missing: build it with `cargo build -p weir-cli`, or run `cargo xtask test`"
    );
    binary
}
