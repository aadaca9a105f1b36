//! `weir usage`.

use crate::commands::CommandContext;
use crate::output::{measured, size, table, time};
use crate::settings::ClientArgs;
use anyhow::Result;
use std::time::Duration;
use weir_types::api::{DeviceUsage, Usage, UsageRow};

/// Show your functions' and models' use of the node's devices: time, loads and memory
///
/// Counts since the start of the node that answers; its metrics have the same values. Deleted
/// functions and models leave the list but stay in the total.
///
/// Examples:
///   weir usage
///   weir usage --json | jq '[.rows[] | {function, model, device_time_us, byte_seconds}]'
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct UsageArgs {
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) fn run(args: &UsageArgs, context: &CommandContext) -> Result<()> {
    let client = context.client(&args.client)?;
    let usage: Usage = client.get("/v1/usage", "read the usage")?;
    context.output.result(&usage, text)
}

fn text(usage: &Usage) -> String {
    let rows = usage.rows.iter().map(|row| cells(function(row), model(row), &row.used));
    let totals = usage.total.iter().map(|used| cells("(all)".into(), "(all)".into(), used));
    let header =
        ["FUNCTION", "MODEL", "DEVICE", "RUNS", "DEVICE TIME", "LOADS", "LOAD TIME", "MEMORY x SECONDS"];
    let since = format!("{} since {}", usage.tenant, time(usage.since_ms));
    if usage.total.is_empty() {
        return format!("{since}: no usage");
    }
    format!("{since}\n\n{}", table(header, rows.chain(totals)))
}

fn function(row: &UsageRow) -> String {
    row.function.as_ref().map_or_else(|| "-".into(), ToString::to_string)
}

fn model(row: &UsageRow) -> String {
    match (&row.model, row.version) {
        (Some(name), Some(version)) => format!("{name}:{version}"),
        _ => "(its own)".into(),
    }
}

fn cells(function: String, model: String, used: &DeviceUsage) -> [String; 8] {
    let time = |us| measured(Duration::from_micros(us));
    [
        function,
        model,
        used.device.clone(),
        used.runs.to_string(),
        time(used.device_time_us),
        used.loads.to_string(),
        time(used.load_time_us),
        size(used.byte_seconds),
    ]
}
