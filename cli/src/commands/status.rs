//! `weir status`.

use crate::commands::CommandContext;
use crate::output::{duration, size, table};
use crate::settings::ClientArgs;
use anyhow::Result;
use std::time::Duration;
use weir_types::api::{ClusterStatus, DeviceStatus, Status};

/// Show the node's state: load, devices and resident models
///
/// Examples:
///   weir status
///   weir status --json | jq .running
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) fn run(args: &StatusArgs, context: &CommandContext) -> Result<()> {
    let client = context.client(&args.client)?;
    let status: Status = client.get("/v1/status", "read the node's status")?;
    context.output.result(&status, |status| text(status, client.url()))
}

fn text(status: &Status, url: &str) -> String {
    let facts = [
        ("node", url.to_owned()),
        ("state", status.state.clone()),
        ("version", status.version.clone()),
        ("up for", duration(Duration::from_millis(status.uptime_ms))),
        ("functions", status.functions.to_string()),
        ("models", status.models.to_string()),
        ("invocations", format!("{} running, {} waiting", status.running, status.queued)),
        ("asynchronous", format!("{} not ended", status.async_queued)),
    ];
    let facts: String = facts.iter().map(|(name, value)| format!("{name:<14}{value}\n")).collect();
    let rows = status.devices.iter().map(|device| {
        let resident = if device.resident.is_empty() { "-".into() } else { device.resident.join(", ") };
        let memory = format!("{} of {}", size(device.used_bytes), size(device.capacity_bytes));
        let state = device.lost.as_ref().map_or_else(|| "up".to_owned(), |why| format!("lost: {why}"));
        let slots = device.slots.to_string();
        [device.name.clone(), device.kind.clone(), device.backend.clone(), state, slots, memory, resident]
    });
    let devices = match rows.len() {
        0 => "no devices: this node accepts calls, and other nodes of its cluster run them\n".to_owned(),
        _ => table(["DEVICE", "KIND", "BACKEND", "STATE", "SLOTS", "MODEL MEMORY", "RESIDENT"], rows),
    };
    let cluster = status.cluster.as_ref().map_or_else(String::new, |cluster| format!("\n{}", nodes(cluster)));
    let damaged: String = status.damaged.iter().map(|what| format!("damaged       {what}\n")).collect();
    format!("{facts}{damaged}\n{devices}{cluster}")
}

fn nodes(cluster: &ClusterStatus) -> String {
    let rows = cluster.nodes.iter().map(|member| {
        let mut roles = Vec::new();
        roles.extend((cluster.dispatcher == Some(member.node)).then_some("dispatcher"));
        roles.extend((cluster.node == member.node).then_some("this one"));
        let memory = |bytes: fn(&DeviceStatus) -> u64| member.devices.iter().map(bytes).sum();
        let used = size(memory(|device| device.used_bytes));
        let of = size(memory(|device| device.capacity_bytes));
        let resident: Vec<_> = member.devices.iter().flat_map(|device| device.resident.clone()).collect();
        [
            member.node.0.to_string(),
            member.address.clone(),
            member.version.clone(),
            roles.join(", "),
            format!("{} running, {} waiting", member.running, member.queued),
            if member.devices.is_empty() { "no devices".to_owned() } else { format!("{used} of {of}") },
            if resident.is_empty() { "-".into() } else { resident.join(", ") },
        ]
    });
    table(["NODE", "ADDRESS", "VERSION", "ROLE", "INVOCATIONS", "MODEL MEMORY", "RESIDENT"], rows)
}
