//! Duration of host calls, with one guest and with many.

use crate::args::Args;
use crate::report::{Section, TextTable};
use crate::stats::Spread;
use crate::weir::{BenchNode, Spans, Weir};
use anyhow::{Context as _, Result, anyhow};
use std::collections::BTreeMap;

/// Numbers of concurrent guests.
const GUESTS: [usize; 2] = [1, 48];
/// Calls of each kind per guest.
const CALLS: u32 = 20_000;

/// Kinds of calls: name, description, and upper bounds in microseconds for the numbers of guests in
/// [`GUESTS`].
const KINDS: [(&str, &str, Option<[f64; 2]>); 4] = [
    ("shape", "`tensor.shape`", Some([3.0, 5.0])),
    ("describe", "`model.describe`, which returns lists of strings", Some([3.0, 5.0])),
    ("open", "`model.open` of a loaded model", Some([3.0, 5.0])),
    ("infer", "`infer` of a model that takes no time: the switches to the device thread and back", None),
];

pub(crate) fn run(args: &Args) -> Result<Section> {
    let scratch = tempfile::tempdir()?;
    let weir = Weir::new(args, scratch.path())?.with_settings(&["models.backend=fake"]);
    let node = weir.start(Spans::Off)?;
    let port = |name: &str| serde_json::json!([{ "name": name, "datatype": "FP32", "shape": [null, 1] }]);
    let model = serde_json::json!({
        "run_time_ms": { "1": 0 },
        "resident_bytes": 1,
        "signature": { "inputs": port("x"), "outputs": port("y") },
    });
    node.put("/v1/models/nothing?batching.mode=off", model.to_string().as_bytes())?;
    let component = args.functions.join("host-calls.wasm");
    let bytes = std::fs::read(&component).with_context(|| format!("cannot read {}", component.display()))?;
    node.put("/v1/functions/host-calls?models=nothing&limits.deadline_ms=120000", &bytes)?;
    drop(node);

    let mut samples: BTreeMap<(usize, String), Vec<f64>> = BTreeMap::new();
    for _ in 0..args.rounds() {
        let node = weir.start(Spans::Off)?;
        for guests in GUESTS {
            for (kind, time_us) in measure(&node, guests)? {
                samples.entry((guests, kind)).or_default().push(time_us);
            }
        }
    }
    let mut table = TextTable::new("Host calls", &["call", "guests", "µs", "[min .. max]", "bound", ""]);
    for (kind, what, bounds) in KINDS {
        for (at, guests) in GUESTS.into_iter().enumerate() {
            let times = samples.get(&(guests, kind.to_owned())).into_iter().flatten().copied();
            let Spread { median, min, max } =
                Spread::from_samples(times).context("a kind of call was not measured")?;
            let bound = bounds.map(|bounds| bounds[at]);
            table.row([
                what.to_owned(),
                guests.to_string(),
                format!("{median:.2}"),
                format!("[{min:.2} .. {max:.2}]"),
                bound.map_or_else(String::new, |bound| format!("{bound:.0}")),
                bound.map_or("", |bound| if median <= bound { "met" } else { "missed" }).to_owned(),
            ]);
        }
    }
    let notes = vec![format!(
        "Each guest makes {CALLS} calls of each kind, reads its clock after every twenty calls, and reports its median. The table shows the median over guests and rounds."
    )];
    let samples: BTreeMap<String, _> =
        samples.into_iter().map(|((guests, kind), times)| (format!("{kind} of {guests}"), times)).collect();
    Ok(Section { key: "calls", notes, tables: vec![table], samples: serde_json::to_value(samples)? })
}

/// Median microseconds per call of each kind over `guests` concurrent guests.
fn measure(node: &BenchNode, guests: usize) -> Result<Vec<(String, f64)>> {
    let path = format!("/fn/host-calls/nothing?calls={CALLS}");
    let answers: Vec<Result<Vec<u8>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..guests).map(|_| scope.spawn(|| node.get(&path))).collect();
        let lost = |_| Err(anyhow!("a thread panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect()
    });
    let mut times: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for answer in answers {
        for line in String::from_utf8(answer?)?.lines() {
            let (kind, ns) = line.split_once(' ').context("a line of the response has no time")?;
            times.entry(kind.to_owned()).or_default().push(ns.parse::<f64>()? / 1e3);
        }
    }
    let median = |(kind, times): (String, Vec<f64>)| Some((kind, Spread::from_samples(times)?.median));
    Ok(times.into_iter().filter_map(median).collect())
}
