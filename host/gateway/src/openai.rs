//! OpenAI's list of models, for OpenAI's own clients: they ask `/v1/models`, which otherwise answers
//! in Weir's format. Their models are the HTTP functions that `/v1/embeddings` can call.

use super::error::ApiError;
use super::{Caller, NodeState};
use axum::Json;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use serde::Serialize;
use std::sync::Arc;
use weir_control::registry::{FunctionEntry, Noun, RegistryError};
use weir_types::{FunctionKind, Name};

/// Header that OpenAI's clients send in every language, with the name of the language.
const CLIENT_HEADER: &str = "x-stainless-lang";

/// A function, as OpenAI describes a model.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct OpenAiModel {
    id: String,
    object: &'static str,
    /// Unix seconds.
    created: u64,
    owned_by: String,
}

#[derive(Debug, Serialize)]
struct OpenAiModels {
    object: &'static str,
    data: Vec<OpenAiModel>,
}

/// Whether OpenAI's client has sent a request.
pub(super) fn is_client(headers: &HeaderMap) -> bool {
    headers.contains_key(CLIENT_HEADER)
}

/// The functions of the caller.
pub(super) fn list(node: &NodeState, caller: &Caller) -> Response {
    let functions = node.registry.list(&caller.tenant);
    let data = functions.iter().filter_map(describe).collect();
    Json(OpenAiModels { object: "list", data }).into_response()
}

/// One function of the caller.
pub(super) fn show(node: &NodeState, caller: &Caller, name: &Name) -> Result<Response, ApiError> {
    let found = node.registry.get(&caller.tenant, name.as_str());
    let described = found
        .as_ref()
        .and_then(describe)
        .ok_or_else(|| ApiError::from(RegistryError::NotThere(Noun::Function, name.clone())))?;
    Ok(Json(described).into_response())
}

fn describe(entry: &Arc<FunctionEntry>) -> Option<OpenAiModel> {
    let active = entry.active().filter(|active| active.record.kind != FunctionKind::Tensor)?;
    Some(OpenAiModel {
        id: active.id.name.to_string(),
        object: "model",
        created: active.record.deployed_at_ms / 1_000,
        owned_by: active.id.tenant.to_string(),
    })
}
