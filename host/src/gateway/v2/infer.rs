//! `POST /v2/models/{name}/infer`: one inference, of a tensor function or of a model by itself.

use super::super::Caller;
use super::super::error::ApiError;
use super::super::invoke::{self, Turn, received};
use super::super::passing::{Passing, Tries};
use super::super::request_id::RequestId;
use super::answer::Written;
use super::encoding::Encoding;
use super::read::{Asked, read};
use super::target::{At, Target, served};
use crate::cluster::wire::Grant;
use crate::cluster::{Call, refused};
use crate::dispatch::{Account, Inference, InferenceTurn, Invocation, Ready};
use crate::instance::RequestBody;
use crate::models::ModelEntry;
use crate::node::NodeState;
use crate::telemetry::{Serving, Times};
use crate::until::until;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::{HeaderMap, Method, Uri};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_inference::{Completion, RunRequest, Tensor};
use weir_types::{ErrorCode, ModelId};

pub(super) async fn infer(
    State(node): State<Arc<NodeState>>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    grant: Option<Extension<Grant>>,
    Path(at): Path<At>,
    request: Request,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let grant = grant.map(|Extension(grant)| grant);
    let target = match at.find(&node, &caller.tenant) {
        // Its news may come after the first call.
        Err(_) if grant.is_some() => return Ok(refused("the node does not know what is asked for\n")),
        target => target?,
    };
    if !node.is_ready() {
        return Err(ApiError::new(ErrorCode::Unavailable, "the node is shutting down; try another"));
    }
    let (head, body) = request.into_parts();
    let uri = uri(&target)?;
    match target {
        Target::Function(deployment) => {
            let invocation = invoke::invocation(&node, deployment, grant, &head.headers, &id, arrived)?;
            let account = node.dispatch.account(&invocation);
            let answered = function(&node, invocation, &account, &uri, &head.headers, body).await;
            answered.inspect_err(|error| account.close(error.code))
        }
        Target::Model(entry) => {
            let inference = inference(&node, entry, grant, &head.headers, &id, arrived)?;
            let serving = inference.entry.served.begin(arrived);
            let call = Call { method: &Method::POST, uri: &uri, headers: &head.headers };
            count(serving, model(&node, inference, arrived, call, body).await)
        }
    }
}

/// Where exactly this version is asked for inferences.
fn uri(target: &Target) -> Result<Uri, ApiError> {
    let path = format!("/v2/models/{}/versions/{}/infer", target.name(), target.version());
    path.parse().map_err(|error| ApiError::internal(&error))
}

/// Call a tensor function, which is asked for at `uri`. Whoever sees it fail closes the account.
pub(in super::super) async fn function(
    node: &NodeState,
    mut invocation: Invocation,
    account: &Arc<Account>,
    uri: &Uri,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let serving = served(node, &invocation.deployment).begin(invocation.arrived);
    let bytes_max = invoke::request_bytes_max(&invocation);
    let answering = async {
        let mut asked = received(&invocation, read(node, headers, body, bytes_max, None)).await?;
        invocation.deadline = asked.deadline(invocation.arrived, invocation.deadline);
        invocation.priority = asked.priority(invocation.priority);
        let call = Call { method: &Method::POST, uri, headers };
        let mut body = Some(RequestBody::Whole(asked.body.clone()));
        let admission = match invoke::admit(node, &invocation, account, call, &mut body).await? {
            Turn::Here(admission) => admission,
            Turn::Answered(response) => return Ok((response, None)),
        };
        drop(body);
        let tensors = std::mem::take(&mut asked.inputs);
        let batch = batch(&tensors);
        let mut completion = node.dispatch.tensor(&invocation, admission, account, tensors).await?;
        if let Some(wanted) = asked.wanted() {
            completion.outputs = pick(completion.outputs, &wanted)?;
        }
        let id = &invocation.deployment.id;
        let limits = &invocation.deployment.manifest.limits;
        let limit = (limits.response_body_bytes, "limits.response_body_bytes");
        let name = (id.name.to_string(), id.version.to_string());
        respond(node, name, asked, completion, limit, batch, headers).await
    };
    count(serving, answering.await)
}

/// An inference of a model that arrived with these headers, from a client or by another node's `grant`.
pub(super) fn inference(
    node: &NodeState,
    entry: Arc<ModelEntry>,
    grant: Option<Grant>,
    headers: &HeaderMap,
    id: &RequestId,
    arrived: Instant,
) -> Result<Inference, ApiError> {
    let model = entry.source.id();
    let time_ms_max = node.config.infer_time_ms_max;
    let time_ms_max = grant.as_ref().map_or(time_ms_max, |grant| grant.deadline_in_ms.min(time_ms_max));
    Ok(Inference {
        id: grant.as_ref().map_or(id.invocation, |grant| grant.invocation),
        trace: invoke::trace(node, &model.tenant, model.name.as_str(), headers, id),
        deadline: arrived + Duration::from_millis(time_ms_max),
        priority: invoke::priority(headers)?,
        entry,
        grant,
    })
}

async fn model(
    node: &NodeState,
    mut inference: Inference,
    arrived: Instant,
    call: Call<'_>,
    body: Body,
) -> Result<(Response, Option<Times>), ApiError> {
    let (headers, bytes_max) = (call.headers, node.config.infer_body_bytes_max);
    let ports = inference.entry.source.prepared.signature.inputs.clone();
    let reading = read(node, headers, body, bytes_max, Some(ports));
    let mut asked = until(inference.deadline, reading).await.unwrap_or_else(|| {
        let time_ms_max = node.config.infer_time_ms_max;
        let text = format!("the request body did not arrive within {time_ms_max} ms (infer_time_ms_max)");
        Err(ApiError::new(ErrorCode::DeadlineExceeded, text))
    })?;
    inference.deadline = asked.deadline(arrived, inference.deadline);
    inference.priority = asked.priority(inference.priority);
    let request = RunRequest {
        inputs: std::mem::take(&mut asked.inputs),
        outputs: asked.wanted(),
        deadline: Some(inference.deadline),
        priority: inference.priority,
    };
    let batch = request.batch();
    let mut body = Some(RequestBody::Whole(asked.body.clone()));
    let ready = match ready(node, &inference, batch, call, &mut body).await? {
        Ok(ready) => ready,
        Err(response) => return Ok((response, None)),
    };
    drop(body);
    let completion = node.dispatch.infer(&inference, ready, request).await?;
    let id = inference.entry.source.id();
    let name = (id.name.to_string(), id.version.to_string());
    respond(node, name, asked, completion, (bytes_max, "infer_body_bytes_max"), batch, headers).await
}

/// Have the inference placed: the model is ready here, or another node has answered.
pub(super) async fn ready(
    node: &NodeState,
    inference: &Inference,
    batch: u32,
    call: Call<'_>,
    body: &mut Option<RequestBody>,
) -> Result<Result<Ready, Response>, ApiError> {
    let ModelId { tenant, version, .. } = inference.entry.source.id();
    let mut passing = Passing {
        node,
        call,
        id: inference.id,
        tenant,
        version: *version,
        deadline: inference.deadline,
        // A model keeps nothing from one run to the next.
        may_run_twice: true,
        tries: Tries::default(),
    };
    loop {
        match node.dispatch.ready(inference, batch).await? {
            InferenceTurn::Here(ready) => return Ok(Ok(ready)),
            InferenceTurn::There(away, placed) => {
                if let Some(response) = passing.on(&away, placed, body).await? {
                    return Ok(Err(response));
                }
            }
        }
    }
}

/// Count what has become of an inference, whose times are known if it ran here.
fn count(
    serving: Serving,
    answered: Result<(Response, Option<Times>), ApiError>,
) -> Result<Response, ApiError> {
    match answered {
        Ok((response, Some(times))) => {
            serving.done(times);
            Ok(response)
        }
        Ok((response, None)) => {
            serving.passed_on();
            Ok(response)
        }
        Err(error) => {
            serving.failed(error.code);
            Err(error)
        }
    }
}

/// Write the answer, and say where the time went.
async fn respond(
    node: &NodeState,
    (model_name, model_version): (String, String),
    asked: Asked,
    completion: Completion,
    (bytes_max, limit): (u64, &'static str),
    batch: u32,
    headers: &HeaderMap,
) -> Result<(Response, Option<Times>), ApiError> {
    let started = Instant::now();
    let written = Written {
        model_name,
        model_version,
        is_binary: asked.parameters.binary_data_output,
        id: asked.id,
        outputs: completion.outputs,
        wanted: asked.outputs,
        encoding: Encoding::wanted(headers),
        bytes_max,
        limit,
    };
    let response = written.respond(node).await?;
    let times = Times {
        batch,
        queue: completion.queue_time,
        input: asked.time,
        infer: completion.run_time,
        output: started.elapsed(),
    };
    Ok((response, Some(times)))
}

/// Of the outputs of a function, which gives all it has, those that are wanted.
fn pick(mut outputs: Vec<(String, Tensor)>, wanted: &[String]) -> Result<Vec<(String, Tensor)>, ApiError> {
    let take = |name: &String| {
        let place = outputs.iter().position(|(given, _)| given == name);
        place.map(|place| outputs.swap_remove(place)).ok_or_else(|| {
            let text = format!("the function gave no output {name:?}");
            ApiError::new(ErrorCode::InvalidRequest, text)
        })
    };
    wanted.iter().map(take).collect()
}

fn batch(tensors: &[(String, Tensor)]) -> u32 {
    tensors.iter().find_map(|(_, tensor)| tensor.shape().dimensions().first().copied()).unwrap_or(1)
}
