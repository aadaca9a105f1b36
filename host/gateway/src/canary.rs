//! Canaries: the version that a call uses, and the routes that promote and show canaries.
//! `versions.rs` rolls them back, and `watch.rs` decides about them.

mod subject;
mod watch;

pub use watch::watch_canaries;
pub(super) use watch::{CANARIES_PATH, counts_here, lists_elsewhere};

use super::Caller;
use super::error::ApiError;
use super::models;
use super::permission::RouteAccess;
use super::routes::Routes;
use super::table::MANAGE;
use super::versions::{VersionedResource, find, missing, parse_name, read_version, summary};
use crate::NodeState;
use crate::state::NodeExtractor;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Extension, Json};
use http::HeaderMap;
use std::sync::Arc;
use std::time::Duration;
use weir_call::headers::VERSION_KEY;
use weir_control::canary::{CanaryOf, CanaryShare, waits_for};
use weir_control::models::{ModelEntry, ModelRoles};
use weir_control::registry::{DeploymentKind, FunctionParts, RegistryEntry};
use weir_inference::Content;
use weir_telemetry::logs::now_ms;
use weir_types::api::{Canary, CanaryReport, EventKind, Function, Model};
use weir_types::{ErrorCode, ModelId, Name, TenantId, Version, VersionRef};

/// The version of an asynchronous invocation, fixed when the request was accepted. In the extensions
/// of the request when it runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FixedVersion(pub(crate) Version);

/// The parts of a request that decide about the version that it uses.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct VersionChoice<'a> {
    /// The version that the request names, by number or alias.
    named: Option<&'a VersionRef>,
    fixed: Option<Version>,
    key: Option<&'a [u8]>,
}

impl<'a> VersionChoice<'a> {
    pub(crate) fn for_request<B>(request: &'a http::Request<B>) -> Self {
        let fixed = request.extensions().get::<FixedVersion>().map(|fixed| fixed.0);
        Self { fixed, ..Self::from_headers(request.headers()) }
    }

    pub(crate) fn from_headers(headers: &'a HeaderMap) -> Self {
        Self { key: headers.get(VERSION_KEY).map(http::HeaderValue::as_bytes), ..Self::default() }
    }

    /// The choice for a request that names a version; `None`: the choice stays the same.
    pub(crate) fn of_version(self, named: Option<&'a VersionRef>) -> Self {
        Self { named, ..self }
    }

    /// The version that the request names.
    pub(crate) fn named(&self) -> Option<&'a VersionRef> {
        self.named
    }

    /// The key of the client, with which all its calls use the same version.
    pub(crate) fn key(&self) -> Option<&'a [u8]> {
        self.key
    }

    /// The version that was fixed when the request was accepted.
    pub(crate) fn fixed(&self) -> Option<Version> {
        self.fixed
    }

    /// The version for the call. A fixed version that was removed is replaced by a serving version,
    /// and a named version is not. An alias names the version that was fixed with it, if any.
    pub(crate) fn choose<'e, K: DeploymentKind>(
        &self,
        entry: &'e RegistryEntry<K>,
    ) -> Option<&'e Arc<K::Deployment>> {
        if let Some(VersionRef::Number(named)) = self.named {
            return entry.versions.get(named);
        }
        let fixed = self.fixed.and_then(|fixed| entry.versions.get(&fixed));
        fixed.or_else(|| match entry.resolve(self.named).ok()? {
            Some(named) => entry.versions.get(&named),
            None => entry.choose(self.key),
        })
    }
}

/// The routes below `/v1/functions/{name}`, with `access`, and below `/v1/models/{name}`.
pub(super) fn routes(access: RouteAccess) -> Routes {
    let functions = Routes::default()
        .route("/v1/functions/{name}/promote", access, post(promote))
        .route("/v1/functions/{name}/canary", access, get(show))
        .with(|router| router.route_layer(Extension(CanaryOf::Function)));
    let models = Routes::default()
        .route("/v1/models/{name}/promote", MANAGE, post(promote_model))
        .route("/v1/models/{name}/canary", MANAGE, get(show))
        .with(|router| router.route_layer(Extension(CanaryOf::Model)));
    functions.merge(models)
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
    body: Body,
) -> Result<Json<Function>, ApiError> {
    let name = parse_name(&name)?;
    let version = read_version(body).await?;
    let registry = FunctionParts::registry(&node);
    let before = find::<FunctionParts>(&node, &caller, &name)?.head.canary;
    let entry = registry.promote_to(&caller.tenant, &name, version).await?;
    node.note_promotion((CanaryOf::Function, &caller.tenant, &name), before, entry.head.active);
    FunctionParts::rolled_back(&node);
    summary(&node, &entry).map(Json).ok_or_else(|| missing::<FunctionParts>(&name))
}

/// `POST /v1/models/{name}/promote`.
async fn promote_model(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Json<Model>, ApiError> {
    let name = parse_name(&name)?;
    let version = read_version(body).await?;
    node.models.get_of(Content::Network, &caller.tenant, &name, None)?;
    let before = node.models.roles(&caller.tenant, &name).canary;
    let version = match version {
        Some(version) => {
            node.models.promote_to(&caller.tenant, &name, version).await?;
            version
        }
        None => node.models.promote(&caller.tenant, &name, None).await?.version,
    };
    node.note_promotion((CanaryOf::Model, &caller.tenant, &name), before, version);
    Ok(Json(models::summary(&node, Content::Network, &caller.tenant, &name)?))
}

/// `GET /v1/functions/{name}/canary` and `GET /v1/models/{name}/canary`: the canary, with the calls
/// on all nodes.
async fn show(
    State(node): NodeExtractor,
    Extension(of): Extension<CanaryOf>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<CanaryReport>, ApiError> {
    let subject = node.canary_subject(of, &caller.tenant, &parse_name(&name)?)?;
    let canary = subject.key.canary;
    let (elsewhere, unreachable) = watch::counts_elsewhere(&node).await;
    let (new, active) = subject.observed(&elsewhere);
    Ok(Json(CanaryReport {
        canary,
        active: subject.active,
        canary_calls: new.report(),
        active_calls: active.report(),
        waits_for: waits_for(canary, age(canary), &new),
        unreachable,
    }))
}

/// Records the start and the end of canaries by a push of a model. Returns the canary, if `entry`
/// is it.
pub(super) fn note_push(node: &NodeState, before: ModelRoles, entry: &ModelEntry) -> Option<Canary> {
    let ModelId { tenant, name, version } = entry.source.id();
    let after = node.models.roles(tenant, name);
    let of = (CanaryOf::Model, tenant, name);
    if let Some(ended) = before.canary.filter(|ended| {
        after.canary.is_none_or(|canary| canary.version != ended.version) && ended.version != *version
    }) {
        let text = format!("canary {} of model {name} was replaced by version {version}", ended.version);
        node.note_canary(EventKind::CanaryRolledBack, of, text);
    }
    let canary = after.canary.filter(|canary| canary.version == *version)?;
    if before.canary != Some(canary)
        && let Some(active) = after.active
    {
        let percent = canary.percent;
        let text = format!(
            "canary {version} of model {name} gets {percent} % of the runs, and version {active} the others"
        );
        node.note_canary(EventKind::CanaryStarted, of, text);
    }
    Some(canary)
}

/// The time since a canary's start.
fn age(canary: Canary) -> Duration {
    Duration::from_millis(now_ms().saturating_sub(canary.started_at_ms))
}

impl NodeState {
    /// Records a promotion by a request, and the end of the canary before, if another version was
    /// promoted.
    fn note_promotion(&self, of: (CanaryOf, &TenantId, &Name), before: Option<Canary>, promoted: Version) {
        let what = format!("{} {}", of.0.resource(), of.2);
        if let Some(Canary { version, .. }) = before.filter(|canary| canary.version != promoted) {
            let text = format!("canary {version} of {what} was rolled back by a request");
            self.note_canary(EventKind::CanaryRolledBack, of, text);
        }
        let text = format!("version {promoted} of {what} was promoted by a request");
        self.note_canary(EventKind::CanaryPromoted, of, text);
    }

    /// Records the start or the end of the canary of a function or model.
    pub(crate) fn note_canary(
        &self,
        kind: EventKind,
        (of, tenant, name): (CanaryOf, &TenantId, &Name),
        text: String,
    ) {
        tracing::info!(%tenant, %name, "{text}");
        self.note(kind, of.resource(), tenant, name, text);
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
