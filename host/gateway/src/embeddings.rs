//! `POST /v1/embeddings`: the embeddings route of OpenAI's API.
//!
//! The `model` of the request names an HTTP function. The function is called with the unchanged
//! request and answers in the format of that API, as `functions/embed-text` does. The gateway reads
//! only the name.

use super::error::ApiError;
use super::invoke::{self, CallTarget};
use super::request_id::RequestId;
use super::versions::parse_name;
use super::{AsItWas, Caller};
use crate::NodeState;
use crate::json::read_object;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use http::Uri;
use http::header::{CONTENT_LENGTH, HeaderValue};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_call::body::{BodyLimit, receive_whole};
use weir_call::status;
use weir_call::{Fault, until};
use weir_types::{ErrorCode, FunctionKind};

/// Size limit of a request: some thousand texts.
const BODY_LIMIT: BodyLimit = BodyLimit { bytes_max: 16 << 20, setting: "no setting changes that" };
/// Path of embeddings, on the node and on the function.
pub(super) const PATH: &str = "/v1/embeddings";

#[derive(Deserialize)]
struct EmbeddingsRequest {
    model: String,
}

pub(super) async fn embed(
    State(node): State<Arc<NodeState>>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, ApiError> {
    let (mut head, body) = request.into_parts();
    let latest = Instant::now() + Duration::from_millis(node.config.gateway.infer_wall_ms_max);
    let length = invoke::content_length(&head.headers)?;
    let arena = node.arena.tenant(&caller.tenant);
    let receiving = receive_whole(body, length, &arena, BODY_LIMIT);
    let body = until(latest, receiving).await.unwrap_or_else(|| {
        let text = "the request body did not arrive in time (gateway.infer_wall_ms_max)";
        Err(Fault::new(ErrorCode::DeadlineExceeded, text))
    })?;
    let text = body.clone();
    let EmbeddingsRequest { model } = node.json(body.len(), move || read(&text)).await?;
    let name = parse_name(&model)?;
    if !caller.covers(name.as_str()) {
        return Err(invoke::unknown(name.as_str()));
    }
    let function = node.registry.get(&caller.tenant, name.as_str());
    if let Some(function) = function.as_ref().and_then(|function| function.active())
        && function.record.kind == FunctionKind::Tensor
    {
        let text = format!(
            "{name} is a tensor function: `model` names an HTTP function, which answers in this API's shape"
        );
        return Err(ApiError::new(ErrorCode::InvalidRequest, text));
    }
    let target = format!("/fn/{name}{PATH}");
    head.uri = Uri::try_from(target).map_err(|error| ApiError::internal(&error))?;
    head.headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    let request = Request::from_parts(head, Body::from(Bytes::from(body)));
    let mut response =
        invoke::invoke(&node, caller.tenant, CallTarget::parse(name.as_str()), request, &id).await?;
    response.extensions_mut().insert(AsItWas);
    Ok(response)
}

/// Returns an error in the format of OpenAI's API.
pub(super) fn error(code: ErrorCode, text: &str) -> Value {
    let kind = if status(code).is_client_error() { "invalid_request_error" } else { "server_error" };
    json!({"error": {"message": text, "type": kind, "param": null, "code": code}})
}

fn read(body: &[u8]) -> Result<EmbeddingsRequest, ApiError> {
    read_object(body).map_err(|error| {
        let text = format!("the body is no request for embeddings by a `model`, a function's name: {error}");
        ApiError::new(ErrorCode::InvalidRequest, text)
    })
}
