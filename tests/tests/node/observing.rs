//! `weir top`, `weir trace` and `weir logs`, as people run them beside a node that serves calls.

use reqwest::Method;
use serde_json::{Value, json};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use weir_tests::{TestClient, TestNode, eventually, function};
use weir_types::api::{LogLine, REQUEST_ID_HEADER};

/// Longest wait for the output of a command.
const PATIENCE: Duration = Duration::from_secs(30);

/// Command that runs `weir` with these arguments against `node`.
fn command(node: &TestNode, arguments: &[&str]) -> Command {
    let mut command = Command::new(node.binary());
    command.args(arguments).env("WEIR_URL", url(node)).kill_on_drop(true);
    command
}

fn url(node: &TestNode) -> String {
    node.url("").as_str().trim_end_matches('/').to_owned()
}

async fn call(node: &TestClient, path: &str, request_id: &str) {
    let request = node.request(Method::POST, path).header(REQUEST_ID_HEADER, request_id);
    // Some of the calls trap.
    request.body(vec![0_u8; 4]).send().await.unwrap();
}

/// Starts a node with the function `f`. Call `flooding` has lines on standard output and a message
/// about its log limit, and the later call `trapping` a line on standard error and a message with a
/// stack trace.
async fn start() -> TestNode {
    let node = TestNode::start().await;
    node.deploy_with("f", "limits.log_bytes=3000", function("misbehave")).await;
    for (path, request_id) in [("/fn/f/log", "flooding"), ("/fn/f/trap", "trapping")] {
        call(&node, path, request_id).await;
        eventually("the message about the call", async || {
            node.logs("f").await.iter().any(|line| is_message(line, request_id)).then_some(())
        })
        .await;
    }
    node
}

fn is_message(line: &LogLine, request_id: &str) -> bool {
    line.request_id == request_id && line.stream == "weir"
}

/// The lines that `weir logs f` prints.
async fn logs(node: &TestNode, arguments: &[&str]) -> Vec<LogLine> {
    let printed = node.weir(&[&["logs", "f", "--json"], arguments].concat()).await.unwrap();
    printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The requests and streams of lines.
fn origins(lines: &[LogLine]) -> Vec<(&str, &str)> {
    lines.iter().map(|line| (line.request_id.as_str(), line.stream.as_str())).collect()
}

#[tokio::test]
async fn logs_shows_lines_by_level_time_and_request() {
    let node = start().await;
    let all = logs(&node, &[]).await;
    assert_eq!(all, node.logs("f").await);
    assert_eq!(logs(&node, &["--since", "1h"]).await, all);
    assert_eq!(logs(&node, &["--level", "info"]).await, all);
    let select =
        |is_selected: fn(&LogLine) -> bool| all.iter().filter(|line| is_selected(line)).cloned().collect();
    let warnings: Vec<LogLine> = select(|line| line.stream != "stdout");
    assert_eq!(logs(&node, &["--level", "warn"]).await, warnings);
    assert_eq!(logs(&node, &["--errors"]).await, warnings);
    let messages: Vec<LogLine> = select(|line| line.stream == "weir");
    assert_eq!(logs(&node, &["--level", "error"]).await, messages);
    let trapping: Vec<LogLine> = select(|line| line.request_id == "trapping");
    assert_eq!(logs(&node, &["--request", "trapping"]).await, trapping);
    assert!(trapping.len() >= 2 && messages.len() == 2 && warnings.len() > 2, "{:?}", origins(&all));

    // The text has the time in the format that --since takes.
    let text = node.weir(&["logs", "f", "--request", "trapping"]).await.unwrap();
    let head: Vec<&str> = text.split_whitespace().take(4).collect();
    assert_eq!(head[1..], ["v1", "trapping", "stderr"], "{text}");
    assert!(text.contains("on purpose") && text.contains("frames: --verbose shows all"), "{text}");
    let since = logs(&node, &["--since", head[0]]).await;
    let expected: Vec<LogLine> = all.iter().filter(|line| line.at_ms >= trapping[0].at_ms).cloned().collect();
    assert_eq!(since, expected);
}

/// The newest lines of the log are those of another request or level.
#[tokio::test]
async fn logs_counts_the_lines_that_the_filters_select() {
    let node = start().await;
    let all = logs(&node, &[]).await;
    let newest = logs(&node, &["--request", "flooding", "-n", "2"]).await;
    assert_eq!(origins(&newest), [("flooding", "stdout"), ("flooding", "weir")]);
    for arguments in [["--errors", "-n", "1"], ["--since", "1h", "-n1"]] {
        assert_eq!(logs(&node, &arguments).await, all[all.len() - 1..], "{arguments:?}");
    }
    assert_eq!(logs(&node, &["--level", "error", "-n", "1"]).await.len(), 1);
    let none = command(&node, &["logs", "f", "--request", "unknown"]).output().await.unwrap();
    assert!(none.status.success() && none.stdout.is_empty(), "{none:?}");
    let note = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(note.contains("no log lines match"), "{note}");
    // More lines than are shown without options.
    for number in 0..60 {
        call(&node, "/fn/f/log", &format!("later-{number}")).await;
    }
    assert_eq!(logs(&node, &[]).await.len(), 100);
    let errors = logs(&node, &["--errors"]).await;
    assert!(errors.iter().any(|line| line.request_id == "trapping"), "{:?}", origins(&errors));
}

/// `weir logs -f`, whose output is read line by line.
struct Follower {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Follower {
    fn start(node: &TestNode, arguments: &[&str]) -> Self {
        let mut command = command(node, &[&["logs", "f", "--json", "-f"], arguments].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    async fn next(&mut self) -> LogLine {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await;
        let line = line.expect("no line arrived").unwrap().expect("the command ended");
        serde_json::from_str(&line).unwrap()
    }

    /// The exit status and standard error.
    async fn end(mut self) -> (ExitStatus, String) {
        let mut text = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        let read = tokio::time::timeout(PATIENCE, stderr.read_to_string(&mut text)).await;
        read.expect("the command did not end").unwrap();
        (self.child.wait().await.unwrap(), text)
    }
}

#[tokio::test]
async fn logs_follows_the_lines_that_the_filters_select() {
    let node = start().await;
    let mut errors = Follower::start(&node, &["--level", "error"]);
    let mut request = Follower::start(&node, &["--since", "1h", "--request", "trapping"]);
    let mut newest = Follower::start(&node, &["--level", "error", "-n", "1"]);
    for request_id in ["flooding", "trapping"] {
        let line = errors.next().await;
        assert!(is_message(&line, request_id), "{line:?}");
    }
    assert_eq!(request.next().await.stream, "stderr");
    while request.next().await.stream == "stderr" {}
    let line = newest.next().await;
    assert!(is_message(&line, "trapping"), "only the newest existing line: {line:?}");

    for request_id in ["other", "trapping"] {
        call(&node, "/fn/f/trap", request_id).await;
    }
    for follower in [&mut errors, &mut newest] {
        for request_id in ["other", "trapping"] {
            let line = follower.next().await;
            assert!(is_message(&line, request_id), "{line:?}");
        }
    }
    let line = request.next().await;
    assert_eq!((line.request_id.as_str(), line.stream.as_str()), ("trapping", "stderr"));
    node.stop().await;
    for follower in [errors, request, newest] {
        let (status, text) = follower.end().await;
        assert_eq!(status.code(), Some(3), "{text}");
        assert!(text.contains("the node closed the connection"), "{text}");
    }
}

/// A fake model for the function `infer`.
fn model() -> String {
    let port = |name: &str| json!([{"name": name, "datatype": "FP32", "shape": [null, 1]}]);
    json!({
        "load_time_ms": 30,
        "run_time_ms": {"1": 20},
        "resident_bytes": 1_000,
        "signature": {"inputs": port("x"), "outputs": port("y")},
    })
    .to_string()
}

const INFER: &str = "/fn/infer/m?shape=1,1";

async fn start_with_model() -> TestNode {
    let node = TestNode::builder().set("models.backend", "fake").start().await;
    node.push_model("m", 1, model()).await;
    node.deploy_with("infer", "models=m", function("infer")).await;
    node
}

/// A number with a unit, as `weir trace` prints it, in milliseconds.
fn ms(text: &str) -> f64 {
    let units = [("ms", 1.0), ("µs", 1e-3), ("ns", 1e-6), ("s", 1e3)];
    let found =
        units.iter().find_map(|(unit, scale)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * scale));
    found.unwrap_or_else(|| panic!("{text:?} is not a duration"))
}

#[tokio::test]
async fn trace_shows_phases_and_log_lines_of_a_call() {
    let node = start_with_model().await;
    node.deploy("f", function("misbehave")).await;
    call(&node, INFER, "the call/1").await;
    call(&node, INFER, "the call/2").await;
    let text = eventually("the end of the call", async || {
        let text = node.weir(&["trace", "the call/1"]).await.unwrap();
        (!text.contains("has not ended")).then_some(text)
    })
    .await;
    assert!(text.starts_with("request the call/1\n"), "{text}");
    let device = node.status().await.devices[0].name.clone();
    assert!(text.contains(&format!("The call was placed on {device}.")), "{text}");
    // Phases are in brackets of equal width, and then come the actual time and the estimate.
    let actual = |phase: &str| {
        let row =
            text.lines().find(|line| line.starts_with(phase)).unwrap_or_else(|| panic!("{phase}: {text}"));
        let times = row.rsplit_once(']').map_or(row.trim_start_matches("total"), |(_, times)| times);
        let first = times.split_whitespace().next().unwrap();
        if first == "-" { 0.0 } else { ms(first) }
    };
    assert!((30.0..5_000.0).contains(&actual("load")), "{text}");
    assert!((20.0..5_000.0).contains(&actual("run")), "{text}");
    let sum: f64 = ["wait", "load", "move", "run", "off device"].map(actual).iter().sum();
    assert!((actual("total") - sum).abs() < 0.1, "{text}");
    let second = node.weir(&["trace", "the call/2", "--json"]).await.unwrap();
    let second: Value = serde_json::from_str(&second).unwrap();
    assert_eq!(second["placement"]["outcome"]["load_time_ns"], 0, "{second}");

    call(&node, "/fn/f/trap", "trapping").await;
    let trapping = eventually("the message about the trap", async || {
        let text = node.weir(&["trace", "trapping"]).await.unwrap();
        text.contains("weir").then_some(text)
    })
    .await;
    assert!(trapping.contains("function f:1 failed with guest-trap, status 500"), "{trapping}");
    assert!(trapping.contains("it used no models"), "{trapping}");
    assert!(trapping.lines().any(|line| line.starts_with("instantiate ")), "{trapping}");
    assert!(trapping.contains("f v1 stderr") && trapping.contains("on purpose"), "{trapping}");
    assert!(!trapping.contains("infer v1"), "{trapping}");
    let without_log = node.weir(&["trace", "trapping", "--function", "infer"]).await.unwrap();
    assert!(!without_log.contains("on purpose"), "{without_log}");
    // A call that has neither a placement nor log lines.
    node.deploy("hello", function("hello")).await;
    call(&node, "/fn/hello/", "silent").await;
    let silent = eventually("the timeline", async || node.weir(&["trace", "silent"]).await.ok()).await;
    assert!(silent.contains("function hello:1 answered with status 200"), "{silent}");
    let error = node.weir(&["trace", "unknown"]).await.unwrap_err();
    assert!(error.contains("ask the node that received the call"), "{error}");
}

/// Calls of the functions `infer` and `f` until it is dropped. Calls of `f` trap.
struct Load(Arc<AtomicBool>);

impl Load {
    async fn start(node: &TestNode) -> Self {
        node.deploy("f", function("misbehave")).await;
        let stop = Arc::new(AtomicBool::new(false));
        for path in [INFER, "/fn/f/trap"] {
            let client = node.client().clone();
            let stop = stop.clone();
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    // The node of a test that has ended answers nothing.
                    let sent = client.request(Method::POST, path).body(vec![0_u8; 4]).send().await;
                    // A client that does not read the response cancels the call.
                    if let Ok(response) = sent {
                        let _ = response.bytes().await;
                    }
                }
            });
        }
        eventually("load", async || {
            let calls = async |function: &str| {
                node.metric("weir_invocations_total", &format!("function=\"{function}\"")).await
            };
            (calls("infer").await > 0.0 && calls("f").await > 0.0).then_some(())
        })
        .await;
        Self(stop)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The row of a table, whose first cell is `name`.
fn row<'a>(frame: &'a str, table: &str, name: &str) -> Vec<&'a str> {
    let rows = frame.lines().skip_while(|line| !line.starts_with(table)).skip(1);
    let mut rows = rows.take_while(|line| !line.is_empty()).map(|line| line.split_whitespace().collect());
    rows.find(|row: &Vec<&str>| row[0] == name).unwrap_or_else(|| panic!("no {name} in {table}:\n{frame}"))
}

#[tokio::test]
async fn top_shows_the_rates_of_a_node_under_load() {
    let node = start_with_model().await;
    let _load = Load::start(&node).await;
    let text = node.weir(&["top", "--interval-ms", "1000"]).await.unwrap();
    assert!(text.starts_with(&format!("weir top  {}  ready  version ", url(&node))), "{text}");
    let number = |text: &str| text.parse::<f64>().unwrap();
    let infer = row(&text, "FUNCTION", "infer");
    // A run takes 20 ms.
    assert!((1.0..50.0).contains(&number(infer[1])) && number(infer[2]) == 0.0, "{text}");
    assert!(ms(infer[3]) >= 5.0 && ms(infer[4]) >= ms(infer[3]), "{text}");
    let trapping = row(&text, "FUNCTION", "f");
    assert!(number(trapping[1]) > 0.0 && trapping[1] == trapping[2], "all calls fail:\n{text}");
    assert!(number(row(&text, "MODEL", "m")[1]) >= 1.0, "{text}");
    assert!(row(&text, "DEVICE", "cpu").contains(&"m:1"), "{text}");
    assert!(text.contains("LATEST EVENTS") && text.contains("function f has version 1"), "{text}");

    let json: Value = serde_json::from_str(&node.weir(&["top", "--once", "--json"]).await.unwrap()).unwrap();
    assert!(json["all"]["calls_per_s"].as_f64().unwrap() > 1.0, "{json}");
    assert!(json["cpu_cores"].as_f64().unwrap() > 0.0, "{json}");
    assert!(json["resident_bytes"].as_f64().unwrap() > 1e6, "{json}");
    let error = node.weir(&["top", "--interval-ms", "1"]).await.unwrap_err();
    assert!(error.contains("100..=60000"), "{error}");
}

/// Shows the alternate screen.
const OPEN: &str = "\x1b[?1049h";
/// Leaves it.
const CLOSE: &str = "\x1b[?1049l";
/// Moves the cursor to the first column of the first line: the start of a frame.
const HOME: &str = "\x1b[H";

/// `weir top` on a terminal, which `script` provides.
struct Terminal {
    child: Child,
    /// Printed so far.
    text: String,
}

impl Terminal {
    fn start(node: &TestNode) -> Self {
        let program = node.binary().display();
        let shell = format!("stty rows 12 cols 70; exec {program} top --interval-ms 200");
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &shell, "/dev/null"]).env("WEIR_URL", url(node));
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        Self { child: script.spawn().unwrap(), text: String::new() }
    }

    /// Reads until `is_enough`, or the end.
    async fn read(&mut self, is_enough: impl Fn(&str) -> bool) {
        let mut bytes = Vec::new();
        let stdout = self.child.stdout.as_mut().unwrap();
        while !is_enough(&self.text) {
            let read = tokio::time::timeout(PATIENCE, stdout.read_buf(&mut bytes)).await;
            let count = read.unwrap_or_else(|_| panic!("no more output after {:?}", self.text)).unwrap();
            if count == 0 {
                return;
            }
            self.text = String::from_utf8_lossy(&bytes).into_owned();
        }
    }
}

#[tokio::test]
async fn top_refreshes_a_terminal_until_a_key_ends_it() {
    let node = start_with_model().await;
    let _load = Load::start(&node).await;
    for key in ["q", "\x03"] {
        let mut terminal = Terminal::start(&node);
        terminal.read(|text| text.matches(HOME).count() > 4).await;
        let frames: Vec<&str> = terminal.text.split(HOME).collect();
        assert!(frames[0].contains(OPEN), "{:?}", frames[0]);
        let frame = frames[3].replace("\x1b[K", "").replace("\x1b[J", "").replace('\r', "");
        let lines: Vec<&str> = frame.split('\n').collect();
        assert!(lines[0].starts_with("weir top  http://"), "{lines:?}");
        assert!(lines.len() <= 12 && lines.iter().all(|line| line.chars().count() <= 70), "{lines:?}");
        assert!(!lines[1].contains(" 0.0/s"), "calls since the frame before: {lines:?}");
        let mut stdin = terminal.child.stdin.take().unwrap();
        stdin.write_all(key.as_bytes()).await.unwrap();
        terminal.read(|_| false).await;
        assert!(terminal.text.contains(CLOSE), "the terminal is restored: {:?}", terminal.text);
        let status = terminal.child.wait().await.unwrap();
        assert!(status.success(), "{key:?}: {status}");
    }
}
