//! Processor time of the dispatcher and of the nodes, and the parts of the dispatcher that use it.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Names of the threads of the dispatcher, and of the nodes.
pub(crate) const DISPATCHER: &str = "dispatcher";
pub(crate) const NODES: &str = "nodes";

/// Samples per second of the profile.
const SAMPLES_PER_SECOND: u32 = 499;

/// Processor time of threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CpuTimes {
    dispatcher_ns: u64,
    nodes_ns: u64,
}

impl CpuTimes {
    /// Reads the times of this process's threads so far.
    pub(crate) fn read() -> Self {
        let mut times = Self { dispatcher_ns: 0, nodes_ns: 0 };
        for (thread, name) in threads() {
            let Ok(statistics) = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")) else {
                continue;
            };
            let ran_ns: u64 = statistics.split_whitespace().next().unwrap().parse().unwrap();
            match &*name {
                DISPATCHER => times.dispatcher_ns += ran_ns,
                NODES => times.nodes_ns += ran_ns,
                _ => {}
            }
        }
        times
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            dispatcher_ns: self.dispatcher_ns - before.dispatcher_ns,
            nodes_ns: self.nodes_ns - before.nodes_ns,
        }
    }

    /// Microseconds of the dispatcher for each of these placements.
    pub(crate) fn dispatcher_us(&self, placed: usize) -> f64 {
        self.dispatcher_ns as f64 / 1e3 / placed as f64
    }

    /// Microseconds of all nodes for each of these placements.
    pub(crate) fn nodes_us(&self, placed: usize) -> f64 {
        self.nodes_ns as f64 / 1e3 / placed as f64
    }
}

/// The threads of this process, with their names.
fn threads() -> Vec<(String, String)> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap());
    let threads = tasks.filter_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        Some((task.file_name().into_string().unwrap(), name.trim().to_owned()))
    });
    threads.collect()
}

/// Parts of the dispatcher, with words in the names of their functions. A sample counts for the
/// first part that one of its frames belongs to, innermost frame first.
const PARTS: [(&str, &[&str]); 7] = [
    ("scheduler", &["weir_scheduler::"]),
    ("link: decode", &["serde_json::de", "::frames::decode", "Deserialize", "LinesCodec"]),
    ("link: encode", &["serde_json::ser", "::frames::encode", "Serialize"]),
    ("link: TLS", &["rustls::", "ring_core", "ring::"]),
    ("placements: calls, lock", &["weir_cluster::placement"]),
    ("link: HTTP/2", &["h2::", "hyper::", "hyper_util::"]),
    ("link: read, write", &["mio::", "tokio::net", "__libc_recv", "__libc_send", "writev", "[kernel"]),
];
const REST: &str = "rest: tasks, timers, channels";

/// A running `perf`.
pub(crate) struct Profile {
    perf: Child,
    folder: TempDir,
}

impl Profile {
    /// Samples the dispatcher's threads for `time`.
    pub(crate) fn start(time: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let of_dispatcher = threads().into_iter().filter(|(_, name)| name == DISPATCHER);
        let threads: Vec<_> = of_dispatcher.map(|(thread, _)| thread).collect();
        let perf = Command::new("perf")
            .args(["record", "--quiet", "-e", "cpu-clock", "--call-graph=dwarf,16384", "-F"])
            .arg(SAMPLES_PER_SECOND.to_string())
            .arg(format!("--tid={}", threads.join(",")))
            .arg("-o")
            .arg(folder.path().join("samples"))
            .args(["sleep", &time.as_secs().to_string()])
            .stdout(Stdio::null())
            .spawn();
        let perf = perf.unwrap_or_else(|error| panic!("--profile needs perf (Debian: linux-perf): {error}"));
        Self { perf, folder }
    }

    /// The parts' shares of the samples, largest first.
    pub(crate) fn shares(mut self) -> Vec<(&'static str, f64)> {
        assert!(self.perf.wait().unwrap().success(), "perf cannot record; see kernel.perf_event_paranoid");
        let script = Command::new("perf")
            .args(["script", "--no-inline", "-F", "ip,sym,dso", "-i"])
            .arg(self.folder.path().join("samples"))
            .stderr(Stdio::null())
            .output()
            .unwrap();
        let script = String::from_utf8_lossy(&script.stdout).into_owned();
        let mut counts = BTreeMap::new();
        for frames in script.split("\n\n").filter(|frames| !frames.trim().is_empty()) {
            *counts.entry(part_of(frames)).or_insert(0_u64) += 1;
        }
        let sum: u64 = counts.values().sum();
        assert!(sum > 0, "perf recorded no samples");
        let mut shares: Vec<_> =
            counts.into_iter().map(|(part, count)| (part, count as f64 / sum as f64)).collect();
        shares.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        shares
    }
}

/// The part that a sample counts for. `frames` has a line for each frame, innermost first.
fn part_of(frames: &str) -> &'static str {
    let part_of_frame = |frame: &str| {
        let has_word = |(_, words): &&(&str, &[&str])| words.iter().any(|word| frame.contains(word));
        PARTS.iter().find(has_word).map(|(part, _)| *part)
    };
    frames.lines().find_map(part_of_frame).unwrap_or(REST)
}
