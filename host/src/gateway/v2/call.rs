//! One inference from its request to its answer, of whichever kind it is and in whatever form it came.

use super::super::error::ApiError;
use super::super::invoke::{self, received};
use super::super::passing::Passed;
use super::super::request_id::RequestId;
use super::read::Asked;
use super::remote::Remote;
use super::target::{Target, served};
use crate::cluster::wire::Grant;
use crate::dispatch::{Account, Admitted, Inference, InferenceTurn, Invocation};
use crate::models::ModelEntry;
use crate::node::NodeState;
use crate::telemetry::{Served, Times};
use crate::until::until;
use http::HeaderMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_inference::{Completion, RunRequest, Tensor};
use weir_types::{ErrorCode, FunctionId, ModelId, Port};

/// What is asked, before it has been read.
pub(in super::super) struct Call {
    arrived: Instant,
    kind: Kind,
}

enum Kind {
    /// With its account, which is closed where the call fails here.
    Function(Box<Invocation>, Arc<Account>),
    Model(Inference),
}

/// How much may come and go.
pub(in super::super) struct CallLimits {
    pub(in super::super) request_bytes_max: u64,
    pub(in super::super) answer_bytes_max: u64,
    /// The name of the latter.
    pub(in super::super) answer_limit: &'static str,
}

/// The outputs, and what they were asked with.
pub(in super::super) struct Answered {
    pub(in super::super) model_name: String,
    pub(in super::super) model_version: String,
    pub(in super::super) asked: Asked,
    pub(in super::super) completion: Completion,
}

impl Call {
    /// A call of `target` that arrived with these headers.
    pub(in super::super) fn of(
        node: &NodeState,
        target: Target,
        grant: Option<Grant>,
        headers: &HeaderMap,
        id: &RequestId,
        arrived: Instant,
    ) -> Result<Self, ApiError> {
        if !node.is_ready() {
            return Err(ApiError::new(ErrorCode::Unavailable, "the node is shutting down; try another"));
        }
        let kind = match target {
            Target::Function(deployment) => {
                let invocation = invoke::invocation(node, deployment, grant, headers, id, arrived)?;
                let account = node.dispatch.account(&invocation);
                Kind::Function(Box::new(invocation), account)
            }
            Target::Model(entry) => Kind::Model(inference(node, entry, grant, headers, id, arrived)?),
        };
        Ok(Self { arrived, kind })
    }

    /// A call of a tensor function.
    pub(super) fn function(invocation: Invocation, account: Arc<Account>) -> Self {
        Self { arrived: invocation.arrived, kind: Kind::Function(Box::new(invocation), account) }
    }

    /// The inputs, where it is known what they are.
    pub(super) fn ports(&self) -> Option<Vec<Port>> {
        match &self.kind {
            Kind::Function(..) => None,
            Kind::Model(inference) => Some(inference.entry.source.prepared.signature.inputs.clone()),
        }
    }

    pub(in super::super) fn limits(&self, node: &NodeState) -> CallLimits {
        match &self.kind {
            Kind::Function(invocation, _) => CallLimits {
                request_bytes_max: invoke::request_bytes_max(invocation),
                answer_bytes_max: invocation.deployment.manifest.limits.response_body_bytes,
                answer_limit: "limits.response_body_bytes",
            },
            Kind::Model(_) => CallLimits {
                request_bytes_max: node.config.infer_body_bytes_max,
                answer_bytes_max: node.config.infer_body_bytes_max,
                answer_limit: "infer_body_bytes_max",
            },
        }
    }

    /// Bring the deadline closer.
    pub(in super::super) fn end_by(&mut self, at: Instant) {
        let deadline = match &mut self.kind {
            Kind::Function(invocation, _) => &mut invocation.deadline,
            Kind::Model(inference) => &mut inference.deadline,
        };
        *deadline = at.min(*deadline);
    }

    /// What is received, unless the deadline passes first.
    pub(super) async fn in_time<T>(
        &self,
        node: &NodeState,
        receiving: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let inference = match &self.kind {
            Kind::Function(invocation, _) => return received(invocation, receiving).await,
            Kind::Model(inference) => inference,
        };
        until(inference.deadline, receiving).await.unwrap_or_else(|| {
            let time_ms_max = node.config.infer_time_ms_max;
            let text = format!("the request body did not arrive within {time_ms_max} ms (infer_time_ms_max)");
            Err(ApiError::new(ErrorCode::DeadlineExceeded, text))
        })
    }

    /// Have it `read`, run and `written`, and count it.
    pub(in super::super) async fn answer<T>(
        mut self,
        node: &NodeState,
        read: impl AsyncFnOnce(&Self) -> Result<Asked, ApiError>,
        write: impl AsyncFnOnce(Answered) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let serving = self.served(node).begin(self.arrived);
        let answering = async {
            let mut asked = read(&self).await?;
            let (batch, input) = (batch(&asked.inputs), asked.time);
            let Ran { completion, is_elsewhere } = self.run(node, &mut asked).await?;
            let (times, started) = (Times::of(batch, &completion), Instant::now());
            let (model_name, model_version) = self.name();
            let answer = write(Answered { model_name, model_version, asked, completion }).await?;
            let times = Times { input, output: started.elapsed(), ..times };
            Ok((answer, (!is_elsewhere).then_some(times)))
        };
        match answering.await {
            Ok((answer, Some(times))) => {
                serving.done(times);
                Ok(answer)
            }
            // The other node counts it.
            Ok((answer, None)) => {
                serving.passed_on();
                if let Kind::Function(_, account) = &self.kind {
                    account.pass_on();
                }
                Ok(answer)
            }
            Err(error) => {
                let error: ApiError = error;
                serving.failed(error.code);
                if let Kind::Function(_, account) = &self.kind {
                    account.close(error.code);
                }
                Err(error)
            }
        }
    }

    /// Have it run on the node that it is placed on.
    async fn run(&mut self, node: &NodeState, asked: &mut Asked) -> Result<Ran, ApiError> {
        let inputs = std::mem::take(&mut asked.inputs);
        match &mut self.kind {
            Kind::Function(invocation, account) => {
                invocation.deadline = asked.deadline(self.arrived, invocation.deadline);
                invocation.priority = asked.priority(invocation.priority);
                let ran = function(node, invocation, account, inputs).await?;
                match asked.wanted() {
                    None => Ok(ran),
                    Some(wanted) => ran.pick(&wanted),
                }
            }
            Kind::Model(inference) => {
                inference.deadline = asked.deadline(self.arrived, inference.deadline);
                inference.priority = asked.priority(inference.priority);
                let (deadline, priority) = (Some(inference.deadline), inference.priority);
                let request = RunRequest { inputs, outputs: asked.wanted(), deadline, priority };
                model(node, inference, request).await
            }
        }
    }

    fn served(&self, node: &NodeState) -> Served {
        match &self.kind {
            Kind::Function(invocation, _) => served(node, &invocation.deployment),
            Kind::Model(inference) => inference.entry.served.clone(),
        }
    }

    fn name(&self) -> (String, String) {
        match &self.kind {
            Kind::Function(invocation, _) => {
                let id = &invocation.deployment.id;
                (id.name.to_string(), id.version.to_string())
            }
            Kind::Model(inference) => {
                let id = inference.entry.source.id();
                (id.name.to_string(), id.version.to_string())
            }
        }
    }
}

/// What has become of an inference.
struct Ran {
    completion: Completion,
    is_elsewhere: bool,
}

impl Ran {
    fn here(completion: Completion) -> Self {
        Self { completion, is_elsewhere: false }
    }

    fn elsewhere(completion: Completion) -> Self {
        Self { completion, is_elsewhere: true }
    }

    fn pick(mut self, wanted: &[String]) -> Result<Self, ApiError> {
        self.completion.outputs = pick(self.completion.outputs, wanted)?;
        Ok(self)
    }
}

async fn function(
    node: &NodeState,
    invocation: &mut Invocation,
    account: &Arc<Account>,
    inputs: Vec<(String, Tensor)>,
) -> Result<Ran, ApiError> {
    let deployment = invocation.deployment.clone();
    let FunctionId { tenant, name, version } = &deployment.id;
    let limits = &deployment.manifest.limits;
    let mut remote = None;
    loop {
        match node.dispatch.admit(invocation).await? {
            Admitted::Here(admission) => {
                return Ok(Ran::here(node.dispatch.tensor(invocation, admission, account, inputs).await?));
            }
            Admitted::There(away, held) => {
                let remote = match &mut remote {
                    Some(remote) => remote,
                    none => none.insert(Remote::new(
                        node,
                        (tenant, name, *version),
                        (invocation.id, invocation.deadline, invocation.priority),
                        (&inputs, None),
                        (deployment.manifest.idempotent, limits.response_body_bytes),
                    )?),
                };
                match remote.run(&away, held).await? {
                    Passed::Answered(completion) => return Ok(Ran::elsewhere(completion)),
                    Passed::Here(granted) => invocation.granted = Some(granted),
                    Passed::Again => {}
                }
            }
        }
    }
}

async fn model(node: &NodeState, inference: &mut Inference, request: RunRequest) -> Result<Ran, ApiError> {
    let entry = inference.entry.clone();
    let ModelId { tenant, name, version } = entry.source.id();
    let mut remote = None;
    loop {
        match node.dispatch.ready(inference, request.batch()).await? {
            InferenceTurn::Here(ready) => {
                return Ok(Ran::here(node.dispatch.infer(inference, ready, request).await?));
            }
            InferenceTurn::There(away, placed) => {
                let remote = match &mut remote {
                    Some(remote) => remote,
                    none => none.insert(Remote::new(
                        node,
                        (tenant, name, *version),
                        (inference.id, inference.deadline, inference.priority),
                        (&request.inputs, request.outputs.as_deref()),
                        // A model keeps nothing from one run to the next.
                        (true, node.config.infer_body_bytes_max),
                    )?),
                };
                match remote.run(&away, placed).await? {
                    Passed::Answered(completion) => return Ok(Ran::elsewhere(completion)),
                    Passed::Here(granted) => inference.granted = Some(granted),
                    Passed::Again => {}
                }
            }
        }
    }
}

/// An inference of a model that arrived with these headers, from a client or by another node's `grant`.
pub(in super::super) fn inference(
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
        granted: grant.map(|grant| grant.granted),
    })
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
