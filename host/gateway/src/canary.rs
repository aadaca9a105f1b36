//! Canaries: the version that a call uses, and the routes that promote and show canaries.
//! `versions.rs` rolls them back, and `watch.rs` decides about them.

mod watch;

pub use watch::watch_canaries;
pub(super) use watch::{CANARIES_PATH, counts_here};

use super::Caller;
use super::error::ApiError;
use super::permission::RouteAccess;
use super::routes::Routes;
use super::versions::{VersionedResource, find, missing, parse_name, summary};
use crate::NodeState;
use crate::state::NodeExtractor;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Extension, Json};
use http::HeaderMap;
use std::sync::Arc;
use std::time::Duration;
use weir_call::headers::VERSION_KEY;
use weir_control::registry::{
    CanaryShare, DeploymentKind, FunctionEntry, FunctionParts, RegistryEntry, RegistryError, waits_for,
};
use weir_telemetry::logs::now_ms;
use weir_types::api::{Canary, CanaryReport, EventKind, EventResource, Function};
use weir_types::{ErrorCode, Name, TenantId, Version};

/// The version of an asynchronous invocation, fixed when the request was accepted. In the extensions
/// of the request when it runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FixedVersion(pub(crate) Version);

/// The parts of a request that decide about the version that it uses.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct VersionChoice<'a> {
    fixed: Option<Version>,
    key: Option<&'a [u8]>,
}

impl<'a> VersionChoice<'a> {
    pub(crate) fn for_request<B>(request: &'a http::Request<B>) -> Self {
        let fixed = request.extensions().get::<FixedVersion>().map(|fixed| fixed.0);
        Self { fixed, ..Self::from_headers(request.headers()) }
    }

    pub(crate) fn from_headers(headers: &'a HeaderMap) -> Self {
        Self { fixed: None, key: headers.get(VERSION_KEY).map(http::HeaderValue::as_bytes) }
    }

    /// The version that was fixed when the request was accepted.
    pub(crate) fn fixed(&self) -> Option<Version> {
        self.fixed
    }

    /// The version for the call. A fixed version that was removed is replaced by a serving version.
    pub(crate) fn choose<'e, K: DeploymentKind>(
        &self,
        entry: &'e RegistryEntry<K>,
    ) -> Option<&'e Arc<K::Deployment>> {
        let fixed = self.fixed.and_then(|fixed| entry.versions.get(&fixed));
        fixed.or_else(|| entry.choose(self.key))
    }
}

/// The routes below `/v1/functions/{name}`.
pub(super) fn routes(access: RouteAccess) -> Routes {
    Routes::default().route("/v1/functions/{name}/promote", access, post(promote)).route(
        "/v1/functions/{name}/canary",
        access,
        get(show),
    )
}

/// Reads the share of a canary from the options of a deployment.
pub(super) fn parse_share(
    percent: Option<&str>,
    promote_after_ms: Option<&str>,
) -> Result<Option<CanaryShare>, ApiError> {
    let invalid = |text: String| ApiError::new(ErrorCode::InvalidRequest, text);
    let promote_after_ms = match promote_after_ms {
        None => None,
        Some(text) => {
            let parsed =
                text.parse::<u64>().ok().filter(|ms| (1..=Canary::PROMOTE_AFTER_MS_MAX).contains(ms));
            let max = Canary::PROMOTE_AFTER_MS_MAX;
            Some(parsed.ok_or_else(|| {
                invalid(format!("promote_after_ms = {text:?} is not a number from 1 to {max}"))
            })?)
        }
    };
    let Some(text) = percent else {
        return match promote_after_ms {
            None => Ok(None),
            Some(_) => Err(invalid("promote_after_ms needs a canary: add canary=PERCENT".to_owned())),
        };
    };
    let range = Canary::PERCENT_MIN..=Canary::PERCENT_MAX;
    let percent = text.parse::<u8>().ok().filter(|percent| range.contains(percent)).ok_or_else(|| {
        let text =
            format!("canary = {text:?} is not a whole percentage from {} to {}", range.start(), range.end());
        invalid(text)
    })?;
    Ok(Some(CanaryShare { percent, promote_after_ms }))
}

/// `POST /v1/functions/{name}/promote`.
async fn promote(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Function>, ApiError> {
    let name = parse_name(&name)?;
    let entry = FunctionParts::registry(&node).promote(&caller.tenant, &name, None).await?;
    let text = format!("version {} of function {name} was promoted by a request", entry.head.active);
    node.note_canary(EventKind::CanaryPromoted, &caller.tenant, &name, text);
    FunctionParts::rolled_back(&node);
    summary(&node, &entry).map(Json).ok_or_else(|| missing::<FunctionParts>(&name))
}

/// `GET /v1/functions/{name}/canary`: the canary, with the calls on all nodes.
async fn show(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<CanaryReport>, ApiError> {
    let name = parse_name(&name)?;
    let entry: Arc<FunctionEntry> = find(&node, &caller, &name)?;
    let canary = entry.head.canary.ok_or_else(|| no_canary(&name))?;
    let (elsewhere, unreachable) = watch::counts_elsewhere(&node).await;
    let (new, active) = watch::observed(&caller.tenant, &entry, canary, &elsewhere);
    Ok(Json(CanaryReport {
        canary,
        active: entry.head.active,
        canary_calls: new.report(),
        active_calls: active.report(),
        waits_for: waits_for(canary, age(canary), &new),
        unreachable,
    }))
}

fn no_canary(name: &Name) -> ApiError {
    RegistryError::NoCanary(FunctionParts::NOUN, name.clone()).into()
}

/// The time since a canary's start.
fn age(canary: Canary) -> Duration {
    Duration::from_millis(now_ms().saturating_sub(canary.started_at_ms))
}

impl NodeState {
    /// Records the start or the end of a function's canary.
    pub(crate) fn note_canary(&self, kind: EventKind, tenant: &TenantId, name: &Name, text: String) {
        tracing::info!(%tenant, function = %name, "{text}");
        self.note(kind, EventResource::Function, tenant, name, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_is_a_whole_percentage_below_a_hundred() {
        let share = |percent, after| parse_share(percent, after).map_err(|error| error.code);
        assert_eq!(share(None, None), Ok(None));
        let expected = CanaryShare { percent: 10, promote_after_ms: Some(60_000) };
        assert_eq!(share(Some("10"), Some("60000")), Ok(Some(expected)));
        for bad in ["0", "100", "-1", "1.5", "", "ten"] {
            assert_eq!(share(Some(bad), None), Err(ErrorCode::InvalidRequest), "{bad:?}");
        }
        for bad in ["0", "5m", "99999999999"] {
            assert_eq!(share(Some("10"), Some(bad)), Err(ErrorCode::InvalidRequest), "{bad:?}");
        }
        assert_eq!(share(None, Some("60000")), Err(ErrorCode::InvalidRequest));
    }
}
