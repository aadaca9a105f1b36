//! Batching: a fake model with a declared latency curve at fixed and adaptive batch sizes, and CPU
//! models for which batching may not pay.

use crate::args::Args;
use crate::contender::{Contender, Results, compare, connections};
use crate::hello::{others, ratio, table, throughput};
use crate::load::LoadSpec;
use crate::report::{Section, TextTable};
use crate::weir::{Spans, Weir};
use anyhow::{Context as _, Result};
use std::path::Path;

const INPUT_ELEMENTS: u32 = 3 * 224 * 224;
const SENTENCE: &[u8] = b"A cat sits on the mat.";
/// Maximum batch sizes to compare adaptive batching with.
const FIXED: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Run times of the fake model: 2 ms, and 0.25 ms per item.
const CURVE_MS: [(u32, f64); 6] = [(1, 2.25), (2, 2.5), (4, 3.0), (8, 4.0), (16, 6.0), (32, 10.0)];

const ADAPTIVE: &str = "adaptive";
const ALONE: &str = "one by one";
const TOGETHER: &str = "together";

pub(crate) fn run(args: &Args) -> Result<Section> {
    let scratch = tempfile::tempdir()?;
    let declared = on_a_curve(args, &scratch.path().join("curve"))?;
    let mut tables = vec![
        table("A fake model of 2 ms and 0.25 ms for each item, one slot", &declared),
        beside_fixed(&declared),
    ];
    let mut notes = vec![
        "A fixed size is the most that is run together; adaptive is the default.".to_owned(),
        format!("the curve: {}", others(&declared)),
    ];
    let mut samples = serde_json::Map::from_iter([("curve".to_owned(), serde_json::to_value(&declared)?)]);
    for (model, results) in on_the_processor(args, &scratch.path().join("processor"))? {
        tables.extend([table(&format!("`{model}`"), &results), beside_alone(&model, &results)]);
        notes.push(format!("{model}: {}", others(&results)));
        samples.insert(model, serde_json::to_value(&results)?);
    }
    Ok(Section { key: "batching", notes, tables, samples: samples.into() })
}

fn on_a_curve(args: &Args, folder: &Path) -> Result<Results> {
    std::fs::create_dir_all(folder)?;
    let weir = Weir::new(args, folder)?.with_settings(&["models.backend=fake", "models.slots=1"]);
    let ways: Vec<(String, String, String)> = FIXED
        .iter()
        .map(|size| {
            (format!("at most {size}"), format!("most-{size}"), format!("mode=on&batching.size_max={size}"))
        })
        .chain([(ADAPTIVE.to_owned(), ADAPTIVE.to_owned(), "mode=auto".to_owned())])
        .collect();
    let node = weir.start(Spans::Off)?;
    for (_, model, batching) in &ways {
        node.put(&format!("/v1/models/{model}?batching.{batching}"), fake().as_bytes())?;
    }
    let models: Vec<&str> = ways.iter().map(|(_, model, _)| model.as_str()).collect();
    node.put(
        &format!("/v1/functions/infer?models={}", models.join(",")),
        &read(&args.functions.join("infer.wasm"))?,
    )?;
    drop(node);

    let body = folder.join("body.f32");
    std::fs::write(&body, 1_f32.to_le_bytes())?;
    let load = LoadSpec::new(folder, Some(body), args.seconds())?;
    let paths: Vec<String> =
        ways.iter().map(|(_, model, _)| format!("/fn/infer/{model}?shape=1,1")).collect();
    let contenders: Vec<Contender<'_>> = ways
        .iter()
        .zip(&paths)
        .map(|((name, ..), path)| Contender::server(name, &load, path, || Ok(weir.start(Spans::Off)?.server)))
        .collect();
    compare(&contenders, args.rounds())
}

fn fake() -> String {
    let port = |name: &str| serde_json::json!([{ "name": name, "datatype": "FP32", "shape": [null, 1] }]);
    let times: serde_json::Map<_, _> =
        CURVE_MS.iter().map(|(items, time_ms)| (items.to_string(), (*time_ms).into())).collect();
    serde_json::json!({
        "run_time_ms": times,
        "resident_bytes": 1,
        "signature": { "inputs": port("x"), "outputs": port("y") },
    })
    .to_string()
}

/// Models for which the node has to find out whether batching pays.
fn on_the_processor(args: &Args, folder: &Path) -> Result<Vec<(String, Results)>> {
    let weir = |way: &str, batching: &str| -> Result<Weir<'_>> {
        let folder = folder.join(way);
        std::fs::create_dir_all(&folder)?;
        let weir = Weir::new(args, &folder)?;
        let node = weir.start(Spans::Off)?;
        for (model, file) in [("squeezenet", "light_squeezenet_batched"), ("minilm", "minilm")] {
            let file = read(&args.model(file))?;
            node.put(&format!("/v1/models/{model}/versions/1?batching.mode={batching}"), &file)?;
        }
        let infer = read(&args.functions.join("infer.wasm"))?;
        node.put("/v1/functions/infer?models=squeezenet", &infer)?;
        node.put("/v1/functions/embed-text?models=minilm", &read(&args.embed_snapshot)?)?;
        drop(node);
        Ok(weir)
    };
    let alone = weir("alone", "off")?;
    let together = weir("together", "auto")?;
    let image: Vec<u8> =
        (0..INPUT_ELEMENTS).flat_map(|i| (i as f32 / INPUT_ELEMENTS as f32).to_le_bytes()).collect();
    let mut measured = Vec::new();
    for (model, path, body) in [
        ("light_squeezenet", "/fn/infer/squeezenet?shape=1,3,224,224", &image[..]),
        ("minilm behind embed-text", "/fn/embed-text/", SENTENCE),
    ] {
        let file = folder.join("body");
        std::fs::write(&file, body)?;
        let load = LoadSpec::new(folder, Some(file), args.seconds())?;
        let contenders = [
            Contender::server(ALONE, &load, path, || Ok(alone.start(Spans::Off)?.server)),
            Contender::server(TOGETHER, &load, path, || Ok(together.start(Spans::Off)?.server)),
        ];
        measured.push((model.to_owned(), compare(&contenders, args.rounds())?));
    }
    Ok(measured)
}

/// Adaptive batching compared with the best fixed size, per number of connections.
fn beside_fixed(results: &Results) -> TextTable {
    let columns = ["connections", "best fixed", "throughput over it", "bound", "p99 over its p99"];
    let mut table = TextTable::new(
        "Adaptive over the best fixed size: medians of the rounds' ratios [least .. most]",
        &columns,
    );
    for connections in connections(results, ADAPTIVE) {
        let rate =
            |name: &str| results.spread(name, connections, throughput).map_or(0.0, |spread| spread.median);
        let fixed = results.names().filter(|name| *name != ADAPTIVE);
        let Some(best) = fixed.max_by(|a, b| rate(a).total_cmp(&rate(b))) else { continue };
        table.row([
            connections.to_string(),
            best.to_owned(),
            ratio(results.ratio(ADAPTIVE, best, connections, throughput)),
            "0.95x".to_owned(),
            ratio(results.ratio(ADAPTIVE, best, connections, |sample| sample.p99_us)),
        ]);
    }
    table
}

fn beside_alone(model: &str, results: &Results) -> TextTable {
    let title =
        format!("Together over one by one with `{model}`: medians of the rounds' ratios [least .. most]");
    let mut table = TextTable::new(title, &["connections", "throughput", "bound", "CPU per request", "p99"]);
    for connections in connections(results, ALONE) {
        table.row([
            connections.to_string(),
            ratio(results.ratio(TOGETHER, ALONE, connections, throughput)),
            "0.97x".to_owned(),
            ratio(results.ratio(TOGETHER, ALONE, connections, |sample| sample.cpu_us_per_request)),
            ratio(results.ratio(TOGETHER, ALONE, connections, |sample| sample.p99_us)),
        ]);
    }
    table
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
