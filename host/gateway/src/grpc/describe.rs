//! Metadata, configuration and statistics of models, as messages.

use super::super::error::ApiError;
use super::super::permission::Caller;
use super::super::v2::{self, At, Group, NamedTarget, RepositoryEntry, instances, label_filename, platform};
use crate::NodeState;
use weir_grpc::model_instance_group::Kind;
use weir_grpc::model_metadata_response::TensorMetadata;
use weir_grpc::repository_index_response::ModelIndex;
use weir_grpc::{
    DataType, InferBatchStatistics, InferStatistics, ModelConfig, ModelDynamicBatching, ModelInput,
    ModelInstanceGroup, ModelMetadataResponse, ModelOutput, ModelStatistics, StatisticDuration,
};
use weir_telemetry::Tally;
use weir_types::{ElementType, Port};

pub(super) async fn metadata(
    node: &NodeState,
    caller: &Caller,
    at: &At,
) -> Result<ModelMetadataResponse, ApiError> {
    let target = at.find(node, caller).await?;
    let (inputs, outputs) = target.ports();
    let tensor = |port: &Port| TensorMetadata {
        name: port.name.clone(),
        datatype: port.datatype.to_string(),
        shape: dimensions(port),
    };
    let versions = if at.has_version() { vec![target.version()] } else { target.versions(node) };
    Ok(ModelMetadataResponse {
        name: target.name().to_string(),
        versions: versions.iter().map(ToString::to_string).collect(),
        platform: platform(node, &target).to_owned(),
        inputs: inputs.iter().map(tensor).collect(),
        outputs: outputs.iter().map(tensor).collect(),
    })
}

pub(super) async fn config(node: &NodeState, caller: &Caller, at: &At) -> Result<ModelConfig, ApiError> {
    let target = at.find(node, caller).await?;
    let (inputs, outputs) = target.ports();
    let batching = target.batching();
    // With a maximum batch size, shapes are those of one item.
    let of_item =
        |port: &Port| dimensions(port).split_off(usize::from(batching.is_some() && !port.shape.is_empty()));
    let input = |port: &Port| ModelInput {
        name: port.name.clone(),
        data_type: data_type(port.datatype).into(),
        dims: of_item(port),
    };
    let output = |port: &Port| ModelOutput {
        name: port.name.clone(),
        data_type: data_type(port.datatype).into(),
        dims: of_item(port),
        label_filename: if target.has_labels(&port.name) {
            label_filename(&port.name)
        } else {
            String::new()
        },
    };
    let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let dynamic_batching = batching.as_ref().map(|batching| ModelDynamicBatching {
        preferred_batch_size: batching.preferred_sizes().iter().copied().map(number).collect(),
        max_queue_delay_microseconds: u64::try_from(batching.queue_delay_max().as_micros())
            .unwrap_or(u64::MAX),
    });
    let (backend, groups) = instances(node, &target);
    let group = |group: &Group| ModelInstanceGroup {
        name: target.name().to_string(),
        count: number(group.count),
        kind: if group.gpu.is_some() { Kind::Gpu } else { Kind::Cpu }.into(),
    };
    Ok(ModelConfig {
        name: target.name().to_string(),
        platform: platform(node, &target).to_owned(),
        max_batch_size: batching.as_ref().map_or(0, |batching| number(batching.size_max())),
        input: inputs.iter().map(input).collect(),
        output: outputs.iter().map(output).collect(),
        instance_group: groups.iter().map(group).collect(),
        dynamic_batching,
        backend: backend.to_owned(),
    })
}

/// Returns the statistics of one model, or of all models if the name is empty.
pub(super) async fn statistics(
    node: &NodeState,
    caller: &Caller,
    name: String,
    version: String,
) -> Result<Vec<ModelStatistics>, ApiError> {
    let targets = match name.is_empty() {
        true => NamedTarget::list(node, caller),
        false => vec![At::new(name, version).find(node, caller).await?],
    };
    Ok(targets.iter().map(|target| statistics_of(node, target)).collect())
}

pub(super) fn index(node: &NodeState, caller: &Caller, only_ready: bool) -> Vec<ModelIndex> {
    let entries = v2::index(node, caller, only_ready).into_iter();
    let model = |entry: RepositoryEntry| ModelIndex {
        name: entry.name,
        version: entry.version,
        state: entry.state.to_owned(),
        reason: entry.reason,
    };
    entries.map(model).collect()
}

fn statistics_of(node: &NodeState, target: &NamedTarget) -> ModelStatistics {
    let served = target.served(node);
    let [success, fail, queue, input, infer, output] = served.tallies();
    let [cache_hit, cache_miss] = served.cached();
    let batches = served.batches().into_iter().map(|(size, batch)| InferBatchStatistics {
        batch_size: size.into(),
        compute_input: Some(duration(batch.input)),
        compute_infer: Some(duration(batch.infer)),
        compute_output: Some(duration(batch.output)),
    });
    ModelStatistics {
        name: target.name().to_string(),
        version: target.version().to_string(),
        last_inference: served.last_ms(),
        inference_count: served.items(),
        execution_count: served.executions(),
        inference_stats: Some(InferStatistics {
            success: Some(duration(success)),
            fail: Some(duration(fail)),
            queue: Some(duration(queue)),
            compute_input: Some(duration(input)),
            compute_infer: Some(duration(infer)),
            compute_output: Some(duration(output)),
            cache_hit: Some(duration(cache_hit)),
            cache_miss: Some(duration(cache_miss)),
        }),
        batch_stats: batches.collect(),
    }
}

fn duration(Tally { count, time_ns }: Tally) -> StatisticDuration {
    StatisticDuration { count, ns: time_ns }
}

fn data_type(datatype: ElementType) -> DataType {
    match datatype {
        ElementType::Bool => DataType::TypeBool,
        ElementType::Uint8 => DataType::TypeUint8,
        ElementType::Uint16 => DataType::TypeUint16,
        ElementType::Uint32 => DataType::TypeUint32,
        ElementType::Uint64 => DataType::TypeUint64,
        ElementType::Int8 => DataType::TypeInt8,
        ElementType::Int16 => DataType::TypeInt16,
        ElementType::Int32 => DataType::TypeInt32,
        ElementType::Int64 => DataType::TypeInt64,
        ElementType::Fp16 => DataType::TypeFp16,
        ElementType::Bf16 => DataType::TypeBf16,
        ElementType::Fp32 => DataType::TypeFp32,
        ElementType::Fp64 => DataType::TypeFp64,
        ElementType::Bytes => DataType::TypeString,
    }
}

/// Returns the dimensions of a port, with -1 for a variable size.
fn dimensions(port: &Port) -> Vec<i64> {
    port.shape.iter().map(|size| size.map_or(-1, i64::from)).collect()
}
