//! `GET /v1/models/{name}/size`: capacity planning. Returns the measured configuration that serves
//! a rate within a latency, and the number of instances that this takes.

use super::{Node, parse_name};
use crate::gateway::Caller;
use crate::gateway::error::ApiError;
use crate::models::ModelEntry;
use crate::node::NodeState;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use serde::Deserialize;
use weir_scheduler::{Configuration, SizingError};
use weir_types::api::ModelSizing;
use weir_types::{ErrorCode, Measured, ModelId, Version};

/// Longest accepted SLO: a day.
const SLO_MS_MAX: f64 = 86_400_000.0;

/// Query of `GET .../size`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::gateway) struct SizeQuery {
    /// Items per second.
    rate: f64,
    slo_ms: f64,
    version: Option<Version>,
}

/// `GET /v1/models/{name}/size`.
pub(in crate::gateway) async fn size(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    query: Result<Query<SizeQuery>, QueryRejection>,
) -> Result<Json<ModelSizing>, ApiError> {
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

fn choose(node: &NodeState, entry: &ModelEntry, query: &SizeQuery) -> Result<ModelSizing, ApiError> {
    let ModelId { name, version, .. } = entry.source.id().clone();
    let known =
        node.models.devices().iter().map(|device| (device, device.cache.profiles().get(&entry.source.key)));
    let mut known = known.filter(|(_, profile)| !profile.measured.is_empty());
    let Some((device, profile)) = known.next() else {
        let text = format!(
            "nothing was measured of model {name}:{version} on this node yet; run `weir models profile {name}` first"
        );
        return Err(ApiError::new(ErrorCode::NoConfiguration, text));
    };
    let configurations: Vec<_> = profile.measured.iter().map(Configuration::from).collect();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the SLO is at most a day")]
    let slo_ns = (query.slo_ms * 1e6).round() as u64;
    let sizing = weir_scheduler::size(query.rate, slo_ns, &configurations)
        .map_err(|error| refuse(error, query, &profile.measured))?;
    let is_chosen = |one: &&Measured| Configuration::from(*one) == sizing.configuration;
    let Some(measured) = profile.measured.iter().find(is_chosen) else {
        return Err(ApiError::internal(&"a configuration was chosen that was not measured"));
    };
    Ok(ModelSizing {
        name,
        version,
        kind: device.kind.as_ref().to_owned(),
        rate_per_s: query.rate,
        slo_ms: query.slo_ms,
        configuration: *measured,
        instances: sizing.instances,
        sessions: sizing.instances.saturating_mul(u64::from(measured.concurrency)),
        throughput_per_s: sizing.throughput_per_s,
        memory_bytes: sizing.memory_bytes,
        resident_bytes: profile.resident_bytes,
        slots: device.slots(),
    })
}

fn refuse(error: SizingError, query: &SizeQuery, measured: &[Measured]) -> ApiError {
    match error {
        SizingError::Rate => {
            ApiError::new(ErrorCode::InvalidRequest, format!("rate = {}: {error}", query.rate))
        }
        SizingError::Nothing => ApiError::new(ErrorCode::NoConfiguration, error.to_string()),
        SizingError::Unattainable { best_ns, .. } => {
            let best = measured.iter().find(|one| Configuration::from(*one).slo_ns() == best_ns);
            let how = best.map_or_else(String::new, |Measured { threads, batch, concurrency, .. }| {
                format!(" (threads {threads}, batch {batch}, concurrency {concurrency})")
            });
            let text = format!(
                "no configuration that was measured keeps to {} ms: the best keeps to {:.3} ms{how}; allow that much, or profile the model with more threads, on a quieter node or another device",
                query.slo_ms,
                best_ns as f64 / 1e6,
            );
            ApiError::new(ErrorCode::NoConfiguration, text)
        }
    }
}
