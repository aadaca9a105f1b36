//! `/v1/usage`: device usage of a tenant.

use super::Caller;
use crate::NodeState;
use axum::extract::State;
use axum::{Extension, Json};
use std::sync::Arc;
use weir_device::Device;
use weir_inference::Used;
use weir_types::api::{DeviceUsage, Usage, UsageRow};

/// `GET /v1/usage`.
pub(super) async fn show(
    State(node): State<Arc<NodeState>>,
    Extension(Caller { tenant, .. }): Extension<Caller>,
) -> Json<Usage> {
    node.models.devices().meter_memory();
    let meters = &node.metrics.usage;
    let own = meters.rows().into_iter().filter(|(row, _)| row.tenant == tenant);
    let rows = own.flat_map(|(row, used)| {
        let (model, version) = row.model.unzip();
        let node = &node;
        used.into_iter().map(move |used| UsageRow {
            function: row.function.clone(),
            model: model.clone(),
            version,
            used: device_usage(node, used),
        })
    });
    let rows = rows.collect();
    let total = meters.total(&tenant).into_iter().map(|used| device_usage(&node, used)).collect();
    Json(Usage { since_ms: meters.since_ms(), total, rows, tenant })
}

fn device_usage(node: &NodeState, (device, used): (Device, Used)) -> DeviceUsage {
    let Used { runs, run_time_ns, loads, load_time_ns, resident_byte_ns } = used;
    let device = device.to_string();
    let known = node.models.devices().iter().find(|known| *known.name == *device);
    DeviceUsage {
        kind: known.map_or_else(|| device.clone(), |known| known.kind.as_ref().to_owned()),
        device,
        runs,
        device_time_us: run_time_ns / 1_000,
        loads,
        load_time_us: load_time_ns / 1_000,
        byte_seconds: u64::try_from(resident_byte_ns / 1_000_000_000).unwrap_or(u64::MAX),
    }
}
