//! Shadows: the routes that show them with their comparison, and the counts of the nodes.

use super::Caller;
use super::canary::lists_elsewhere;
use super::error::ApiError;
use super::permission::RouteAccess;
use super::routes::Routes;
use super::table::MANAGE;
use super::versions::{find, parse_name};
use crate::NodeState;
use crate::state::NodeExtractor;
use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Extension, Json};
use weir_control::canary::{CanaryOf, CopyOutcome, ObservedCopies, ShadowCounts, ShadowShare};
use weir_control::models::{ModelShadow, ModelsError};
use weir_control::registry::{DeploymentKind, FunctionEntry, FunctionParts, RegistryError};
use weir_inference::Content;
use weir_types::api::{Shadow, ShadowReport};
use weir_types::{ErrorCode, TenantId};

/// The path of the counts for other nodes of the cluster.
pub(crate) const SHADOWS_PATH: &str = "/cluster/v1/shadows";

/// The routes below `/v1/functions/{name}`, with `access`, and below `/v1/models/{name}`.
pub(super) fn routes(access: RouteAccess) -> Routes {
    Routes::default().route("/v1/functions/{name}/shadow", access, get(show_function)).route(
        "/v1/models/{name}/shadow",
        MANAGE,
        get(show_model),
    )
}

/// Reads the percentage of a shadow from the options of a deployment.
pub(super) fn parse_share(percent: Option<&str>) -> Result<Option<ShadowShare>, ApiError> {
    let Some(text) = percent else { return Ok(None) };
    let range = Shadow::PERCENT_MIN..=Shadow::PERCENT_MAX;
    let percent = text.parse::<u8>().ok().filter(|percent| range.contains(percent)).ok_or_else(|| {
        let text =
            format!("shadow = {text:?} is not a whole percentage from {} to {}", range.start(), range.end());
        ApiError::new(ErrorCode::InvalidRequest, text)
    })?;
    Ok(Some(ShadowShare { percent }))
}

/// `GET /v1/functions/{name}/shadow`.
async fn show_function(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<ShadowReport>, ApiError> {
    let name = parse_name(&name)?;
    let entry = find::<FunctionParts>(&node, &caller, &name)?;
    let here = of_function(&caller.tenant, &entry);
    let here = here.ok_or(RegistryError::NoShadow(FunctionParts::NOUN, name))?;
    Ok(Json(report(&node, here).await))
}

/// `GET /v1/models/{name}/shadow`.
async fn show_model(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<ShadowReport>, ApiError> {
    let name = parse_name(&name)?;
    node.models.get_of(Content::Network, &caller.tenant, &name, None)?;
    let here = node.models.shadow(&caller.tenant, &name).map(of_model);
    let here = here.ok_or(ModelsError::NoShadow(name))?;
    Ok(Json(report(&node, here).await))
}

/// Adds the copies on the other nodes.
async fn report(node: &NodeState, here: ShadowCounts) -> ShadowReport {
    let (elsewhere, unreachable) = lists_elsewhere::<ShadowCounts>(node, SHADOWS_PATH).await;
    let ShadowCounts { of, tenant, name, shadow, active, mut copies } = here;
    let is_same = |counts: &&ShadowCounts| {
        (counts.of, counts.shadow, counts.active) == (of, shadow, active)
            && (&counts.tenant, &counts.name) == (&tenant, &name)
    };
    for counts in elsewhere.iter().filter(is_same) {
        copies.add(&counts.copies);
    }
    ShadowReport {
        shadow,
        active,
        shadow_calls: copies.shadow.report(),
        active_calls: copies.active.report(),
        equal: copies.count(CopyOutcome::Equal),
        different: copies.count(CopyOutcome::Different),
        skipped: copies.skipped(),
        unreachable,
    }
}

/// The counts of this node, for the other nodes.
pub(crate) fn counts_here(node: &NodeState) -> Vec<ShadowCounts> {
    let functions = node.registry.shadows();
    let functions = functions.iter().filter_map(|(tenant, entry)| of_function(tenant, entry));
    functions.chain(node.models.shadows().into_iter().map(of_model)).collect()
}

fn of_function(tenant: &TenantId, entry: &FunctionEntry) -> Option<ShadowCounts> {
    let shadow = entry.head.shadow?;
    Some(ShadowCounts {
        of: CanaryOf::Function,
        tenant: tenant.clone(),
        name: entry.name.clone(),
        shadow,
        active: entry.head.active,
        copies: entry.shared.shadow.observed(shadow).unwrap_or_default(),
    })
}

fn of_model(ModelShadow { tenant, name, active, shadow, slot }: ModelShadow) -> ShadowCounts {
    let copies: ObservedCopies = slot.observed(shadow).unwrap_or_default();
    ShadowCounts { of: CanaryOf::Model, tenant, name, shadow, active, copies }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentage_is_a_whole_number_up_to_a_hundred() {
        let parse = |text: Option<&str>| parse_share(text).map_err(|error| error.code);
        assert_eq!(parse(None), Ok(None));
        for percent in [1, 100] {
            let text = percent.to_string();
            assert_eq!(parse(Some(&text)), Ok(Some(ShadowShare { percent })));
        }
        for bad in ["0", "101", "-1", "1.5", "", "ten"] {
            assert_eq!(parse(Some(bad)), Err(ErrorCode::InvalidRequest), "{bad:?}");
        }
    }
}
