//! One inference from request to response, for all kinds of targets and all forms of requests.

mod pick;

use super::super::body::BodyLimit;
use super::super::cached::{Verdict, waited_too_long};
use super::super::error::ApiError;
use super::super::invoke::{self, received};
use super::super::request_id::RequestId;
use super::cached::{self, Cached};
use super::read::{Asked, Unresolved};
use super::regions::{self, Left};
use super::target::Target;
use crate::cluster::wire::Grant;
use crate::dispatch::{Account, Inference, Invocation, Job, Ran, WorkflowCall};
use crate::models::{ModelEntry, RanOn};
use crate::node::NodeState;
use crate::objective::Objective;
use crate::response_cache::{Answer, Given};
use crate::telemetry::{Served, Times};
use crate::until::until;
use crate::workflows::Workflow;
use http::HeaderMap;
use pick::pick;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_inference::{Completion, Tensor};
use weir_types::{ErrorCode, Port, TenantId};

/// An inference whose request has not been read yet.
pub(in super::super) struct Call {
    arrived: Instant,
    kind: Kind,
    /// Response cache, if the target has one and the caller does not bypass it.
    cached: Option<Cached>,
    /// Present if another node forwarded the call.
    left: Option<Left>,
}

/// Role of the response cache, and the time of the lookup; none if the cache was not consulted.
type Looked = Option<(Verdict, Duration)>;

enum Kind {
    /// A function call with its account, which is closed if the call fails here.
    Function(Box<Invocation>, Arc<Account>),
    Model(Inference),
    Workflow(WorkflowCall),
}

/// Size limits of a call.
pub(in super::super) struct CallLimits {
    pub(in super::super) request: BodyLimit,
    pub(in super::super) answer_bytes_max: u64,
    /// Name of the setting of `answer_bytes_max`.
    pub(in super::super) answer_limit: &'static str,
}

/// Outputs of an inference, and its request.
pub(in super::super) struct Answered {
    pub(in super::super) model_name: String,
    pub(in super::super) model_version: String,
    pub(in super::super) asked: Asked,
    pub(in super::super) completion: Completion,
    /// Role of the response cache; none if the cache was not consulted.
    pub(in super::super) verdict: Option<Verdict>,
    /// Device that ran a direct model inference.
    pub(in super::super) ran_on: Option<RanOn>,
}

impl Call {
    /// Prepares a call of `target` with these headers.
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
        // The response to a forwarded call is cached by the node that forwarded it.
        let cached = if grant.is_none() { target.cached(node, headers) } else { None };
        let until = |grant: &Grant| arrived.checked_add(Duration::from_millis(grant.left_for_ms));
        let left = grant.as_ref().map(|grant| Left { until: until(grant).unwrap_or(arrived) });
        let kind = match target {
            Target::Function(deployment) => {
                let invocation = invoke::invocation(node, deployment, grant, headers, id, arrived)?;
                let account = node.dispatch.account(&invocation);
                Kind::Function(Box::new(invocation), account)
            }
            Target::Model(entry) => Kind::Model(inference(node, entry, grant, headers, id, arrived)?),
            Target::Workflow(workflow) => {
                Kind::Workflow(workflow_call(node, workflow, grant, headers, id, arrived)?)
            }
        };
        Ok(Self { arrived, kind, cached, left })
    }

    /// Prepares a call of a tensor function.
    pub(super) fn function(
        node: &NodeState,
        invocation: Invocation,
        account: Arc<Account>,
        headers: &HeaderMap,
    ) -> Self {
        let cached = match invocation.granted {
            None => Target::Function(invocation.deployment.clone()).cached(node, headers),
            Some(_) => None,
        };
        let arrived = invocation.arrived;
        Self { arrived, kind: Kind::Function(Box::new(invocation), account), cached, left: None }
    }

    /// Returns the inputs, if they are declared.
    pub(super) fn ports(&self) -> Option<Vec<Port>> {
        match &self.kind {
            Kind::Function(..) => None,
            Kind::Model(inference) => Some(inference.entry.source.prepared.signature.inputs.clone()),
            Kind::Workflow(call) => call.workflow.plan().ok().map(|plan| plan.signature().inputs.clone()),
        }
    }

    pub(in super::super) fn limits(&self, node: &NodeState) -> CallLimits {
        match &self.kind {
            Kind::Function(invocation, _) => CallLimits {
                request: invoke::request_limit(invocation),
                answer_bytes_max: invocation.deployment.manifest.limits.response_body_bytes,
                answer_limit: "limits.response_body_bytes",
            },
            Kind::Model(_) | Kind::Workflow(_) => CallLimits {
                request: BodyLimit {
                    bytes_max: node.config.infer_body_bytes_max,
                    setting: "infer_body_bytes_max",
                },
                answer_bytes_max: node.config.infer_body_bytes_max,
                answer_limit: "infer_body_bytes_max",
            },
        }
    }

    /// Shortens the deadline to `at`.
    pub(in super::super) fn end_by(&mut self, at: Instant) {
        let deadline = match &mut self.kind {
            Kind::Function(invocation, _) => &mut invocation.deadline,
            Kind::Model(inference) => &mut inference.deadline,
            Kind::Workflow(call) => &mut call.deadline,
        };
        *deadline = at.min(*deadline);
    }

    /// Waits for `receiving`, unless the deadline passes first.
    pub(super) async fn in_time<T>(
        &self,
        node: &NodeState,
        receiving: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let deadline = match &self.kind {
            Kind::Function(invocation, _) => return received(invocation, receiving).await,
            Kind::Model(inference) => inference.deadline,
            Kind::Workflow(call) => call.deadline,
        };
        until(deadline, receiving).await.unwrap_or_else(|| {
            let time_ms_max = node.config.infer_time_ms_max;
            let text = format!("the request body did not arrive within {time_ms_max} ms (infer_time_ms_max)");
            Err(ApiError::new(ErrorCode::DeadlineExceeded, text))
        })
    }

    /// Reads, runs and writes the inference, and counts it.
    pub(in super::super) async fn answer<T>(
        mut self,
        node: &NodeState,
        read: impl AsyncFnOnce(&Self) -> Result<Unresolved, ApiError>,
        write: impl AsyncFnOnce(Answered) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let serving = self.served(node).begin_with(self.arrived, self.objective());
        let answering = async {
            let tenant = self.tenant().clone();
            let may_name_left = self.left.is_some();
            let resolving = read(&self).await?.resolve(node, &tenant, may_name_left);
            let mut asked = self.by_deadline("the objects that it names were not there", resolving).await?;
            let (batch, input) = (batch(&asked.inputs), asked.time);
            let (ran, cached) = self.run(node, &mut asked).await?;
            let Ran { completion, is_elsewhere, ran_on, left: _ } = ran;
            if let Some((Verdict::Miss, look)) = cached {
                serving.missed(look);
            }
            let (times, started) = (Times::of(batch, &completion), Instant::now());
            let (model_name, model_version) = self.name();
            let verdict = cached.map(|(verdict, _)| verdict);
            if let Some(left) = self.left {
                regions::leave(node, &tenant, &completion.outputs, asked.outputs.as_deref_mut(), left);
            }
            let wanted = asked.outputs.as_deref();
            let keeping = regions::keep(node, &tenant, &completion.outputs, wanted, may_name_left);
            self.by_deadline("its outputs were not kept as objects", keeping).await?;
            let answered = Answered { model_name, model_version, asked, completion, verdict, ran_on };
            let answer = write(answered).await?;
            let times = Times { input, output: started.elapsed(), ..times };
            Ok((answer, cached, (!is_elsewhere).then_some(times)))
        };
        match answering.await {
            Ok((answer, Some((Verdict::Hit(_), look)), _)) => {
                serving.hit(look);
                if let Kind::Function(_, account) = &self.kind {
                    account.hit();
                }
                Ok(answer)
            }
            Ok((answer, _, Some(times))) => {
                serving.done(times);
                Ok(answer)
            }
            // The other node counts the inference.
            Ok((answer, _, None)) => {
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

    /// Answers the inference from the cache, or runs it.
    async fn run(&mut self, node: &NodeState, asked: &mut Asked) -> Result<(Ran, Looked), ApiError> {
        let inputs = std::mem::take(&mut asked.inputs);
        let (deadline, priority) = match &mut self.kind {
            Kind::Function(invocation, _) => (&mut invocation.deadline, &mut invocation.priority),
            Kind::Model(inference) => (&mut inference.deadline, &mut inference.priority),
            Kind::Workflow(call) => (&mut call.deadline, &mut call.priority),
        };
        *deadline = asked.deadline(self.arrived, *deadline);
        *priority = asked.priority(*priority);
        let deadline = *deadline;
        // A function returns all of its outputs, regardless of the request.
        let (of_model, of_function) = match self.kind {
            Kind::Function(..) => (None, asked.wanted()),
            Kind::Model(_) | Kind::Workflow(_) => (asked.wanted(), None),
        };
        let (mut ran, looked) = match self.cached.take() {
            None => (self.run_now(node, inputs, of_model).await?, None),
            Some(cached) => Box::pin(self.run_once(node, cached, deadline, inputs, of_model)).await?,
        };
        match of_function {
            // The node that runs the workflow reports missing outputs.
            Some(wanted) if self.left.is_some() => {
                ran.completion.outputs.retain(|(name, _)| wanted.contains(name));
            }
            Some(wanted) => ran.completion.outputs = pick(ran.completion.outputs, &wanted)?,
            None => {}
        }
        Ok((ran, looked))
    }

    /// Runs the inference on the node where it is placed.
    async fn run_now(
        &mut self,
        node: &NodeState,
        inputs: Vec<(String, Tensor)>,
        outputs: Option<Vec<String>>,
    ) -> Result<Ran, ApiError> {
        let job = Job::of_client(inputs, outputs);
        Ok(match &mut self.kind {
            Kind::Function(invocation, account) => {
                node.dispatch.function_anywhere(invocation, account, job).await?
            }
            Kind::Model(inference) => node.dispatch.model_anywhere(inference, None, job).await?,
            Kind::Workflow(call) => node.dispatch.workflow_anywhere(call, job).await?,
        })
    }

    /// Runs the inference, unless an equal inference has a cached response or is about to get one.
    async fn run_once(
        &mut self,
        node: &NodeState,
        Cached { scope, wish }: Cached,
        deadline: Instant,
        inputs: Vec<(String, Tensor)>,
        outputs: Option<Vec<String>>,
    ) -> Result<(Ran, Looked), ApiError> {
        let began = Instant::now();
        let input = cached::input(node, &inputs, outputs.as_deref()).await?;
        let run = async || {
            let look = began.elapsed();
            let ran = self.run_now(node, inputs, outputs).await?;
            let keep = cached::keep(&ran.completion.outputs, scope.answer_bytes_max());
            Ok::<_, ApiError>(((ran, Some((Verdict::Miss, look))), keep))
        };
        match scope.answer(input, wish, deadline, run).await? {
            Some(Given::Ran(ran)) => Ok(ran),
            Some(Given::Hit(Answer::Tensors(outputs), age)) => {
                let (outputs, none) = (outputs.to_vec(), Duration::ZERO);
                let completion = Completion {
                    outputs,
                    stayed: Vec::new(),
                    queue_time: none,
                    run_time: none,
                    execution: None,
                };
                Ok((Ran::here(completion), Some((Verdict::Hit(age), began.elapsed()))))
            }
            Some(Given::Hit(Answer::Http(_), _)) => {
                Err(ApiError::internal(&"a response was kept for an inference"))
            }
            None => {
                Err(waited_too_long("its time (limits.deadline_ms, infer_time_ms_max or its own timeout)"))
            }
        }
    }

    /// Waits for `work`. If the deadline passes first, fails with the text in `not_done`.
    async fn by_deadline<T>(
        &self,
        not_done: &str,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let deadline = match &self.kind {
            Kind::Function(invocation, _) => invocation.deadline,
            Kind::Model(inference) => inference.deadline,
            Kind::Workflow(call) => call.deadline,
        };
        until(deadline, work).await.unwrap_or_else(|| {
            let text = format!("{not_done} in its time (limits.deadline_ms, infer_time_ms_max)");
            Err(ApiError::new(ErrorCode::DeadlineExceeded, text))
        })
    }

    fn tenant(&self) -> &TenantId {
        match &self.kind {
            Kind::Function(invocation, _) => &invocation.deployment.id.tenant,
            Kind::Model(inference) => &inference.entry.source.id().tenant,
            Kind::Workflow(call) => &call.workflow.id.tenant,
        }
    }

    fn objective(&self) -> Objective {
        match &self.kind {
            Kind::Function(invocation, _) => invocation.objective,
            Kind::Model(inference) => inference.objective,
            Kind::Workflow(call) => call.objective,
        }
    }

    fn served(&self, node: &NodeState) -> Served {
        match &self.kind {
            Kind::Function(invocation, _) => node.dispatch.served(&invocation.deployment),
            Kind::Model(inference) => inference.entry.served.clone(),
            Kind::Workflow(call) => call.workflow.served.clone(),
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
            Kind::Workflow(call) => {
                let id = &call.workflow.id;
                (id.name.to_string(), id.version.to_string())
            }
        }
    }
}

/// Prepares an inference of a model with the headers of a client's call, or of a call that another
/// node forwarded with a `grant`.
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
        objective: Grant::objective(grant.as_ref(), &entry.record.manifest),
        trace: invoke::trace(node, &model.tenant, model.name.as_str(), headers, id),
        arrived,
        deadline: arrived + Duration::from_millis(time_ms_max),
        priority: invoke::priority(headers)?,
        entry,
        inputs: Vec::new(),
        granted: grant.map(|grant| grant.granted),
    })
}

/// Prepares a call of a workflow with the headers of a client's call, or of a call that another
/// node forwarded with a `grant`.
fn workflow_call(
    node: &NodeState,
    workflow: Arc<Workflow>,
    grant: Option<Grant>,
    headers: &HeaderMap,
    id: &RequestId,
    arrived: Instant,
) -> Result<WorkflowCall, ApiError> {
    let time_ms_max = node.config.infer_time_ms_max;
    let time_ms_max = grant.as_ref().map_or(time_ms_max, |grant| grant.deadline_in_ms.min(time_ms_max));
    Ok(WorkflowCall {
        id: grant.as_ref().map_or(id.invocation, |grant| grant.invocation),
        request_id: id.shared(),
        objective: Grant::objective(grant.as_ref(), &workflow.record),
        trace: invoke::trace(node, &workflow.id.tenant, workflow.id.name.as_str(), headers, id),
        arrived,
        deadline: arrived + Duration::from_millis(time_ms_max),
        priority: invoke::priority(headers)?,
        workflow,
        inputs: Vec::new(),
        granted: grant.map(|grant| grant.granted),
    })
}

/// Returns the number of items of an inference: the first dimension of the first input.
fn batch(tensors: &[(String, Tensor)]) -> u32 {
    tensors.iter().find_map(|(_, tensor)| tensor.shape().dimensions().first().copied()).unwrap_or(1)
}
