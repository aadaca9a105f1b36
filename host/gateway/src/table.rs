//! The routes of the gateway.

use super::health::Monitoring;
use super::routes::Routes;
use super::{
    dashboard, embeddings, events, functions, health, invocations, models, objects, openapi, placements,
    usage, v2, versions, workflows,
};
use axum::routing::{get, post, put};
use weir_control::registry::FunctionParts;
use weir_control::workflows::Workflows;
use weir_inference::Content;

/// Paths of function calls, which bypass the router.
const CALLS: [&str; 2] = ["/fn/{name}", "/fn/{name}/{path}"];

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
        .route("/", get(health::index))
        .route(openapi::PATH, get(openapi::document))
        .route("/v1/status", get(health::status))
        .route("/v1/usage", get(usage::show))
        .route("/v1/events", get(events::events))
        .route("/v1/placements/{request_id}", get(placements::show))
        .merge(versions::routes::<FunctionParts>("functions", put(functions::deploy)))
        .route("/v1/functions/{name}/logs", get(functions::logs))
        .merge(models::routes("models", Content::Network))
        .merge(models::routes("kernel-graphs", Content::KernelGraph))
        .route("/v1/models/{name}/versions/{version}/release", post(models::release))
        .route("/v1/models/{name}/profile", post(models::profile))
        .route("/v1/models/{name}/capacity", get(models::capacity))
        .merge(versions::routes::<Workflows>("workflows", put(workflows::deploy)))
        .route("/v1/invocations", get(invocations::list))
        .route("/v1/invocations/{id}", get(invocations::show).delete(invocations::remove))
        .route("/v1/invocations/{id}/result", get(invocations::result))
        .route("/v1/invocations/{id}/events", get(invocations::events))
        .route("/v1/invocations/{id}/cancel", post(invocations::cancel))
        .route("/v1/invocations/{id}/retry", post(invocations::retry))
        .merge(objects::routes())
        .route(embeddings::PATH, post(embeddings::embed))
        .merge(v2::routes())
}
