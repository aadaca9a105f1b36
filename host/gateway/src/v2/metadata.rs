//! Metadata of the server and its models.

use super::super::Caller;
use super::super::error::ApiError;
use super::target::{At, NamedTarget};
use super::{EXTENSIONS, SERVER};
use crate::NodeState;
use crate::state::NodeExtractor;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use serde_json::{Value, json};
use weir_control::devices::NodeDevice;
use weir_control::models::BackendKind;
use weir_inference::BatchRules;
use weir_inference::Content;
use weir_types::{ElementType, ErrorCode, Port};

/// `GET /v2`.
pub(super) async fn server() -> Json<Value> {
    Json(json!({"name": SERVER, "version": env!("CARGO_PKG_VERSION"), "extensions": EXTENSIONS}))
}

/// `GET /v2/models/{name}`.
pub(super) async fn model(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(at): Path<At>,
) -> Result<Json<Value>, ApiError> {
    let target = at.find(&node, &caller).await?;
    let versions = if at.has_version() { vec![target.version()] } else { target.versions(&node) };
    let versions: Vec<_> = versions.iter().map(ToString::to_string).collect();
    let (inputs, outputs) = target.ports();
    Ok(Json(json!({
        "name": target.name(),
        "versions": versions,
        "platform": platform(&node, &target),
        "inputs": inputs.iter().map(port).collect::<Vec<_>>(),
        "outputs": outputs.iter().map(port).collect::<Vec<_>>(),
    })))
}

/// `GET /v2/models/{name}/ready`. A model outside device memory is ready too: the first inference
/// loads it.
pub(super) async fn ready(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(at): Path<At>,
) -> Result<Json<Value>, ApiError> {
    let target = at.find(&node, &caller).await?;
    if !node.is_ready() {
        return Err(ApiError::new(ErrorCode::Unavailable, "the node is shutting down"));
    }
    if let Some(why) = target.unready(&node) {
        return Err(ApiError::new(ErrorCode::Unavailable, format!("{} is not ready: {why}", target.name())));
    }
    Ok(Json(json!({"name": target.name(), "ready": true})))
}

/// `GET /v2/models/{name}/config`, with the fields that Weir has values for.
pub(super) async fn config(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(at): Path<At>,
) -> Result<Json<Value>, ApiError> {
    let target = at.find(&node, &caller).await?;
    let (inputs, outputs) = target.ports();
    let (backend, groups) = instances(&node, &target);
    let batching = target.batching();
    // With a maximum batch size, shapes are those of one item.
    let is_batched = batching.is_some();
    let mut config = json!({
        "name": target.name(),
        "platform": platform(&node, &target),
        "backend": backend,
        "version_policy": {"specific": {"versions": [target.version()]}},
        "max_batch_size": batching.as_ref().map_or(0, BatchRules::size_max),
        "input": inputs.iter().map(|port| config_input(port, is_batched)).collect::<Vec<_>>(),
        "output": outputs.iter().map(|port| config_output(&target, port, is_batched)).collect::<Vec<_>>(),
        "instance_group": groups.iter().map(|group| instance_group(&target, group)).collect::<Vec<_>>(),
    });
    if let (Some(batching), Some(config)) = (batching, config.as_object_mut()) {
        let delay_us = u64::try_from(batching.queue_delay_max().as_micros()).unwrap_or(u64::MAX);
        let dynamic = json!({
            "preferred_batch_size": batching.preferred_sizes(),
            "max_queue_delay_microseconds": delay_us,
        });
        config.insert("dynamic_batching".to_owned(), dynamic);
    }
    Ok(Json(config))
}

/// Instance group: a device, and its number of concurrent inferences.
pub(crate) struct Group {
    /// Number of the GPU or other accelerator of the node; none for its CPU.
    pub(crate) gpu: Option<u32>,
    pub(crate) count: u32,
}

fn instance_group(target: &NamedTarget, Group { gpu, count }: &Group) -> Value {
    let kind = if gpu.is_some() { "KIND_GPU" } else { "KIND_CPU" };
    json!({"name": target.name(), "kind": kind, "count": count, "gpus": gpu.iter().collect::<Vec<_>>()})
}

/// Returns the backend of a target and its instance groups. Functions and workflows run in the
/// sandbox.
pub(crate) fn instances(node: &NodeState, target: &NamedTarget) -> (&'static str, Vec<Group>) {
    let first = node.models.devices().iter().next();
    match target {
        NamedTarget::Function(deployment) => {
            ("weir", vec![Group { gpu: None, count: deployment.manifest.limits.concurrency_max }])
        }
        NamedTarget::Workflow(_) => {
            ("weir", vec![Group { gpu: None, count: first.map_or(1, |first| first.slots()) }])
        }
        NamedTarget::Model(entry) => {
            let devices = node.models.devices_of(entry);
            let on = devices.first().copied().or(first.map(|first| &**first));
            let backend = on.map_or(other_nodes_backend(node), |device| device.cache.backend().name());
            let own = entry.record.manifest.slots;
            let group = |device: &&NodeDevice| Group {
                gpu: node.models.devices().accelerator(device.ordinal),
                count: own.map_or(device.slots(), |own| own.min(device.slots())),
            };
            (backend, devices.iter().map(group).collect())
        }
    }
}

/// The backend of the models of a node without devices, which other nodes run.
fn other_nodes_backend(node: &NodeState) -> &'static str {
    match node.config.models.backend {
        BackendKind::Onnxruntime => "onnxruntime",
        BackendKind::Fake => "fake",
    }
}

/// Returns the platform of a target, in the names that clients know.
pub(crate) fn platform(node: &NodeState, target: &NamedTarget) -> &'static str {
    match (target, instances(node, target).0) {
        (NamedTarget::Function(_), _) => "weir_function",
        (NamedTarget::Workflow(_), _) => "weir_workflow",
        (NamedTarget::Model(entry), _) if entry.content() == Content::KernelGraph => "weir_kernel_graph",
        (NamedTarget::Model(_), "onnxruntime") => "onnxruntime_onnx",
        (NamedTarget::Model(_), other) => other,
    }
}

fn port(port: &Port) -> Value {
    json!({"name": port.name, "datatype": port.datatype, "shape": dimensions(port)})
}

/// An input, with the layout that Triton's clients for images read, and Triton's defaults of
/// settings that Weir does not have.
fn config_input(port: &Port, is_batched: bool) -> Value {
    let mut config = config_port(port, is_batched);
    config["format"] = "FORMAT_NONE".into();
    config["allow_ragged_batch"] = false.into();
    config["optional"] = false.into();
    config
}

/// An output, with the file of its labels if it has some.
fn config_output(target: &NamedTarget, port: &Port, is_batched: bool) -> Value {
    let mut config = config_port(port, is_batched);
    if target.has_labels(&port.name) {
        config["label_filename"] = label_filename(&port.name).into();
    }
    config
}

/// Name of the labels of an output: the field of a push that has them.
pub(crate) fn label_filename(output: &str) -> String {
    format!("labels.{output}")
}

fn config_port(port: &Port, is_batched: bool) -> Value {
    let data_type = match port.datatype {
        ElementType::Bytes => "TYPE_STRING".to_owned(),
        other => format!("TYPE_{other}"),
    };
    let dimensions = dimensions(port).split_off(usize::from(is_batched && !port.shape.is_empty()));
    json!({"name": port.name, "data_type": data_type, "dims": dimensions, "is_shape_tensor": false})
}

/// Returns the dimensions of a port, with -1 for a variable size.
fn dimensions(port: &Port) -> Vec<i64> {
    port.shape.iter().map(|size| size.map_or(-1, i64::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_of_ports_has_tritons_defaults() {
        let port = Port { name: "x".to_owned(), datatype: ElementType::Fp32, shape: vec![None, Some(3)] };
        let output = json!({"name": "x", "data_type": "TYPE_FP32", "dims": [3], "is_shape_tensor": false});
        assert_eq!(config_port(&port, true), output);
        let input = json!({
            "name": "x",
            "data_type": "TYPE_FP32",
            "format": "FORMAT_NONE",
            "dims": [-1, 3],
            "is_shape_tensor": false,
            "allow_ragged_batch": false,
            "optional": false,
        });
        assert_eq!(config_input(&port, false), input);
    }
}
