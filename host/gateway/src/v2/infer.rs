//! `POST /v2/models/{name}/infer`: one inference of a tensor function, model or workflow.

use super::super::Caller;
use super::super::canary::VersionChoice;
use super::super::error::ApiError;
use super::super::invocations::{self, Later};
use super::super::prefer::PreferHeader;
use super::super::request_id::RequestId;
use super::super::traces::CallRoute;
use super::answer::ResponseParts;
use super::call::{Answered, InferenceCall};
use super::encoding::Encoding;
use super::read::read;
use super::target::{At, NamedTarget};
use crate::NodeState;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::HeaderMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_cluster::ForwardGrant;
use weir_cluster::refused;
use weir_dispatch::{CallCtx, FunctionTarget};
use weir_types::api::InvocationKind;

pub(super) async fn infer(
    State(node): State<Arc<NodeState>>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    grant: Option<Extension<ForwardGrant>>,
    Path(at): Path<At>,
    mut request: Request,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let grant = grant.map(|Extension(grant)| grant);
    let target = match at.find_for_call(&node, &caller, VersionChoice::for_request(&request)).await {
        // The event of the deployment may arrive after the first call.
        Err(_) if grant.is_some() => return Ok(refused("the node does not have the requested target\n")),
        Ok(target) if grant.is_some() && target.unready(&node).is_some() => {
            return Ok(refused("the node does not know what that runs\n"));
        }
        target => target?,
    };
    if let Some(grant) = &grant
        && !node.knows_chosen(grant).await
    {
        return Ok(refused("the node does not know the versions of models that the call uses\n"));
    }
    if let Some(prefer) = PreferHeader::take(request.headers_mut())? {
        let later = later(&node, &caller, &at, &target, arrived)?;
        return invocations::accept(&node, later, prefer, request, &id).await;
    }
    let (head, body) = request.into_parts();
    let call = InferenceCall::new(&node, target, CallRoute::Infer, grant, &head.headers, &id, arrived)?;
    let trace = call.trace().clone();
    let answered = answer(&node, call, &head.headers, body).await?;
    trace.answered(answered.status());
    Ok(answered)
}

/// Prepares the request for asynchronous execution.
fn later(
    node: &NodeState,
    caller: &Caller,
    at: &At,
    target: &NamedTarget,
    arrived: Instant,
) -> Result<Later, ApiError> {
    let (body_bytes_max, time_ms_max) = match target {
        NamedTarget::Function(deployment) => {
            let limits = &deployment.manifest.limits;
            (limits.request_body_bytes, limits.deadline_ms)
        }
        NamedTarget::Model(_) | NamedTarget::Workflow(_) => {
            (node.config.gateway.infer_body_bytes_max, node.config.gateway.infer_wall_ms_max)
        }
    };
    Ok(Later {
        tenant: caller.tenant.clone(),
        kind: InvocationKind::Inference,
        name: target.name().clone(),
        // The version of an alias is the one that was chosen.
        version: at.version()?.and_then(|version| version.number()),
        chosen: target.version(),
        body_bytes_max,
        deadline: arrived + Duration::from_millis(time_ms_max),
    })
}

/// Calls a tensor function by its own path. On failure, the caller closes the account.
pub(crate) async fn function(
    node: &NodeState,
    call: CallCtx,
    function: FunctionTarget,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    answer(node, InferenceCall::function(node, call, function, headers), headers, body).await
}

async fn answer(
    node: &NodeState,
    call: InferenceCall,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let limits = call.limits(node);
    let asked = async |call: &InferenceCall| {
        let arena = node.arena.tenant(call.tenant());
        let reading = read((node, arena), headers, body, limits.request, call.ports());
        call.in_time(node, reading).await
    };
    let written = async |answered: Answered| {
        let Answered { model_name, model_version, asked, completion, labels, verdict, ran_on } = answered;
        let written = ResponseParts {
            model_name,
            model_version,
            is_binary: asked.parameters.binary_data_output,
            id: asked.id,
            outputs: completion.outputs,
            wanted: asked.outputs,
            labels,
            encoding: Encoding::wanted(headers),
            bytes_max: limits.answer_bytes_max,
            limit: limits.answer_limit,
        };
        let mut response = written.respond(node).await?;
        if let Some(verdict) = verdict {
            verdict.tell(response.headers_mut());
        }
        if let Some(ran_on) = ran_on {
            weir_dispatch::write_device(&ran_on, response.headers_mut());
        }
        Ok(response)
    };
    call.answer(node, asked, written).await
}
