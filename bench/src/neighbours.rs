//! Effect of a misbehaving function on the clients of another function on the same node.

use crate::args::Args;
use crate::contender::{Contender, Results, compare};
use crate::load::{LoadSpec, Sample};
use crate::report::{Section, TextTable};
use crate::weir::{self, BenchNode, Spans, Weir};
use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Path of the measured function, and its number of connections.
const PATH: &str = "/fn/hello/";
const CONNECTIONS: u32 = 8;
/// Number of clients of the misbehaving function. Each calls again after every response.
const CALLERS: usize = 8;
/// Limits of the misbehaving function: the defaults with shorter times, so that a measurement
/// covers many calls.
pub(crate) const LIMITS: &str = "limits.cpu_time_ms=200&limits.deadline_ms=500";
const ALONE: &str = "nothing";
/// Misbehaviours, with the path that causes each.
pub(crate) const MISDEEDS: [(&str, &str); 10] = [
    ("computes without end", "/spin"),
    ("waits without end", "/sleep"),
    ("hoards memory", "/hoard"),
    ("recurses without end", "/recurse"),
    ("floods its log", "/log"),
    ("hoards handles", "/handles"),
    ("hoards tensors", "/tensors"),
    ("answers without end", "/body"),
    ("traps", "/trap"),
    ("opens a model it was not granted", "/open?secret"),
];
/// Interval of `/healthz` requests.
const HEALTH_EVERY: Duration = Duration::from_millis(20);

/// Results of the misbehaving calls, and the slowest `/healthz` response meanwhile.
#[derive(Default)]
struct Notes {
    endings: BTreeMap<String, u64>,
    health_worst: Duration,
}

type Book = Arc<Mutex<BTreeMap<&'static str, Notes>>>;

pub(crate) fn run(args: &Args) -> Result<Section> {
    let scratch = tempfile::tempdir()?;
    let load = LoadSpec::new(scratch.path(), None, args.seconds())?;
    let weir = Weir::new(args, scratch.path())?;
    let node = weir.start(Spans::Off)?;
    for (name, query) in [("hello", ""), ("misbehave", LIMITS)] {
        let component = args.functions.join(name).with_extension("wasm");
        let bytes =
            std::fs::read(&component).with_context(|| format!("cannot read {}", component.display()))?;
        node.put(&format!("/v1/functions/{name}?{query}"), &bytes)?;
    }
    drop(node);

    let book = Book::default();
    let measure = |what: &'static str, path: Option<&'static str>| {
        let node = weir.start(Spans::Off)?;
        let _watch = Repeat::spawn({
            let url = node.server.url("/healthz");
            let book = book.clone();
            let agent = weir::agent();
            move || {
                let asked = Instant::now();
                let answered = agent.get(&url).call().is_ok_and(|answer| answer.status() == 200);
                let took = if answered { asked.elapsed() } else { Duration::MAX };
                note(&book, what, |notes| notes.health_worst = notes.health_worst.max(took));
                std::thread::sleep(HEALTH_EVERY);
            }
        })?;
        let _callers = path.map(|path| misbehave(&node, what, path, &book)).transpose()?;
        load.warm_up(&node.server, PATH)?;
        Ok(vec![load.sample(&node.server, PATH, CONNECTIONS)?])
    };
    let measure = &measure;
    let alone = std::iter::once(Contender::new(ALONE, move || measure(ALONE, None)));
    let beside = MISDEEDS.map(|(what, path)| Contender::new(what, move || measure(what, Some(path))));
    let contenders: Vec<_> = alone.chain(beside).collect();
    let results = compare(&contenders, args.rounds())?;
    drop(contenders);
    let book = book.lock();
    Ok(Section {
        key: "neighbours",
        notes: vec![format!(
            "`hello` with {CONNECTIONS} connections, while {CALLERS} clients call another function again and again; the other function's limits are 200 ms of processor time and 500 ms in all. \
             Every call of `hello` was answered with 200: anything else fails the run."
        )],
        tables: vec![table(&results, &book)],
        samples: serde_json::to_value(&results)?,
    })
}

fn misbehave(node: &BenchNode, what: &'static str, path: &str, book: &Book) -> Result<Vec<Repeat>> {
    let url = node.server.url(&format!("/fn/misbehave{path}"));
    let caller = |_| {
        let url = url.clone();
        let book = book.clone();
        let agent = weir::agent();
        Repeat::spawn(move || {
            let ending = ending(agent.get(&url).call());
            note(&book, what, |notes| *notes.endings.entry(ending).or_default() += 1);
        })
    };
    (0..CALLERS).map(caller).collect()
}

/// Status and error code, or a note that the response was broken off.
pub(crate) fn ending(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> String {
    let Ok(mut answer) = answer else { return "no answer".to_owned() };
    let code = answer.headers().get("weir-error").and_then(|code| code.to_str().ok()).unwrap_or_default();
    let ending = format!("{} {code}", answer.status().as_u16()).trim_end().to_owned();
    match std::io::copy(&mut answer.body_mut().as_reader(), &mut std::io::sink()) {
        Ok(_) => ending,
        Err(_) => format!("{ending}, broken off"),
    }
}

fn note(book: &Book, what: &'static str, write: impl FnOnce(&mut Notes)) {
    write(book.lock().entry(what).or_default());
}

fn table(results: &Results, book: &BTreeMap<&'static str, Notes>) -> TextTable {
    let columns = [
        "the other function",
        "how its calls ended",
        "hello req/s",
        "p50 ms",
        "p99 ms",
        "p99 ms, worst round",
        "slowest /healthz ms",
    ];
    let mut table = TextTable::new("A neighbour that misbehaves", &columns);
    for name in results.names() {
        let spread = |what: fn(&Sample) -> f64| results.spread(name, CONNECTIONS, what);
        let (Some(rate), Some(p50), Some(p99)) =
            (spread(|s| s.requests_per_second), spread(|s| s.p50_us / 1e3), spread(|s| s.p99_us / 1e3))
        else {
            continue;
        };
        let notes = book.get(name);
        let endings = notes.map_or_else(String::new, |notes| {
            let each = notes.endings.iter().map(|(ending, count)| format!("{ending} ({count})"));
            each.collect::<Vec<_>>().join(", ")
        });
        let health = notes.map_or(f64::NAN, |notes| notes.health_worst.as_secs_f64() * 1e3);
        table.row([
            name.to_owned(),
            endings,
            format!("{:.0}", rate.median),
            format!("{:.2}", p50.median),
            format!("{:.2}", p99.median),
            format!("{:.2}", p99.max),
            format!("{health:.1}"),
        ]);
    }
    table
}

/// Repeats a task on its own thread until dropped.
pub(crate) struct Repeat {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Repeat {
    pub(crate) fn spawn(work: impl Fn() + Send + 'static) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let repeat = move || {
            while !stopped.load(Ordering::Relaxed) {
                work();
            }
        };
        let thread = std::thread::Builder::new().spawn(repeat)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Repeat {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The last call ends at the function's deadline.
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("a client panicked");
        }
    }
}
