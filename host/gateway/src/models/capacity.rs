//! `GET /v1/models/{name}/capacity`: capacity planning. Returns the measured configuration that
//! serves a rate within a latency, and the number of instances that this takes.

use crate::Caller;
use crate::NodeState;
use crate::error::ApiError;
use crate::state::NodeExtractor;
use crate::versions::parse_name;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use serde::Deserialize;
use weir_control::models::ModelEntry;
use weir_scheduler::{CapacityError, InstanceConfiguration};
use weir_types::api::ModelCapacity;
use weir_types::{ErrorCode, Measured, ModelId, Version};

/// Longest accepted SLO: a day.
const SLO_MS_MAX: f64 = 86_400_000.0;

/// Query of `GET .../capacity`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CapacityQuery {
    /// Items per second.
    rate: f64,
    slo_ms: f64,
    version: Option<Version>,
}

/// `GET /v1/models/{name}/capacity`.
pub(crate) async fn capacity(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    query: Result<Query<CapacityQuery>, QueryRejection>,
) -> Result<Json<ModelCapacity>, ApiError> {
    let Query(query) = query.map_err(|error| {
        ApiError::new(
            ErrorCode::InvalidRequest,
            format!("{error}; takes rate=ITEMS_PER_SECOND, slo_ms=MS and version=N"),
        )
    })?;
    if !(query.slo_ms > 0.0 && query.slo_ms <= SLO_MS_MAX) {
        let text = format!("slo_ms = {} is not above 0 and at most {SLO_MS_MAX}", query.slo_ms);
        return Err(ApiError::new(ErrorCode::InvalidRequest, text));
    }
    let entry = node.models.get(&caller.tenant, &parse_name(&name)?, query.version)?;
    choose(&node, &entry, &query).map(Json)
}

fn choose(node: &NodeState, entry: &ModelEntry, query: &CapacityQuery) -> Result<ModelCapacity, ApiError> {
    let ModelId { name, version, .. } = entry.source.id().clone();
    let known =
        node.models.devices().iter().map(|device| (device, device.cache.profiles().get(&entry.source.key)));
    let mut known = known.filter(|(_, profile)| !profile.measured.is_empty());
    let Some((device, profile)) = known.next() else {
        let text = format!(
            "model {name}:{version} was not profiled on this node yet; run `weir models profile {name}` first"
        );
        return Err(ApiError::new(ErrorCode::NoConfiguration, text));
    };
    let configurations: Vec<_> = profile.measured.iter().map(InstanceConfiguration::from).collect();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the SLO is at most a day")]
    let slo_ns = (query.slo_ms * 1e6).round() as u64;
    let plan = weir_scheduler::plan_capacity(query.rate, slo_ns, &configurations)
        .map_err(|error| refuse(error, query, &profile.measured))?;
    let is_chosen = |one: &&Measured| InstanceConfiguration::from(*one) == plan.configuration;
    let Some(measured) = profile.measured.iter().find(is_chosen) else {
        return Err(ApiError::internal(&"a configuration was chosen that was not measured"));
    };
    Ok(ModelCapacity {
        name,
        version,
        kind: device.kind.as_ref().to_owned(),
        rate_per_s: query.rate,
        slo_ms: query.slo_ms,
        configuration: *measured,
        instances: plan.instances,
        sessions: plan.instances.saturating_mul(u64::from(measured.concurrency)),
        throughput_per_s: plan.throughput_per_s,
        memory_bytes: plan.memory_bytes,
        resident_bytes: profile.resident_bytes,
        slots: device.slots(),
    })
}

fn refuse(error: CapacityError, query: &CapacityQuery, measured: &[Measured]) -> ApiError {
    match error {
        CapacityError::Rate => {
            ApiError::new(ErrorCode::InvalidRequest, format!("rate = {}: {error}", query.rate))
        }
        CapacityError::Nothing => ApiError::new(ErrorCode::NoConfiguration, error.to_string()),
        CapacityError::Unattainable { best_ns, .. } => {
            let best = measured.iter().find(|one| InstanceConfiguration::from(*one).slo_ns() == best_ns);
            let how = best.map_or_else(String::new, |Measured { threads, batch, concurrency, .. }| {
                format!(" (threads {threads}, batch {batch}, concurrency {concurrency})")
            });
            let text = format!(
                "no measured configuration meets an SLO of {} ms: the best meets {:.3} ms{how}; raise the SLO, or profile the model with more threads, on a quieter node or another device",
                query.slo_ms,
                best_ns as f64 / 1e6,
            );
            ApiError::new(ErrorCode::NoConfiguration, text)
        }
    }
}
