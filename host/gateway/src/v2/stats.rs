//! `/v2/models/stats`: request counts and times of models, tensor functions and workflows.

use super::super::Caller;
use super::super::error::ApiError;
use super::target::{At, NamedTarget};
use crate::NodeState;
use crate::state::NodeExtractor;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use serde_json::{Value, json};
use std::sync::Arc;
use weir_control::devices::NodeDevice;
use weir_telemetry::Tally;

/// `GET /v2/models/stats`: the active version of each model and function.
pub(super) async fn all(State(node): NodeExtractor, Extension(caller): Extension<Caller>) -> Json<Value> {
    let all = NamedTarget::list(&node, &caller);
    let all: Vec<_> = all.iter().map(|target| statistics(&node, target)).collect();
    Json(json!({"model_stats": all}))
}

/// `GET /v2/models/{name}/stats`.
pub(super) async fn one(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(at): Path<At>,
) -> Result<Json<Value>, ApiError> {
    let target = at.find(&node, &caller).await?;
    Ok(Json(json!({"model_stats": [statistics(&node, &target)]})))
}

fn statistics(node: &NodeState, target: &NamedTarget) -> Value {
    let served = target.served(node);
    let [success, fail, queue, input, infer, output] = served.tallies();
    let [cache_hit, cache_miss] = served.cached();
    let batches = served.batches().into_iter().map(|(size, batch)| {
        json!({
            "batch_size": size,
            "compute_input": tally(batch.input),
            "compute_infer": tally(batch.infer),
            "compute_output": tally(batch.output),
        })
    });
    json!({
        "name": target.name(),
        "version": target.version().to_string(),
        "last_inference": served.last_ms(),
        "inference_count": served.items(),
        "execution_count": served.executions(),
        "inference_stats": {
            "success": tally(success),
            "fail": tally(fail),
            "queue": tally(queue),
            "compute_input": tally(input),
            "compute_infer": tally(infer),
            "compute_output": tally(output),
            "cache_hit": tally(cache_hit),
            "cache_miss": tally(cache_miss),
        },
        "batch_stats": batches.collect::<Vec<_>>(),
        "memory_usage": memory_usage(node, target),
        "response_stats": {},
    })
}

/// Returns the memory that a model takes on devices.
fn memory_usage(node: &NodeState, target: &NamedTarget) -> Vec<Value> {
    let NamedTarget::Model(entry) = target else { return Vec::new() };
    let usage = |device: &Arc<NodeDevice>| {
        let resident = device.cache.resident().into_iter().find(|model| model.id == *entry.source.id())?;
        let accelerator = node.models.devices().accelerator(device.ordinal);
        let kind = if accelerator.is_some() { "GPU" } else { "CPU" };
        Some(json!({"type": kind, "id": accelerator.unwrap_or(0), "byte_size": resident.bytes}))
    };
    node.models.devices().iter().filter_map(usage).collect()
}

fn tally(Tally { count, time_ns }: Tally) -> Value {
    json!({"count": count, "ns": time_ns})
}
