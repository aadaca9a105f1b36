//! A model called over HTTP, with an fp32 image as input and a thousand fp32 values as output.

use crate::args::Args;
use crate::contender::{Contender, Results, compare};
use crate::hello::{cpu, others, ratio, table, throughput};
use crate::load::{CONNECTIONS, LoadSpec, Sample};
use crate::report::{Section, TextTable};
use crate::server::ServerProcess;
use crate::stats::Spread;
use crate::weir::{Spans, Weir};
use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use std::path::Path;
use std::process::Command;

const MODELS: [&str; 2] = ["light_squeezenet", "light_resnet50"];
const INPUT_SHAPE: &str = "1,3,224,224";
const INPUT_ELEMENTS: u32 = 3 * 224 * 224;

const IN_PROCESS: &str = "ONNX Runtime in-process";
const UVICORN: &str = "uvicorn + onnxruntime, 1 process";
const UVICORN_PER_CORE: &str = "uvicorn + onnxruntime, 1 process a core";
const WEIR: &str = "Weir";

/// Results may differ by rounding, because Weir's graph is optimised ahead of time and the peers'
/// at load time.
const DIFFERENCE_MAX: f32 = 1e-3;

pub(crate) fn run(args: &Args) -> Result<Section> {
    let scratch = tempfile::tempdir()?;
    let body_path = scratch.path().join("body.f32");
    let body: Vec<u8> =
        (0..INPUT_ELEMENTS).flat_map(|i| (i as f32 / INPUT_ELEMENTS as f32).to_le_bytes()).collect();
    std::fs::write(&body_path, &body)?;
    let weir = Weir::new(args, scratch.path())?;
    deploy(&weir, args)?;

    let load = LoadSpec::new(scratch.path(), Some(body_path.clone()), args.seconds())?;
    let cores = std::thread::available_parallelism()?;
    let mut tables = Vec::new();
    let mut samples = serde_json::Map::new();
    let mut notes = Vec::new();
    for model in MODELS {
        let path = args.model(model);
        let weir_path = format!("/fn/infer/{model}?shape={INPUT_SHAPE}");
        same_answers(args, &weir, &path, &weir_path, &body, scratch.path())?;
        let peer = |workers: usize| uvicorn(args, &path, workers, &scratch.path().join("log"));
        let contenders = [
            Contender::new(IN_PROCESS, || in_process(args, &path, &body_path)),
            Contender::server(UVICORN, &load, "/", || peer(1)),
            Contender::server(UVICORN_PER_CORE, &load, "/", || peer(cores.get())),
            Contender::server(WEIR, &load, &weir_path, || Ok(weir.start(Spans::Off)?.server)),
        ];
        let results = compare(&contenders, args.rounds())?;
        tables.extend([
            table(&format!("`{model}`, 602,112 bytes in and 4,000 out"), &results),
            against(model, &results),
        ]);
        notes.push(format!("{model}: {}", others(&results)));
        samples.insert(model.to_owned(), serde_json::to_value(&results)?);
    }
    Ok(Section { key: "inference", notes, tables, samples: samples.into() })
}

fn deploy(weir: &Weir<'_>, args: &Args) -> Result<()> {
    let node = weir.start(Spans::Off)?;
    for model in MODELS {
        let path = args.model(model);
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        node.put(&format!("/v1/models/{model}/versions/1"), &bytes)?;
    }
    let component = args.functions.join("infer.wasm");
    let bytes = std::fs::read(&component).with_context(|| format!("cannot read {}", component.display()))?;
    node.put(&format!("/v1/functions/infer?models={}", MODELS.join(",")), &bytes).map(drop)
}

fn uvicorn(args: &Args, model: &Path, workers: usize, log: &Path) -> Result<ServerProcess> {
    let mut command = Command::new(&args.python);
    command
        .args(["-m", "uvicorn", "server:app", "--host", "127.0.0.1", "--port", "0", "--no-access-log"])
        .args(["--workers", &workers.to_string(), "--app-dir"])
        .arg(&args.scripts)
        .env("BENCH_MODEL", model)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    ServerProcess::start(command, log)
}

/// Output of the script `in_process.py`.
#[derive(Debug, Deserialize)]
struct Floor {
    requests: u64,
    seconds: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us_per_request: f64,
    resident_bytes: u64,
    others_share: f64,
}

fn in_process(args: &Args, model: &Path, body: &Path) -> Result<Vec<Sample>> {
    let text = script(args, "in_process.py", model, body, &["--seconds", &args.seconds().to_string()])?;
    let floor: Floor = serde_json::from_slice(&text).context("in_process.py wrote no figures")?;
    Ok(vec![Sample {
        connections: 1,
        requests: floor.requests,
        requests_per_second: floor.requests as f64 / floor.seconds,
        p50_us: floor.p50_us,
        p99_us: floor.p99_us,
        cpu_us_per_request: floor.cpu_us_per_request,
        resident_bytes: floor.resident_bytes,
        others_share: floor.others_share,
    }])
}

/// Checks that all contenders return the same results.
fn same_answers(
    args: &Args,
    weir: &Weir<'_>,
    model: &Path,
    weir_path: &str,
    body: &[u8],
    scratch: &Path,
) -> Result<()> {
    let expected = script(args, "in_process.py", model, &scratch.join("body.f32"), &["--answer"])?;
    let node = weir.start(Spans::Off)?;
    let server = uvicorn(args, model, 1, &scratch.join("log"))?;
    let theirs = ureq::post(server.url("/")).send(body)?.body_mut().read_to_vec()?;
    for (who, answer) in [("Weir", node.post(weir_path, body)?), ("uvicorn", theirs)] {
        if !is_close(&expected, &answer) {
            bail!(
                "{who} answered {} otherwise than ONNX Runtime in-process ({} bytes)",
                model.display(),
                answer.len()
            );
        }
    }
    Ok(())
}

fn is_close(a: &[u8], b: &[u8]) -> bool {
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
    };
    let close = floats(a).iter().zip(floats(b)).all(|(a, b)| (a - b).abs() <= DIFFERENCE_MAX);
    a.len() == b.len() && !a.is_empty() && close
}

fn script(args: &Args, name: &str, model: &Path, body: &Path, more: &[&str]) -> Result<Vec<u8>> {
    let mut command = Command::new(&args.python);
    command.arg(args.scripts.join(name)).arg("--model").arg(model).arg("--body").arg(body).args(more);
    let output =
        command.env("PYTHONDONTWRITEBYTECODE", "1").output().with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        bail!("{name} failed ({}):\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}

fn against(model: &str, results: &Results) -> TextTable {
    let columns = ["", "bound", "1 connection", "8 connections", "64 connections"];
    let mut table = TextTable::new(
        format!("Weir with `{model}`: medians of the rounds' ratios [least .. most]"),
        &columns,
    );
    let bound = |text: &str| if model == MODELS[0] { text.to_owned() } else { String::new() };
    // In-process runs have no connections: their cost is compared with every number of connections.
    let floor = results.spread(IN_PROCESS, 1, cpu).map_or(f64::NAN, |spread| spread.median);
    let over_floor = CONNECTIONS.map(|connections| match connections {
        1 => ratio(results.ratio(WEIR, IN_PROCESS, 1, cpu)),
        more => ratio(results.spread(WEIR, more, move |sample| cpu(sample) / floor)),
    });
    table.row([format!("CPU per request over {IN_PROCESS}"), bound("1.10x")].into_iter().chain(over_floor));
    for (peer, what) in [
        (UVICORN, "CPU per request"),
        (UVICORN_PER_CORE, "CPU per request"),
        (UVICORN, "throughput"),
        (UVICORN_PER_CORE, "throughput"),
    ] {
        let (value, most): (fn(&Sample) -> f64, _) =
            if what == "throughput" { (throughput, "") } else { (cpu, "1.00x") };
        let values = CONNECTIONS.map(|connections| ratio(results.ratio(WEIR, peer, connections, value)));
        table.row([format!("{what} over {peer}"), bound(most)].into_iter().chain(values));
    }
    let added = added_latency_ms(results);
    let added =
        added.map_or_else(String::new, |s| format!("{:.2} ms [{:.2} .. {:.2}]", s.median, s.min, s.max));
    table.row(["p50 over in-process".to_owned(), bound("0.5 ms"), added, String::new(), String::new()]);
    table
}

fn added_latency_ms(results: &Results) -> Option<Spread> {
    results.difference(WEIR, IN_PROCESS, 1, |sample| sample.p50_us / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_compared_with_tolerance() {
        let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
        assert!(is_close(&bytes(&[1.0, 2.0]), &bytes(&[1.0, 2.0005])));
        assert!(!is_close(&bytes(&[1.0, 2.0]), &bytes(&[1.0, 2.1])));
        assert!(!is_close(&bytes(&[1.0, 2.0]), &bytes(&[1.0])));
        assert!(!is_close(&bytes(&[f32::NAN]), &bytes(&[f32::NAN])));
        assert!(!is_close(&[], &[]));
    }
}
