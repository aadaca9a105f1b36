//! Workflows: overhead of composition, compared with single steps and with a pipeline of HTTP
//! calls.

use crate::args::Args;
use crate::protocol::{BinaryRequest, InputTensor, numbers};
use crate::report::{Section, TextTable};
use crate::stats::Spread;
use crate::weir::{BenchNode, Spans, Weir};
use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// Run time of each branch of the ensemble on the fake backend.
const BRANCH_MS: f64 = 50.0;
/// Upper bound of the ensemble's time relative to its slowest branch.
const OVERHEAD_MAX: f64 = 1.05;
/// Steps of the long chain; the short chain has one.
const CHAIN: usize = 9;
/// Tensor sizes, in numbers of four bytes.
const SIZES: [(usize, &str); 3] = [(1 << 8, "1 KiB"), (1 << 18, "1 MiB"), (1 << 22, "16 MiB")];
/// Digits per request.
const BATCHES: [usize; 2] = [1, 32];

/// Median call times per round.
#[derive(Debug, Default, Serialize)]
struct Samples {
    what: String,
    medians_us: Vec<f64>,
}

pub(crate) fn run(args: &Args) -> Result<Section> {
    let scratch = tempfile::tempdir()?;
    let fake = Weir::new(args, &scratch.path().join("fake"))?
        .with_settings(&["models.backend=fake", "models.slots=4"]);
    let fake = fake.start(Spans::Off)?;
    let real = Weir::new(args, &scratch.path().join("real"))?.start(Spans::Off)?;
    let mut samples = Vec::new();
    let tables = vec![
        ensemble(args, &fake, &mut samples)?,
        hand_over(args, &fake, &mut samples)?,
        pipeline(args, &real, &mut samples)?,
    ];
    let note = "One client makes one call at a time. Rounds are interleaved, and a ratio compares the medians of the calls of one round.";
    Ok(Section {
        key: "workflows",
        notes: vec![note.to_owned()],
        tables,
        samples: serde_json::to_value(samples)?,
    })
}

/// Measures three parallel branches, and one branch alone.
fn ensemble(args: &Args, node: &BenchNode, samples: &mut Vec<Samples>) -> Result<TextTable> {
    for branch in ["a", "b", "c"] {
        push_fake(node, branch, BRANCH_MS)?;
    }
    let steps: Vec<_> = ["a", "b", "c"].iter().map(|name| (*name, step(name, "x"))).collect();
    let mut steps = serde_json::Map::from_iter(steps.into_iter().map(|(name, step)| (name.to_owned(), step)));
    steps.insert("mean".into(), json!({"combine": "mean", "of": ["a", "b", "c"]}));
    deploy(node, "ensemble", &json!({"inputs": {"x": "FP32[n]"}, "steps": steps, "outputs": {"y": "mean"}}))?;
    // One item: the fake model's run time is per item.
    let body = request(&[0.5]);
    let mut measured = compare(
        args,
        samples,
        &mut [
            ("one branch", &mut || infer(node, "a", &body)),
            ("the ensemble", &mut || infer(node, "ensemble", &body)),
        ],
    )?;
    let ensemble = measured.pop().unwrap_or_default();
    let branch = measured.pop().unwrap_or_default();
    let mut table = TextTable::new(
        format!("Three branches of {BRANCH_MS} ms on the fake backend, and their mean"),
        &["", "p50", "relative to one branch", "bound"],
    );
    table.row(["one branch".into(), milliseconds(&branch), String::new(), String::new()]);
    table.row([
        "the ensemble".into(),
        milliseconds(&ensemble),
        times(ratio(&ensemble, &branch)),
        format!("{OVERHEAD_MAX}x"),
    ]);
    Ok(table)
}

/// Measures the cost of one more step: a handle within a workflow, or a request and a response.
fn hand_over(args: &Args, node: &BenchNode, samples: &mut Vec<Samples>) -> Result<TextTable> {
    push_fake(node, "pass", 0.0)?;
    for length in [1, CHAIN] {
        let name = |place: usize| format!("s{place}");
        let source = |place: usize| place.checked_sub(1).map_or_else(|| "x".to_owned(), name);
        let steps = (0..length).map(|place| (name(place), step("pass", &source(place))));
        let steps: serde_json::Map<_, _> = steps.collect();
        let outputs = json!({"y": name(length - 1)});
        deploy(
            node,
            &format!("chain-{length}"),
            &json!({"inputs": {"x": "FP32[n]"}, "steps": steps, "outputs": outputs}),
        )?;
    }
    let title = "Time of one more step: in the workflow, which passes a handle, or as a separate call with binary tensors";
    let mut table = TextTable::new(title, &["", "in the workflow", "separate call", "ratio"]);
    for (len, size) in SIZES {
        let body = request(&vec![0.5; len]);
        let long = format!("chain-{CHAIN}");
        let measured = compare(
            args,
            samples,
            &mut [
                (&*format!("a chain of one, {size}"), &mut || infer(node, "chain-1", &body)),
                (&*format!("a chain of {CHAIN}, {size}"), &mut || infer(node, &long, &body)),
                (&*format!("a call, {size}"), &mut || infer(node, "pass", &body)),
            ],
        )?;
        let per_step = |(long, short): (&f64, &f64)| (long - short) / (CHAIN - 1) as f64;
        let handles: Vec<f64> = measured[1].iter().zip(&measured[0]).map(per_step).collect();
        // If both chains take equally long, the ratio is undefined.
        let can_be_told = handles.iter().all(|us| *us > 0.0);
        let ratio = if can_be_told {
            times(ratio(&measured[2], &handles))
        } else {
            "too small to measure".to_owned()
        };
        table.row([size.to_owned(), microseconds(&handles), microseconds(&measured[2]), ratio]);
    }
    Ok(table)
}

/// Measures the ensemble in `examples/workflows`, and a client that calls its models: one, then
/// three concurrently, then the mean.
fn pipeline(args: &Args, node: &BenchNode, samples: &mut Vec<Samples>) -> Result<TextTable> {
    let examples = args.scripts.join("../../examples/workflows");
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    for (name, file) in [
        ("digits-prepare", examples.join("prepare.onnx")),
        ("digits-linear", examples.join("linear.onnx")),
        ("digits-hidden", examples.join("hidden.onnx")),
        ("digits", args.model("digits")),
    ] {
        node.put(&format!("/v1/models/{name}/versions/1"), &read(&file)?)?;
    }
    node.put("/v1/workflows/digits-ensemble", &read(&examples.join("ensemble.toml"))?)?;
    let title = "The ensemble of digits (`examples/workflows`), compared with a client that makes the same four HTTP calls, three of them concurrently";
    let mut table =
        TextTable::new(title, &["digits", "workflow, p50", "four calls, p50", "calls relative to workflow"]);
    for batch in BATCHES {
        let pixels: Vec<u8> = (0..batch * 64).map(|i| (i * 7 % 17) as u8).collect();
        let body = binary("pixels", "UINT8", &[batch, 8, 8], &pixels);
        let by_hand = by_hand(node, batch, &body)?;
        let answered = numbers(&infer(node, "digits-ensemble", &body)?)?;
        ensure!(is_close(&answered, &by_hand), "the outputs of the workflow differ from those of its models");
        let measured = compare(
            args,
            samples,
            &mut [
                (&*format!("workflow, {batch}"), &mut || infer(node, "digits-ensemble", &body)),
                (&*format!("four calls, {batch}"), &mut || {
                    self::by_hand(node, batch, &body).map(|_| Vec::new())
                }),
            ],
        )?;
        let ratio = ratio(&measured[1], &measured[0]);
        table.row([batch.to_string(), microseconds(&measured[0]), microseconds(&measured[1]), times(ratio)]);
    }
    Ok(table)
}

/// The pipeline in a client.
fn by_hand(node: &BenchNode, batch: usize, body: &BinaryRequest) -> Result<Vec<f32>> {
    let image = numbers(&infer(node, "digits-prepare", body)?)?;
    let bytes: Vec<u8> = image.iter().flat_map(|value| value.to_le_bytes()).collect();
    let body = binary("image", "FP32", &[batch, 1, 8, 8], &bytes);
    let answers = std::thread::scope(|scope| {
        let calls = ["digits-linear", "digits-hidden", "digits"].map(|name| {
            let body = &body;
            scope.spawn(move || numbers(&infer(node, name, body)?))
        });
        calls.map(|call| call.join().unwrap_or_else(|_| anyhow::bail!("a call panicked")))
    });
    let [linear, hidden, large] = answers;
    let sums = linear?.into_iter().zip(hidden?).zip(large?);
    Ok(sums.map(|((a, b), c)| (a + b + c) / 3.0).collect())
}

/// A timed call with its name.
type TimedCall<'a> = (&'a str, &'a mut dyn FnMut() -> Result<Vec<u8>>);

/// Times the calls in interleaved rounds. Returns the medians of each call per round, in
/// microseconds.
fn compare(args: &Args, samples: &mut Vec<Samples>, calls: &mut [TimedCall<'_>]) -> Result<Vec<Vec<f64>>> {
    let mut medians = vec![Vec::new(); calls.len()];
    for _ in 0..args.rounds() {
        for ((_, call), medians) in calls.iter_mut().zip(&mut medians) {
            // A warm-up call, for loads and connections.
            call()?;
            let began = Instant::now();
            let mut times = Vec::new();
            while began.elapsed() < Duration::from_secs(args.seconds().into()) || times.is_empty() {
                let started = Instant::now();
                call()?;
                times.push(started.elapsed().as_secs_f64() * 1e6);
            }
            medians.extend(Spread::from_samples(times).map(|spread| spread.median));
        }
    }
    for ((what, _), medians) in calls.iter().zip(&medians) {
        samples.push(Samples { what: (*what).to_owned(), medians_us: medians.clone() });
    }
    Ok(medians)
}

fn push_fake(node: &BenchNode, name: &str, run_time_ms: f64) -> Result<()> {
    let port = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [null]});
    let model = json!({
        "run_time_ms": {"1": run_time_ms},
        "resident_bytes": 1_000,
        "signature": {"inputs": [port("x")], "outputs": [port("y")]},
    });
    node.put(&format!("/v1/models/{name}/versions/1"), model.to_string().as_bytes()).map(drop)
}

fn step(model: &str, source: &str) -> Value {
    json!({"run": model, "inputs": {"x": source}})
}

fn deploy(node: &BenchNode, name: &str, document: &Value) -> Result<()> {
    node.put(&format!("/v1/workflows/{name}"), document.to_string().as_bytes()).map(drop)
}

fn request(values: &[f32]) -> BinaryRequest {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    binary("x", "FP32", &[values.len()], &bytes)
}

fn binary(name: &str, datatype: &str, shape: &[usize], bytes: &[u8]) -> BinaryRequest {
    BinaryRequest::new(&[InputTensor { name, datatype, shape, bytes }])
}

/// Runs an inference. Returns the binary tensors of the response.
fn infer(node: &BenchNode, name: &str, request: &BinaryRequest) -> Result<Vec<u8>> {
    node.infer(&format!("/v2/models/{name}/infer"), request)
}

fn is_close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5)
}

fn ratio(a: &[f64], b: &[f64]) -> Option<Spread> {
    Spread::from_samples(a.iter().zip(b).map(|(a, b)| a / b))
}

fn times(spread: Option<Spread>) -> String {
    spread.map_or_else(String::new, |s| format!("{:.3}x [{:.3} .. {:.3}]", s.median, s.min, s.max))
}

fn milliseconds(medians_us: &[f64]) -> String {
    let spread = Spread::from_samples(medians_us.iter().map(|us| us / 1e3));
    spread.map_or_else(String::new, |s| format!("{:.2} ms [{:.2} .. {:.2}]", s.median, s.min, s.max))
}

fn microseconds(medians_us: &[f64]) -> String {
    let spread = Spread::from_samples(medians_us.iter().copied());
    spread.map_or_else(String::new, |s| format!("{:.0} us [{:.0} .. {:.0}]", s.median, s.min, s.max))
}
