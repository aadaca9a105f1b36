//! The routes of the gateway, and the scopes that clients need for them.

use super::health::Monitoring;
use super::permission::{RouteAccess, Subject};
use super::routes::Routes;
use super::{
    alias, backup, calls, canary, dashboard, embeddings, events, functions, health, invocations, keys,
    models, objects, openapi, placements, secrets, shadow, triggers, usage, v2, versions, workflows,
};
use axum::routing::{get, post, put};
use weir_control::registry::FunctionParts;
use weir_control::workflows::Workflows;
use weir_inference::Content;
use weir_types::api::Scope;

/// Paths of function calls, which bypass the router.
const CALLS: [&str; 2] = ["/fn/{name}", "/fn/{name}/{path}"];

/// Descriptions of the API itself, for any client of the node.
pub(super) const OPEN: RouteAccess = RouteAccess { read: &[], change: &[], subject: Subject::Checked };
/// Calls of a function by its path.
pub(super) const CALL: RouteAccess =
    RouteAccess { read: &[Scope::Invoke], change: &[Scope::Invoke], subject: Subject::Checked };
/// Inferences, embeddings, and the asynchronous invocations of functions.
pub(super) const INVOKE: RouteAccess = CALL;
/// Named objects, which are the tenant's data.
pub(super) const DATA: RouteAccess =
    RouteAccess { read: &[Scope::Invoke], change: &[Scope::Invoke], subject: Subject::Tenant };
/// Models, kernel graphs, workflows, secrets and triggers.
pub(super) const MANAGE: RouteAccess =
    RouteAccess { read: &[Scope::Read], change: &[Scope::Deploy], subject: Subject::Tenant };
/// One function.
pub(super) const FUNCTION: RouteAccess = RouteAccess { subject: Subject::Function, ..MANAGE };
/// Lists, of which a limited key sees its functions.
pub(super) const LIST: RouteAccess =
    RouteAccess { read: &[Scope::Read], change: &[Scope::Read], subject: Subject::Checked };
/// Descriptions that clients of the Open Inference Protocol read before they call.
pub(super) const DESCRIBE: RouteAccess = RouteAccess {
    read: &[Scope::Invoke, Scope::Read],
    change: &[Scope::Invoke, Scope::Read],
    subject: Subject::Checked,
};
/// Loads and unloads of models by the Open Inference Protocol.
pub(super) const LOAD: RouteAccess =
    RouteAccess { read: &[Scope::Deploy], change: &[Scope::Deploy], subject: Subject::Checked };
/// The node, and the usage of the tenant.
pub(super) const REPORT: RouteAccess = RouteAccess { subject: Subject::Tenant, ..LIST };
/// API keys, and the rotation of the keys of secrets.
const KEYS: RouteAccess =
    RouteAccess { read: &[Scope::Admin], change: &[Scope::Admin], subject: Subject::Tenant };

/// Backups of all tenants' data: the handler checks that the client may read it.
const BACKUP: RouteAccess =
    RouteAccess { read: &[Scope::Admin], change: &[Scope::Admin], subject: Subject::Node };

/// Returns the path of every route that the OpenAPI document must describe: of the router, and of
/// the requests that bypass it. Routes for other nodes of a cluster, gRPC, and unimplemented routes
/// of the Open Inference Protocol are left out.
#[must_use]
pub fn documented_paths() -> Vec<String> {
    let bypassing = Monitoring::ALL.iter().map(|route| route.path()).chain(CALLS).chain(dashboard::PATHS);
    routes().into_documented_paths().into_iter().chain(bypassing.map(str::to_owned)).collect()
}

/// All routes of the router.
pub(super) fn routes() -> Routes {
    Routes::default()
        .route("/", OPEN, get(health::index))
        .route(openapi::PATH, OPEN, get(openapi::document))
        .route("/v1/status", REPORT, get(health::status))
        .route("/v1/usage", REPORT, get(usage::show))
        .route("/v1/events", REPORT, get(events::events))
        .route("/v1/placements/{request_id}", REPORT, get(placements::show))
        .route("/v1/calls", REPORT, get(calls::list))
        .route("/v1/calls/{request_id}", REPORT, get(calls::show))
        .route("/v1/backup", BACKUP, post(backup::create))
        .route("/v1/keys", KEYS, get(keys::list))
        .route("/v1/keys/{name}", KEYS, put(keys::create).get(keys::show).delete(keys::revoke))
        .route("/v1/secrets", MANAGE, get(secrets::list))
        .route("/v1/secrets/{secret}", MANAGE, put(secrets::set).get(secrets::show).delete(secrets::remove))
        .route("/v1/secret-keys/rotate", KEYS, post(secrets::rotate))
        .route("/v1/triggers", MANAGE, get(triggers::list))
        .route("/v1/triggers/{name}", MANAGE, put(triggers::put).get(triggers::show).delete(triggers::delete))
        .route("/v1/triggers/{name}/run", MANAGE, post(triggers::run))
        .route("/v1/triggers/{name}/events", INVOKE, post(triggers::events))
        .route("/v1/triggers/{name}/pause", MANAGE, post(triggers::pause))
        .route("/v1/triggers/{name}/resume", MANAGE, post(triggers::resume))
        .merge(versions::routes::<FunctionParts>("functions", FUNCTION, put(functions::deploy)))
        .merge(canary::routes(FUNCTION))
        .merge(shadow::routes(FUNCTION))
        .merge(alias::routes(FUNCTION))
        .route("/v1/functions/{name}/logs", FUNCTION, get(functions::logs))
        .merge(models::routes("models", Content::Network))
        .merge(models::routes("kernel-graphs", Content::KernelGraph))
        .route("/v1/models/{name}/versions/{version}/release", MANAGE, post(models::release))
        .route("/v1/models/{name}/profile", MANAGE, post(models::profile))
        .route("/v1/models/{name}/capacity", MANAGE, get(models::capacity))
        .merge(versions::routes::<Workflows>("workflows", MANAGE, put(workflows::deploy)))
        .route("/v1/invocations", INVOKE, get(invocations::list))
        .route("/v1/invocations/{id}", INVOKE, get(invocations::show).delete(invocations::remove))
        .route("/v1/invocations/{id}/result", INVOKE, get(invocations::result))
        .route("/v1/invocations/{id}/events", INVOKE, get(invocations::events))
        .route("/v1/invocations/{id}/cancel", INVOKE, post(invocations::cancel))
        .route("/v1/invocations/{id}/retry", INVOKE, post(invocations::retry))
        .merge(objects::routes())
        .route(embeddings::PATH, INVOKE, post(embeddings::embed))
        .merge(v2::routes())
}

/// What clients need for a method of the Open Inference Protocol over gRPC.
pub(super) fn grpc_access(method: &str) -> RouteAccess {
    match method {
        "ModelInfer" | "ModelStreamInfer" => INVOKE,
        "RepositoryModelLoad" | "RepositoryModelUnload" => LOAD,
        "RepositoryIndex" => LIST,
        "ModelReady" | "ModelMetadata" | "ModelConfig" | "ModelStatistics" => DESCRIBE,
        // Methods about the server, and unknown methods.
        _ => OPEN,
    }
}
