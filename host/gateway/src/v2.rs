//! `/v2`: the Open Inference Protocol, version 2, for models, tensor functions and workflows.
//!
//! A tensor function is called like a model of its name. If a function and a model share a name,
//! the function answers. The function may run the model. Models and functions of other tenants are
//! not found. See `docs/reference/protocols.md` for the guarantees to clients.

mod answer;
mod cached;
mod call;
mod encoding;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod infer;
mod metadata;
mod read;
mod regions;
mod repository;
mod stats;
mod target;

pub(super) use answer::classify;
pub(super) use call::{Answered, CallLimits, InferenceCall};
pub(super) use infer::function;
pub(super) use metadata::{Group, instances, label_filename, platform};
pub(super) use read::{InferenceContent, Unresolved};
pub(super) use regions::RequestInput;
pub(super) use repository::{RepositoryEntry, bring_in as load, entries as index, give_back as unload};
pub(super) use target::{At, NamedTarget};

use super::error::ApiError;
use super::routes::Routes;
use super::table::{DESCRIBE, INVOKE, LIST, LOAD, OPEN};
use crate::NodeState;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use serde_json::json;
use weir_types::ErrorCode;

/// Server name in the metadata.
pub(super) const SERVER: &str = "weir";
/// Supported extensions of the protocol.
pub(super) const EXTENSIONS: [&str; 7] = [
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
];

/// Returns all routes below `/v2` except health checks, which the gateway answers first.
pub(super) fn routes() -> Routes {
    let mut routes = Routes::default()
        .route("/v2", OPEN, get(metadata::server))
        .route("/v2/", OPEN, get(metadata::server))
        .route("/v2/models/stats", LIST, get(stats::all))
        .route("/v2/repository/index", LIST, post(repository::index))
        .route("/v2/repository/models/{name}/load", LOAD, post(repository::load))
        .route("/v2/repository/models/{name}/unload", LOAD, post(repository::unload));
    for model in ["/v2/models/{name}", "/v2/models/{name}/versions/{version}"] {
        routes = routes
            .route(model, DESCRIBE, get(metadata::model))
            .route(&format!("{model}/ready"), DESCRIBE, get(metadata::ready))
            .route(&format!("{model}/config"), DESCRIBE, get(metadata::config))
            .route(&format!("{model}/stats"), DESCRIBE, get(stats::one))
            .route(&format!("{model}/infer"), INVOKE, post(infer::infer))
            .undocumented_route(&format!("{model}/generate"), any(unsupported))
            .undocumented_route(&format!("{model}/generate_stream"), any(unsupported))
            .undocumented_route(&format!("{model}/trace/setting"), any(unsupported));
    }
    for path in ["/v2/logging", "/v2/trace/setting"] {
        routes = routes.undocumented_route(path, any(unsupported));
    }
    for kind in ["system", "cuda"] {
        routes = routes.undocumented_route(&format!("/v2/{kind}sharedmemory/{{*rest}}"), any(unsupported));
    }
    routes
}

/// `GET /v2/health/live`.
pub(super) fn live() -> Response {
    axum::Json(json!({"live": true})).into_response()
}

/// `GET /v2/health/ready`.
pub(super) fn ready(node: &NodeState) -> Response {
    match node.why_unready() {
        None => axum::Json(json!({"ready": true})).into_response(),
        Some(why) => ApiError::new(ErrorCode::Unavailable, why).into_response(),
    }
}

/// Rejects features of Triton that Weir does not support.
async fn unsupported(request: Request) -> ApiError {
    not_supported(request.uri().path())
}

/// Returns the error for a route or method of Triton that Weir does not support.
pub(super) fn not_supported(what: &str) -> ApiError {
    let text =
        format!("{what} is not supported here; docs/reference/protocols.md lists the supported features");
    ApiError::new(ErrorCode::NotSupported, text)
}
