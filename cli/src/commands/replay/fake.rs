//! Fake models with the costs of a workload's models.

use crate::client::{Client, accepted};
use crate::error::Problem;
use crate::output::OutputSettings;
use anyhow::Result;
use serde_json::json;
use std::time::{Duration, Instant};
use ureq::SendBody;
use ureq::http::Method;
use weir_scheduler::sim::{ModelCosts, Workload};

/// Time limit for all nodes to learn about the models.
const KNOWN_MAX: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Pushes a model for each of the workload's models to the first node, and waits until all nodes know
/// them.
pub(super) fn push(
    clients: &[Client],
    workload: &Workload,
    speed: f64,
    output: OutputSettings,
) -> Result<()> {
    let bar = output.count_bar("Pushing fake models", workload.models().len() as u64);
    for (index, costs) in workload.models().iter().enumerate() {
        let path = format!("/v1/models/m{index}");
        let body = SendBody::from_json(&document(costs, speed))?;
        let answer = clients[0].send(clients[0].request(Method::PUT, &path, body)?)?;
        accepted(answer, &format!("push the fake model m{index}"))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let began = Instant::now();
    for client in clients {
        for index in 0..workload.models().len() {
            let path = format!("/v1/models/m{index}");
            while !client.send(client.request(Method::GET, &path, SendBody::none())?)?.status().is_success() {
                if began.elapsed() > KNOWN_MAX {
                    return Err(Problem::new(format!("{} does not know the model m{index}", client.url()))
                        .hint("the servers of --url and --also-url are nodes of one cluster")
                        .into());
                }
                std::thread::sleep(ASK_EVERY);
            }
        }
    }
    Ok(())
}

/// A fake model with these costs. Its inputs have no batch dimension, so its requests run alone.
fn document(costs: &ModelCosts, speed: f64) -> serde_json::Value {
    let port = |name: &str| json!([{"name": name, "datatype": "FP32", "shape": [1]}]);
    json!({
        "load_time_ms": costs.load_time_ns as f64 / 1e6 / speed,
        "run_time_ms": {"1": costs.run_time_ns as f64 / 1e6 / speed},
        "resident_bytes": costs.bytes,
        "signature": {"inputs": port("x"), "outputs": port("y")},
    })
}
