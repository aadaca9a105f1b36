//! Load at twice a device's capacity, with and without a service level objective.

use crate::args::Args;
use crate::arrivals;
use crate::report::{Section, TextTable};
use crate::stats::{Spread, quantile};
use crate::weir::{BenchNode, Spans, Weir, agent};
use anyhow::{Result, anyhow, bail};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Run time on the only slot of the device.
const RUN_TIME_MS: u32 = 50;
/// Twenty times the run time.
const SLO: Duration = Duration::from_millis(1_000);
/// Load as a multiple of the capacity.
const LOAD: f64 = 2.0;
/// Minimum duration of a round: several times the objective, so that the last requests have little
/// effect.
const MEASURED_MIN: Duration = Duration::from_secs(10);

const WITH: &str = "with `slo_ms`";
const WITHOUT: &str = "without";

/// Results of one round.
#[derive(Debug, Serialize)]
struct Round {
    offered: usize,
    /// Latencies of responses, in milliseconds.
    answered_ms: Vec<f64>,
    /// Latencies of SLO rejections, in milliseconds.
    refused_ms: Vec<f64>,
}

pub(crate) fn run(args: &Args) -> Result<Section> {
    let scratch = tempfile::tempdir()?;
    let weir = Weir::new(args, scratch.path())?.with_settings(&["models.backend=fake", "models.slots=1"]);
    let measured = Duration::from_secs(u64::from(args.seconds())).max(MEASURED_MIN);
    let ways = [(WITH, format!("slo_ms={}", SLO.as_millis())), (WITHOUT, "device=any".to_owned())];
    let mut rounds: Vec<(&str, Vec<Round>)> = ways.iter().map(|(way, _)| (*way, Vec::new())).collect();
    for number in 0..args.rounds() {
        for (name, ((_, manifest), (_, done))) in
            ["with", "without"].into_iter().zip(ways.iter().zip(&mut rounds))
        {
            let node = weir.start(Spans::Off)?;
            node.put(&format!("/v1/models/{name}?batching.mode=off&{manifest}"), fake().as_bytes())?;
            done.push(round(&node, &format!("/v2/models/{name}/infer"), u64::from(number), measured)?);
        }
    }
    let columns = [
        "",
        "responses in time",
        "goodput",
        "rejected",
        "time to reject, p50 ms",
        "p99 ms",
        "responses, p99 ms",
    ];
    let mut table =
        TextTable::new(format!("{LOAD:.0} times the capacity, runs of {RUN_TIME_MS} ms"), &columns);
    for (way, rounds) in &rounds {
        table.row(row(way, rounds, measured)?);
    }
    let notes = vec![format!(
        "Requests arrive at random times (a Poisson process) and do not wait for earlier responses. A response is in time within {} ms. Goodput is the number of responses in time, relative to the requests that the device can run during the arrivals. It can exceed 100 %, because the device runs the last admitted requests after the last arrival.",
        SLO.as_millis()
    )];
    let samples: std::collections::BTreeMap<_, _> = rounds.into_iter().collect();
    Ok(Section { key: "overload", notes, tables: vec![table], samples: serde_json::to_value(samples)? })
}

fn fake() -> String {
    let port = |name: &str| serde_json::json!([{ "name": name, "datatype": "FP32", "shape": [null, 1] }]);
    serde_json::json!({
        "run_time_ms": { "1": RUN_TIME_MS },
        "resident_bytes": 1,
        "signature": { "inputs": port("x"), "outputs": port("y") },
    })
    .to_string()
}

fn round(node: &BenchNode, path: &str, seed: u64, measured: Duration) -> Result<Round> {
    let url = node.server.url(path);
    let body = r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}"#;
    // Measure the model's run time first, as for any model in use.
    for _ in 0..5 {
        node.post(path, body.as_bytes())?;
    }
    let agent = agent();
    let ask = |at: Instant| -> Result<(bool, f64)> {
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        let began = Instant::now();
        let mut answer = agent.post(&url).send(body)?;
        let status = answer.status().as_u16();
        let text = answer.body_mut().read_to_string()?;
        if status != 200 && !text.contains("slo-unattainable") {
            bail!("{path} answered {status}: {text}");
        }
        Ok((status == 200, began.elapsed().as_secs_f64() * 1e3))
    };
    let began = Instant::now() + Duration::from_millis(100);
    let arrivals = arrivals::poisson(seed, LOAD * 1e3 / f64::from(RUN_TIME_MS), measured);
    let answers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = arrivals.iter().map(|after| scope.spawn(|| ask(began + *after))).collect();
        let lost = |_| Err(anyhow!("a thread panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect::<Result<_>>()
    })?;
    let of = |wanted: bool| answers.iter().filter(|(ok, _)| *ok == wanted).map(|(_, ms)| *ms).collect();
    Ok(Round { offered: arrivals.len(), answered_ms: of(true), refused_ms: of(false) })
}

fn row(way: &str, rounds: &[Round], measured: Duration) -> Result<Vec<String>> {
    let slo_ms = SLO.as_secs_f64() * 1e3;
    let in_time = |round: &Round| round.answered_ms.iter().filter(|ms| **ms <= slo_ms).count() as f64;
    let spread = |what: &dyn Fn(&Round) -> f64| {
        Spread::from_samples(rounds.iter().map(what))
            .map_or_else(String::new, |Spread { median, min, max }| {
                format!("{median:.1} % [{min:.1} .. {max:.1}]")
            })
    };
    let capacity = measured.as_secs_f64() * 1e3 / f64::from(RUN_TIME_MS);
    let all = |of: fn(&Round) -> &Vec<f64>| {
        let mut all: Vec<f64> = rounds.iter().flat_map(|round| of(round).iter().copied()).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let refused = all(|round| &round.refused_ms);
    let answered = all(|round| &round.answered_ms);
    let at = |sorted: &[f64], q: f64| quantile(sorted, q).map_or_else(String::new, |ms| format!("{ms:.1}"));
    Ok(vec![
        way.to_owned(),
        spread(&|round| 100.0 * in_time(round) / round.answered_ms.len().max(1) as f64),
        spread(&|round| 100.0 * in_time(round) / capacity),
        spread(&|round| 100.0 * round.refused_ms.len() as f64 / round.offered as f64),
        at(&refused, 0.5),
        at(&refused, 0.99),
        at(&answered, 0.99),
    ])
}
