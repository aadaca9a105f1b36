//! The book: every command in Start and Guides runs, in the order of its page, and the reference
//! lists every option, error code and metric.
//!
//! A page runs in an empty folder, with the `weir` under test and the Python of the third-party
//! clients on the `PATH`, and with the Python client of the repository. The language of a block, and
//! the comment on the line before it, select what happens:
//!
//! - `sh`: runs in bash, and has to succeed. A response with an error status fails `curl`. The next
//!   block starts in the folder that the block leaves.
//! - `text`, directly after a block that runs: each line has to appear in the output. `...` stands
//!   for any text.
//! - `<!-- test: background -->` before `sh`: starts one command that prints its address. The
//!   command ends at the next such block, or at the end of the page.
//! - `<!-- file: PATH -->` before any block: writes the block to the file.
//! - `<!-- not tested: REASON -->` before `sh`: does not run, for one of [`REASONS`].
//!
//! `127.0.0.1:9347` and the following ports stand for the addresses of the nodes in the background,
//! and `~/weir` for the repository.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use weir_tests::{Etcd, TestNode, function, model, onnxruntime, signal};
use weir_types::ErrorCode;
use weir_types::api::DEFAULT_PORT;

/// Reasons for commands that do not run in tests.
const REASONS: [&str; 6] = [
    "builds Weir",
    "installs software",
    "needs a GPU",
    "needs Kubernetes",
    "needs several machines",
    "needs the internet",
];

/// Time limit of a block in seconds, as an argument of `timeout`. Builds take the longest.
const BLOCK_TIME_MAX_S: &str = "900";

/// Time limit for the address of a background command.
const READY_TIME_MAX: Duration = Duration::from_secs(120);

/// Time limit for the graceful end of a background command.
const END_TIME_MAX: Duration = Duration::from_secs(60);

macro_rules! pages {
    ($($test:ident: $page:literal;)*) => {
        /// Pages whose commands run.
        const PAGES: &[&str] = &[$($page),*];

        $(
            #[test]
            fn $test() {
                run($page);
            }
        )*
    };
}

pages! {
    start_runs: "start.md";
    apply_guide_runs: "guides/apply.md";
    async_guide_runs: "guides/async.md";
    triggers_guide_runs: "guides/triggers.md";
    caching_guide_runs: "guides/caching.md";
    capacity_guide_runs: "guides/capacity.md";
    check_gpu_guide_runs: "guides/check-gpu.md";
    cluster_guide_runs: "guides/cluster.md";
    dashboard_guide_runs: "guides/dashboard.md";
    gpu_guide_runs: "guides/gpu.md";
    images_guide_runs: "guides/images.md";
    kernel_graphs_guide_runs: "guides/kernel-graphs.md";
    measure_guide_runs: "guides/measure.md";
    backup_guide_runs: "guides/backup.md";
    model_repository_guide_runs: "guides/model-repository.md";
    objects_guide_runs: "guides/objects.md";
    python_guide_runs: "guides/python.md";
    python_client_guide_runs: "guides/python-client.md";
    release_guide_runs: "guides/release.md";
    secrets_guide_runs: "guides/secrets.md";
    secure_guide_runs: "guides/secure.md";
    serve_model_guide_runs: "guides/serve-model.md";
    simulate_guide_runs: "guides/simulate.md";
    slo_guide_runs: "guides/slo.md";
    stream_guide_runs: "guides/stream.md";
    trace_guide_runs: "guides/trace.md";
    tritonclient_guide_runs: "guides/tritonclient.md";
    websocket_guide_runs: "guides/websocket.md";
    workflow_guide_runs: "guides/workflow.md";
}

#[test]
fn every_guide_is_tested() {
    for page in pages_in("guides") {
        assert!(PAGES.contains(&page.as_str()), "{page} is not in `pages!`");
    }
}

#[test]
fn commands_are_only_in_tested_pages() {
    for page in ["concepts", "reference"].into_iter().flat_map(pages_in) {
        let text = text_of(&page);
        let is_command = |line: &str| line.starts_with("```sh") || line.starts_with("```console");
        assert!(!text.lines().any(is_command), "{page} has commands, which belong in a guide");
    }
}

#[test]
fn every_command_and_option_is_documented() {
    documents_help(&[], &text_of("reference/cli.md"));
}

#[test]
fn every_error_code_is_documented() {
    let page = text_of("reference/errors.md");
    for code in ErrorCode::ALL {
        assert!(page.contains(&format!("\n| `{code}` |")), "{code} is not in reference/errors.md");
    }
}

#[tokio::test]
async fn every_metric_is_documented() {
    let node = TestNode::start().await;
    node.deploy("hello", function("hello")).await;
    node.get("/fn/hello").await.ok();
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    node.post("/v2/repository/models/m/load", "").await.ok();
    let page = text_of("reference/metrics.md");
    let metrics = node.get("/metrics").await.ok();
    for line in metrics.text().lines() {
        let described = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '));
        let Some((name, _)) = described else { continue };
        assert!(page.contains(&format!("`{name}`")), "{name} is not in reference/metrics.md");
    }
}

#[test]
fn ellipsis_stands_for_any_text() {
    assert!(shows("one\ntwo 2 three", "two ... three"));
    assert!(shows("weir listening on http://127.0.0.1:1", "listening on http://127.0.0.1:1"));
    assert!(!shows("two\nthree", "two ... three"));
}

/// One step of a page.
#[derive(Debug)]
enum PageStep {
    Run {
        script: String,
        is_background: bool,
        /// Lines that the output has to contain.
        expected: Vec<String>,
    },
    Write {
        path: String,
        content: String,
    },
}

/// Comment before a block.
#[derive(Debug)]
enum Marker {
    Background,
    File(String),
    NotTested,
}

impl Marker {
    fn parse(page: &str, comment: &str) -> Self {
        let text = comment.strip_prefix("<!--").and_then(|rest| rest.strip_suffix("-->"));
        let words = text.and_then(|text| text.split_once(':'));
        match words.map(|(kind, value)| (kind.trim(), value.trim())) {
            Some(("test", "background")) => Self::Background,
            Some(("file", path)) => Self::File(path.to_owned()),
            Some(("not tested", reason)) => {
                assert!(REASONS.contains(&reason), "{page}: {reason:?} is not in REASONS");
                Self::NotTested
            }
            _ => panic!("{page}: unknown comment {comment:?}"),
        }
    }
}

/// Steps of a page, in order.
fn steps(page: &str, text: &str) -> Vec<PageStep> {
    let mut steps: Vec<PageStep> = Vec::new();
    let mut marker = None;
    // Whether only blank lines follow the last step.
    let mut is_adjacent = false;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
            let was_adjacent = std::mem::take(&mut is_adjacent);
            let content = || block.iter().map(|line| format!("{line}\n")).collect::<String>();
            match (language, marker.take()) {
                (_, Some(Marker::NotTested)) => {}
                (_, Some(Marker::File(path))) => steps.push(PageStep::Write { path, content: content() }),
                ("sh", marker) => {
                    let is_background = matches!(marker, Some(Marker::Background));
                    steps.push(PageStep::Run { script: content(), is_background, expected: Vec::new() });
                    is_adjacent = true;
                }
                ("text", None) if was_adjacent => {
                    if let Some(PageStep::Run { expected, .. }) = steps.last_mut() {
                        let lines = block.iter().filter(|line| !line.trim().is_empty());
                        expected.extend(lines.map(|line| (*line).to_owned()));
                    }
                }
                ("console", _) => {
                    panic!("{page}: write commands as `sh`, without prompts, and output as `text`")
                }
                (_, None) => {}
                (_, Some(Marker::Background)) => panic!("{page}: only `sh` blocks run"),
            }
        } else if line.starts_with("<!--") {
            marker = Some(Marker::parse(page, line));
        } else if !line.trim().is_empty() {
            assert!(marker.is_none(), "{page}: no block follows the comment before {line:?}");
            is_adjacent = false;
        }
    }
    steps
}

/// Runs the steps of a page.
fn run(page: &str) {
    let text = text_of(page);
    let steps = steps(page, &text);
    if text.contains("\nweir cluster up") && !Etcd::is_installed() {
        return;
    }
    let mut session = PageSession::new(page);
    for step in &steps {
        match step {
            PageStep::Write { path, content } => session.write(path, content),
            PageStep::Run { script, is_background, expected } => {
                let output = if *is_background { session.start(script) } else { session.run(script) };
                for line in expected {
                    let line = session.localised(line);
                    assert!(shows(&output, &line), "{page}: {line:?} is not in the output:\n{output}");
                }
            }
        }
    }
}

/// A reader who follows a page.
struct PageSession<'a> {
    page: &'a str,
    // Ends before the folder is removed.
    background: Option<Background>,
    /// Folder of the next block.
    within: PathBuf,
    folder: TempDir,
    /// Holds the files that the page does not see: curl's settings, the log, and the name of the
    /// next folder.
    notes: TempDir,
}

impl<'a> PageSession<'a> {
    fn new(page: &'a str) -> Self {
        let folder = tempfile::Builder::new().prefix("weir-book-").tempdir().unwrap();
        let within = folder.path().to_owned();
        let notes = tempfile::tempdir().unwrap();
        fs::write(notes.path().join(".curlrc"), "fail-with-body\n").unwrap();
        Self { page, background: None, within, folder, notes }
    }

    /// Writes a file that the page shows.
    fn write(&self, path: &str, content: &str) {
        let path = self.within.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, self.localised(content)).unwrap();
    }

    /// Runs a block and returns its output.
    fn run(&mut self, script: &str) -> String {
        let next = self.notes.path().join("folder");
        let script = self.localised(script);
        let shell = format!("set -euo pipefail\nexec 2>&1\n{script}\npwd > \"$BOOK_NEXT_FOLDER\"\n");
        let mut command = self.command("timeout");
        command.args([BLOCK_TIME_MAX_S, "bash", "-c", &shell]).env("BOOK_NEXT_FOLDER", &next);
        if let Some(address) = self.addresses().first() {
            command.env("WEIR_URL", format!("{}://{address}", self.scheme()));
        }
        let output = command.output().expect("timeout and bash are installed");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let page = self.page;
        assert!(output.status.success(), "{page}: {}\n{script}\n{text}", output.status);
        self.within = fs::read_to_string(next).unwrap().trim_end_matches('\n').into();
        text
    }

    /// Starts a command in the background, instead of the previous such command. Returns the line
    /// with its addresses.
    fn start(&mut self, script: &str) -> String {
        self.background = None;
        let default = format!(":{DEFAULT_PORT}");
        let free_ports = script
            .replace(&format!("0.0.0.0{default}"), "127.0.0.1:0")
            .replace(&format!("127.0.0.1{default}"), "127.0.0.1:0")
            .replace("weir cluster up", "weir cluster up --port 0");
        let script = format!("exec {}", self.localised(&free_ports));
        let log = self.notes.path().join("log");
        let mut command = self.command("bash");
        command.args(["-c", &script]).env("WEIR_LISTEN", "127.0.0.1:0");
        command.stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
        let child = command.spawn().expect("bash is installed");
        let (background, line) = Background::wait(child).unwrap_or_else(|| {
            let page = self.page;
            let log = fs::read_to_string(&log).unwrap_or_default();
            panic!("{page}: the command did not print its address:\n{script}\n{log}")
        });
        self.background = Some(background);
        line
    }

    /// Command in the current folder, without the settings of the developer's environment.
    fn command(&self, program: &str) -> Command {
        let weir = TestNode::builder().binary().parent().unwrap().to_owned();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = [weir, repository().join(".weir/clients/bin")];
        let path = std::env::join_paths(folders.into_iter().chain(std::env::split_paths(&path))).unwrap();
        let mut command = Command::new(program);
        let settings = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WEIR_"));
        settings.for_each(|(name, _)| _ = command.env_remove(name));
        let library = std::env::var_os("WEIR_ONNXRUNTIME").or_else(|| onnxruntime().map(Into::into));
        if let Some(library) = library {
            command.env("WEIR_ONNXRUNTIME", library);
        }
        command.current_dir(&self.within).env("PATH", path).env("CURL_HOME", self.notes.path());
        command.env("PYTHONPATH", repository().join("clients/python/src"));
        command.stdin(Stdio::null());
        command
    }

    /// `text` with the addresses of the nodes, and the repository's folder.
    fn localised(&self, text: &str) -> String {
        let text = text.replace("~/weir", &repository().display().to_string());
        let ports = DEFAULT_PORT..;
        self.addresses()
            .iter()
            .zip(ports)
            .fold(text, |text, (address, port)| text.replace(&format!("127.0.0.1:{port}"), address))
    }

    fn scheme(&self) -> &'static str {
        if self.background.as_ref().is_some_and(|background| background.has_tls) { "https" } else { "http" }
    }

    fn addresses(&self) -> &[String] {
        match &self.background {
            Some(background) => &background.addresses,
            None => &[],
        }
    }
}

impl Drop for PageSession<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.notes.path().join("log")).unwrap_or_default();
            eprintln!("{} ran in {}; the log of its node:\n{log}", self.page, self.folder.path().display());
        }
    }
}

/// Command in the background. It is ended gracefully on drop.
struct Background {
    child: Child,
    /// `HOST:PORT` of each node.
    addresses: Vec<String>,
    has_tls: bool,
}

impl Background {
    /// Waits for the line with the addresses, and returns it, too. `None` if the command ends or
    /// takes too long.
    fn wait(mut child: Child) -> Option<(Self, String)> {
        let stdout = child.stdout.take()?;
        let mut background = Self { child, addresses: Vec::new(), has_tls: false };
        let (sender, lines) = mpsc::sync_channel(1);
        // Drains the output until its end, so that the pipe never fills.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let latest = Instant::now() + READY_TIME_MAX;
        loop {
            let line = lines.recv_timeout(latest.saturating_duration_since(Instant::now())).ok()?;
            background.has_tls = line.contains("https://");
            let words = line.split([' ', ',']);
            let words = words.filter_map(|word| {
                word.strip_prefix(if background.has_tls { "https://" } else { "http://" })
            });
            background.addresses = words.map(str::to_owned).collect();
            if !background.addresses.is_empty() {
                return Some((background, line));
            }
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        signal(self.child.id(), "TERM");
        let latest = Instant::now() + END_TIME_MAX;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < latest {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a line of `output` contains `expected`, in which `...` stands for any text.
fn shows(output: &str, expected: &str) -> bool {
    output.lines().any(|line| {
        let mut rest = Some(line);
        for piece in expected.split("...") {
            rest = rest.and_then(|rest| rest.split_once(piece)).map(|(_, rest)| rest);
        }
        rest.is_some()
    })
}

/// Checks that `page` has the options and subcommands in the help of `weir COMMAND`.
fn documents_help(command: &[&str], page: &str) {
    let output = Command::new(TestNode::builder().binary()).args(command).arg("--help").output();
    let help = String::from_utf8(output.expect("weir starts").stdout).unwrap();
    let shown = command.join(" ");
    for line in help.lines().map(str::trim_start).filter(|line| line.starts_with('-')) {
        let option = line.split([' ', ',', '=', '[']).find(|word| word.starts_with("--"));
        let option = option.filter(|option| !["--help", "--version"].contains(option));
        if let Some(option) = option {
            let is_documented = page.contains(&format!("| `{option}"));
            assert!(is_documented, "{option} of `weir {shown}` is not in reference/cli.md");
        }
    }
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in commands.take_while(|line| !line.is_empty()) {
        // Further lines of a description are indented more.
        let is_first = line.starts_with("  ") && !line.starts_with("   ");
        let name = line.split_whitespace().next().filter(|name| is_first && *name != "help");
        if let Some(name) = name {
            let mut command = command.to_vec();
            command.push(name);
            let heading = format!("# weir {}\n", command.join(" "));
            assert!(page.contains(&heading), "{heading:?} is not in reference/cli.md");
            documents_help(&command, page);
        }
    }
}

/// Text of a page, by its path in `docs/`.
fn text_of(page: &str) -> String {
    fs::read_to_string(docs().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// Pages in a folder of the book, relative to `docs/`.
fn pages_in(folder: &str) -> Vec<String> {
    let files = fs::read_dir(docs().join(folder)).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".md")).map(|name| format!("{folder}/{name}")).collect()
}

fn docs() -> PathBuf {
    repository().join("docs")
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate is in the repository")
}
