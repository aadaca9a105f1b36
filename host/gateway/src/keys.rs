//! `/v1/keys`: API keys of a tenant.

use super::body::small;
use super::error::ApiError;
use super::permission::Caller;
use super::versions::parse_name;
use crate::json::read_object;
use crate::state::NodeExtractor;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use http::StatusCode;
use weir_types::ErrorCode;
use weir_types::api::{ApiKey, CreatedApiKey, NewApiKey};

/// Size limit of the JSON body of a new key.
const NEW_KEY_BYTES_MAX: usize = 64 << 10;

/// `GET /v1/keys`, sorted by name.
pub(super) async fn list(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
) -> Json<Vec<ApiKey>> {
    Json(node.access.keys().list(&caller.tenant))
}

/// `GET /v1/keys/{name}`.
pub(super) async fn show(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<ApiKey>, ApiError> {
    Ok(Json(node.access.keys().show(&caller.tenant, &parse_name(&name)?)?))
}

/// `PUT /v1/keys/{name}`: creates a key. The answer has its token, which is shown only once.
pub(super) async fn create(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Body,
) -> Result<(StatusCode, Json<CreatedApiKey>), ApiError> {
    let name = parse_name(&name)?;
    let body = small(body, NEW_KEY_BYTES_MAX).await?;
    let new: NewApiKey = read_object(&body).map_err(|error| {
        let text = format!(
            "the body is {{\"scopes\": [\"invoke\", ...], \"functions\": [NAME, ...], \"ttl_ms\": N}}: {error}"
        );
        ApiError::new(ErrorCode::InvalidRequest, text)
    })?;
    if !node.access.needs_tokens() {
        let text = "this node has no token file, so it serves every client without a key; start it with --token-file first";
        return Err(ApiError::new(ErrorCode::Conflict, text));
    }
    let created = node.access.keys().create(&caller.tenant, &name, new).await?;
    tracing::info!(tenant = %caller.tenant, %name, scopes = ?created.key.scopes, "created an API key");
    Ok((StatusCode::CREATED, Json(created)))
}

/// `DELETE /v1/keys/{name}`.
pub(super) async fn revoke(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    let name = parse_name(&name)?;
    node.access.keys().revoke(&caller.tenant, &name).await?;
    tracing::info!(tenant = %caller.tenant, %name, "revoked an API key");
    Ok(StatusCode::NO_CONTENT)
}
