//! `weir why`.

use crate::client::Client;
use crate::commands::CommandContext;
use crate::error::Problem;
use crate::output::{measured, table};
use crate::settings::ClientArgs;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::Duration;
use weir_scheduler::{Alternative, Estimate, EstimateRatio, LoadByTier, PlacementRecord};
use weir_types::api::Status;
use weir_types::{DeviceId, ErrorCode, NodeId};

/// Show why a call ran where it did: estimates, alternatives, and actual times
///
/// The request id is in the response's header weir-request-id. The node that received the call
/// keeps the latest placements of each tenant. Calls without models are not placed by the
/// scheduler.
///
/// Examples:
///   weir why 4f1c2a9be07d3356
///   weir why 4f1c2a9be07d3356 --json | jq .ratio.total
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct WhyArgs {
    /// Id of the request
    #[arg(value_name = "REQUEST_ID")]
    request_id: String,
    #[command(flatten)]
    client: ClientArgs,
}

/// A placement as the node returns it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Explained {
    pub(super) request_id: String,
    #[serde(flatten)]
    pub(super) placement: PlacementRecord,
    pub(super) ratio: Option<EstimateRatio>,
}

pub(crate) fn run(args: &WhyArgs, context: &CommandContext) -> Result<()> {
    let client = context.client(&args.client)?;
    let path = format!("/v1/placements/{}", path_segment(&args.request_id));
    let explained: Explained = client.get(&path, "read the placement").map_err(with_hint)?;
    let names = DeviceNames::read(&client);
    context.output.result(&explained, |explained| text(explained, &names))
}

/// Names of devices, as `weir status` shows them.
#[derive(Debug, Default)]
pub(super) struct DeviceNames {
    names: HashMap<DeviceId, String>,
    /// Whether devices of several nodes need the number of their node.
    is_cluster: bool,
}

impl DeviceNames {
    /// Reads the names. Without the permission to read the status, devices have numbers.
    pub(super) fn read(client: &Client) -> Self {
        client.get("/v1/status", "read the names of the devices").map(Self::from_status).unwrap_or_default()
    }

    fn from_status(status: Status) -> Self {
        let is_cluster = status.cluster.is_some();
        let nodes: Vec<_> = match status.cluster {
            // The only node has the number 0.
            None => vec![(NodeId(0), status.devices)],
            Some(cluster) => cluster.nodes.into_iter().map(|node| (node.node, node.devices)).collect(),
        };
        let named = nodes.into_iter().flat_map(|(node, devices)| {
            (0..).zip(devices).map(move |(ordinal, device)| (DeviceId { node, ordinal }, device.name))
        });
        Self { names: named.collect(), is_cluster }
    }

    fn name(&self, device: &DeviceId) -> String {
        let DeviceId { node, ordinal } = device;
        match self.names.get(device) {
            Some(name) if self.is_cluster => format!("node {} {name}", node.0),
            Some(name) => name.clone(),
            None => format!("node {} device {ordinal}", node.0),
        }
    }
}

/// Adds advice to the error about a request without a placement.
fn with_hint(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<Problem>() {
        Ok(problem) if problem.code() == Some(ErrorCode::InvocationNotFound) => {
            let hint = "the request id is in the response's header weir-request-id; `weir trace ID` also shows calls without models";
            problem.hint(hint).into()
        }
        Ok(problem) => problem.into(),
        Err(error) => error,
    }
}

pub(super) fn path_segment(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(escape).collect()
}

const HEADER: [&str; 7] = ["DEVICE", "WAIT", "LOAD", "MOVE", "RUN", "OFF DEVICE", "TOTAL"];

fn text(explained: &Explained, names: &DeviceNames) -> String {
    let name = |device: &DeviceId| names.name(device);
    let PlacementRecord { rejection, device, why, outcome, .. } = &explained.placement;
    let mut lines = vec![headline(&explained.placement, names)];
    if why.queued_ns > 0 {
        lines.push(format!("It waited {} in the scheduler's queue.", time(why.queued_ns)));
    }
    let from = tiers(&why.estimate.load_by_tier);
    if !from.is_empty() {
        lines.push(format!("Its models were expected to load {from}."));
    }
    if rejection.is_some() && !why.alternatives.is_empty() {
        lines.push("The devices that came closest, after everything that waited:".to_owned());
        lines.push(String::new());
        let rows =
            why.alternatives.iter().map(|Alternative { device, estimate }| row(name(device), estimate));
        lines.push(table(HEADER, rows));
        return lines.join("\n");
    }
    let chosen = if rejection.is_some() {
        "best".to_owned()
    } else {
        device.as_ref().map_or_else(|| "-".into(), name)
    };
    let mut rows = vec![row(format!("{chosen} (estimate)"), &why.estimate)];
    if let Some(outcome) = outcome {
        rows.push([
            format!("{chosen} (actual)"),
            time(outcome.wait_ns),
            time(outcome.load_time_ns),
            outcome.move_time_ns.map_or_else(|| "-".to_owned(), time),
            time(outcome.run_time_ns),
            time(outcome.off_device_ns),
            time(outcome.total_ns()),
        ]);
    }
    rows.extend(why.alternatives.iter().map(|Alternative { device, estimate }| row(name(device), estimate)));
    lines.push(String::new());
    lines.push(table(HEADER, rows));
    if let Some(total) = explained.ratio.and_then(|ratio| ratio.total) {
        lines.push(format!("The estimate was {total:.2} times what the call took."));
    }
    lines.join("\n")
}

pub(super) fn headline(placement: &PlacementRecord, names: &DeviceNames) -> String {
    match (placement.rejection, &placement.device, placement.node) {
        (Some(rejection), ..) => format!("The call was rejected: {rejection}."),
        (None, Some(device), _) => format!("The call was placed on {}.", names.name(device)),
        (None, None, Some(node)) => format!("The call was placed on node {}; it uses no device.", node.0),
        (None, None, None) => "The call was not placed.".to_owned(),
    }
}

fn row(name: String, estimate: &Estimate) -> [String; 7] {
    [
        name,
        time(estimate.wait_ns),
        time(estimate.load_time_ns),
        time(estimate.move_time_ns),
        time(estimate.run_time_ns),
        time(estimate.off_device_ns),
        time(estimate.finish_after_ns()),
    ]
}

pub(super) fn tiers(load: &LoadByTier) -> String {
    let LoadByTier { sibling_ns, memory_ns, disk_ns, object_store_ns } = *load;
    let tiers = [
        ("another device of the node", sibling_ns),
        ("memory", memory_ns),
        ("disk", disk_ns),
        ("the object store", object_store_ns),
    ];
    let used = tiers.into_iter().filter(|(_, ns)| *ns > 0);
    used.map(|(tier, ns)| format!("from {tier} in {}", time(ns))).collect::<Vec<_>>().join(", ")
}

fn time(ns: u64) -> String {
    measured(Duration::from_nanos(ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use weir_scheduler::{InvocationOutcome, Rejection, Why};
    use weir_types::InvocationId;

    #[test]
    fn placement_shows_estimate_outcome_and_alternatives() {
        let device = |ordinal| DeviceId { node: NodeId(2), ordinal };
        let estimate = Estimate { run_time_ns: 2_000_000, load_time_ns: 3_000_000, ..Estimate::default() };
        let load_by_tier = LoadByTier { disk_ns: 3_000_000, ..LoadByTier::default() };
        let why = Why {
            estimate: Estimate { load_by_tier, ..estimate },
            alternatives: vec![Alternative { device: device(1), estimate }],
            queued_ns: 1_500_000,
        };
        let outcome = InvocationOutcome { run_time_ns: 2_500_000, ..InvocationOutcome::default() };
        let placement = PlacementRecord {
            invocation: InvocationId(1),
            node: Some(NodeId(2)),
            device: Some(device(0)),
            rejection: None,
            why,
            outcome: Some(outcome),
        };
        let ratio = Some(placement.why.compare(&outcome));
        let shown = text(&Explained { request_id: "a".into(), placement, ratio }, &DeviceNames::default());
        for part in [
            "placed on node 2 device 0",
            "waited 1.500ms",
            "from disk in 3.000ms",
            "node 2 device 1",
            "2.500ms",
            "2.00 times",
        ] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
    }

    #[test]
    fn devices_have_the_names_of_the_status() {
        let device = |name: &str| json!({"name": name, "backend": "onnx", "slots": 1, "capacity_bytes": 1, "used_bytes": 0, "resident": []});
        let mut status = json!({
            "version": "0", "state": "ready", "uptime_ms": 0, "functions": 0, "models": 1, "running": 0, "queued": 0,
            "devices": [device("cpu"), device("cuda:0")],
        });
        let names = |status: &serde_json::Value| {
            DeviceNames::from_status(serde_json::from_value(status.clone()).unwrap())
        };
        let alone = names(&status);
        assert_eq!(alone.name(&DeviceId { node: NodeId(0), ordinal: 1 }), "cuda:0");
        assert_eq!(alone.name(&DeviceId { node: NodeId(0), ordinal: 2 }), "node 0 device 2");
        let member =
            json!({"node": 7, "address": "a", "running": 0, "queued": 0, "devices": [device("cpu")]});
        status["cluster"] = json!({"node": 1, "address": "a", "dispatcher": 1, "asks_dispatcher": false, "linked": [], "nodes": [member]});
        assert_eq!(names(&status).name(&DeviceId { node: NodeId(7), ordinal: 0 }), "node 7 cpu");
    }

    #[test]
    fn rejection_is_in_words_and_shows_the_devices_that_came_closest() {
        let alternative = |ordinal, wait_ns| Alternative {
            device: DeviceId { node: NodeId(2), ordinal },
            estimate: Estimate { wait_ns, ..Estimate::default() },
        };
        let estimate = Estimate { wait_ns: 7_000_000, ..Estimate::default() };
        let alternatives = vec![alternative(1, 7_000_000), alternative(0, 9_000_000)];
        let placement = PlacementRecord {
            invocation: InvocationId(1),
            node: None,
            device: None,
            rejection: Some(Rejection::Slo),
            why: Why { estimate, alternatives, queued_ns: 0 },
            outcome: None,
        };
        let shown =
            text(&Explained { request_id: "a".into(), placement, ratio: None }, &DeviceNames::default());
        assert!(
            shown.starts_with("The call was rejected: it would have missed its service level objective.")
        );
        let [first, second] = ["node 2 device 1", "node 2 device 0"].map(|name| shown.find(name).unwrap());
        assert!(first < second && shown.contains("9.000ms"), "{shown}");
        assert!(!shown.contains("actual"), "{shown}");
    }
}
