//! One inference from request to response, for all kinds of targets and all forms of requests.

mod pick;

use super::super::cached::{CacheRole, waited_too_long};
use super::super::error::ApiError;
use super::super::invoke::{self, call_ctx, received};
use super::super::request_id::RequestId;
use super::super::traces::CallRoute;
use super::cached::{self, Cached};
use super::read::{InferenceContent, Unresolved};
use super::regions::{self, Left};
use super::target::NamedTarget;
use crate::NodeState;
use http::HeaderMap;
use pick::pick;
use std::time::{Duration, Instant};
use weir_call::body::BodyLimit;
use weir_call::until;
use weir_cluster::ForwardGrant;
use weir_control::models::RanOn;
use weir_control::response_cache::{CachedResult, SharedResponse};
use weir_dispatch::{CallCtx, FunctionTarget, InferenceJob, RunResult, Target};
use weir_inference::{Completion, Tensor};
use weir_protocol::RequestedOutput;
use weir_telemetry::{Served, Times, Trace};
use weir_types::{ErrorCode, ModelLabels, Port, TenantId};

/// An inference whose request has not been read yet.
pub(crate) struct InferenceCall {
    ctx: CallCtx,
    /// The account of a function is closed if the call fails here.
    target: Target,
    /// Response cache, if the target has one and the caller does not bypass it.
    cached: Option<Cached>,
    /// Present if another node forwarded the call.
    left: Option<Left>,
}

/// Role of the response cache, and the time of the lookup; none if the cache was not consulted.
type Looked = Option<(CacheRole, Duration)>;

/// Size limits of a call.
pub(crate) struct CallLimits {
    pub(crate) request: BodyLimit,
    pub(crate) answer_bytes_max: u64,
    /// Name of the setting of `answer_bytes_max`.
    pub(crate) answer_limit: &'static str,
}

/// Outputs of an inference, and its request.
pub(crate) struct Answered {
    pub(crate) model_name: String,
    pub(crate) model_version: String,
    pub(crate) asked: InferenceContent,
    pub(crate) completion: Completion,
    /// Labels of the outputs that are to be classified.
    pub(crate) labels: ModelLabels,
    /// Role of the response cache; none if the cache was not consulted.
    pub(crate) verdict: Option<CacheRole>,
    /// Device that ran a direct model inference.
    pub(crate) ran_on: Option<RanOn>,
}

impl InferenceCall {
    /// Prepares a call of `target` with these headers.
    pub(crate) fn new(
        node: &NodeState,
        target: NamedTarget,
        route: CallRoute<'_>,
        grant: Option<ForwardGrant>,
        headers: &HeaderMap,
        id: &RequestId,
        arrived: Instant,
    ) -> Result<Self, ApiError> {
        if !node.takes_calls() {
            return Err(ApiError::new(ErrorCode::Unavailable, "the node is shutting down; try another"));
        }
        // The response to a forwarded call is cached by the node that forwarded it.
        let cached = if grant.is_none() { target.cached(node, headers) } else { None };
        let until = |grant: &ForwardGrant| arrived.checked_add(Duration::from_millis(grant.left_for_ms));
        let left = grant.as_ref().map(|grant| Left { until: until(grant).unwrap_or(arrived) });
        let ctx = call_ctx(node, &target, route, grant, headers, id, arrived)?;
        let target = target.into_target(node, &ctx);
        Ok(Self { ctx, target, cached, left })
    }

    /// Prepares a call of a tensor function.
    pub(super) fn function(
        node: &NodeState,
        ctx: CallCtx,
        function: FunctionTarget,
        headers: &HeaderMap,
    ) -> Self {
        let cached = match ctx.granted {
            None => NamedTarget::Function(function.deployment().clone()).cached(node, headers),
            Some(_) => None,
        };
        Self { ctx, target: Target::Function(function), cached, left: None }
    }

    pub(super) fn trace(&self) -> &Trace {
        &self.ctx.trace
    }

    /// Returns the inputs, if they are declared.
    pub(super) fn ports(&self) -> Option<Vec<Port>> {
        match &self.target {
            Target::Function(_) => None,
            Target::Model(model) => Some(model.entry.source.prepared.signature.inputs.clone()),
            Target::Workflow(workflow) => workflow.plan().ok().map(|plan| plan.signature().inputs.clone()),
        }
    }

    pub(crate) fn limits(&self, node: &NodeState) -> CallLimits {
        match &self.target {
            Target::Function(function) => CallLimits {
                request: invoke::request_limit(function.deployment()),
                answer_bytes_max: function.deployment().manifest.limits.response_body_bytes,
                answer_limit: "limits.response_body_bytes",
            },
            Target::Model(_) | Target::Workflow(_) => CallLimits {
                request: BodyLimit {
                    bytes_max: node.config.gateway.infer_body_bytes_max,
                    setting: "gateway.infer_body_bytes_max",
                },
                answer_bytes_max: node.config.gateway.infer_body_bytes_max,
                answer_limit: "gateway.infer_body_bytes_max",
            },
        }
    }

    /// Shortens the deadline to `at`.
    pub(crate) fn end_by(&mut self, at: Instant) {
        self.ctx.deadline = at.min(self.ctx.deadline);
    }

    /// Waits for `receiving`, unless the deadline passes first.
    pub(super) async fn in_time<T>(
        &self,
        node: &NodeState,
        receiving: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        if let Target::Function(function) = &self.target {
            return received(&self.ctx, function.deployment(), receiving).await;
        }
        until(self.ctx.deadline, receiving).await.unwrap_or_else(|| {
            let time_ms_max = node.config.gateway.infer_wall_ms_max;
            let text = format!(
                "the request body did not arrive within {time_ms_max} ms (gateway.infer_wall_ms_max)"
            );
            Err(ApiError::new(ErrorCode::DeadlineExceeded, text))
        })
    }

    /// The tenant that owns the target.
    pub(crate) fn tenant(&self) -> &TenantId {
        self.target.tenant()
    }

    /// Reads, runs and writes the inference, and counts it.
    pub(crate) async fn answer<T>(
        mut self,
        node: &NodeState,
        read: impl AsyncFnOnce(&Self) -> Result<Unresolved, ApiError>,
        write: impl AsyncFnOnce(Answered) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let serving = self.served(node).begin_with(self.ctx.arrived, self.ctx.objective);
        let trace = self.ctx.trace.clone();
        let answering = async {
            let tenant = self.target.tenant().clone();
            let may_name_left = self.left.is_some();
            let resolving = read(&self).await?.resolve(node, &tenant, may_name_left);
            let mut asked = self.by_deadline("the named objects were not loaded", resolving).await?;
            let batch = batch(&asked.inputs);
            let input = asked.time;
            let (ran, cached) = self.run(node, &mut asked).await?;
            let RunResult { completion, is_elsewhere, ran_on, left: _ } = ran;
            if let Some((CacheRole::Miss, look)) = cached {
                serving.missed(look);
            }
            let times = Times::from_completion(batch, &completion);
            let started = Instant::now();
            let model_name = self.target.name().to_string();
            let model_version = self.target.version().to_string();
            let verdict = cached.map(|(verdict, _)| verdict);
            if let Some(left) = self.left {
                regions::leave(node, &tenant, &completion.outputs, asked.outputs.as_deref_mut(), left);
            }
            let wanted = asked.outputs.as_deref();
            let keeping = regions::keep(node, &tenant, &completion.outputs, wanted, may_name_left);
            self.by_deadline("its outputs were not kept as objects", keeping).await?;
            let labels = self.labels(asked.outputs.as_deref());
            let answered = Answered { model_name, model_version, asked, completion, labels, verdict, ran_on };
            let answer = write(answered).await?;
            let times = Times { input, output: started.elapsed(), ..times };
            Ok((answer, cached, (!is_elsewhere).then_some(times)))
        };
        match answering.await {
            Ok((answer, Some((CacheRole::Hit(_), look)), _)) => {
                serving.hit(look);
                if let Some(account) = self.target.account() {
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
                serving.forwarded();
                if let Some(account) = self.target.account() {
                    account.forwarded();
                }
                Ok(answer)
            }
            Err(error) => {
                let error: ApiError = error;
                trace.failed(error.code);
                serving.failed(error.code);
                if let Some(account) = self.target.account() {
                    account.close(error.code);
                }
                Err(error)
            }
        }
    }

    /// Answers the inference from the cache, or runs it.
    async fn run(
        &mut self,
        node: &NodeState,
        asked: &mut InferenceContent,
    ) -> Result<(RunResult, Looked), ApiError> {
        let inputs = std::mem::take(&mut asked.inputs);
        self.ctx.deadline = asked.deadline(self.ctx.arrived, self.ctx.deadline);
        self.ctx.priority = asked.priority(self.ctx.priority);
        // A function returns all of its outputs, regardless of the request.
        let (of_model, of_function) = match self.target {
            Target::Function(_) => (None, asked.wanted()),
            Target::Model(_) | Target::Workflow(_) => (asked.wanted(), None),
        };
        let (mut ran, looked) = match self.cached.take() {
            None => (self.run_now(node, inputs, of_model).await?, None),
            Some(cached) => Box::pin(self.run_once(node, cached, inputs, of_model)).await?,
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
    ) -> Result<RunResult, ApiError> {
        let job = InferenceJob::of_client(inputs, outputs);
        Ok(node.dispatch.run(&mut self.ctx, &self.target, job).await?)
    }

    /// Runs the inference, unless an equal inference has a cached response or is about to get one.
    async fn run_once(
        &mut self,
        node: &NodeState,
        Cached { scope, wish }: Cached,
        inputs: Vec<(String, Tensor)>,
        outputs: Option<Vec<String>>,
    ) -> Result<(RunResult, Looked), ApiError> {
        let began = Instant::now();
        let deadline = self.ctx.deadline;
        let input = cached::input(node, &inputs, outputs.as_deref()).await?;
        let run = async || {
            let look = began.elapsed();
            let ran = self.run_now(node, inputs, outputs).await?;
            let keep = cached::keep(&ran.completion.outputs, scope.answer_bytes_max());
            Ok::<_, ApiError>(((ran, Some((CacheRole::Miss, look))), keep))
        };
        match scope.answer(input, wish, deadline, run).await? {
            Some(CachedResult::Ran(ran)) => Ok(ran),
            Some(CachedResult::Hit(SharedResponse::Tensors(outputs), age)) => {
                let outputs = outputs.to_vec();
                let none = Duration::ZERO;
                let completion = Completion {
                    outputs,
                    stayed: Vec::new(),
                    queue_time: none,
                    run_time: none,
                    execution: None,
                };
                Ok((RunResult::here(completion), Some((CacheRole::Hit(age), began.elapsed()))))
            }
            Some(CachedResult::Hit(SharedResponse::Http(_), _)) => {
                Err(ApiError::internal(&"a response was kept for an inference"))
            }
            None => Err(waited_too_long(
                "its time (limits.deadline_ms, gateway.infer_wall_ms_max or its own timeout)",
            )),
        }
    }

    /// Waits for `work`. If the deadline passes first, fails with the text in `not_done`.
    async fn by_deadline<T>(
        &self,
        not_done: &str,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        until(self.ctx.deadline, work).await.unwrap_or_else(|| {
            let text = format!("{not_done} in its time (limits.deadline_ms, gateway.infer_wall_ms_max)");
            Err(ApiError::new(ErrorCode::DeadlineExceeded, text))
        })
    }

    /// The labels of the target, if some output is to be classified.
    fn labels(&self, wanted: Option<&[RequestedOutput]>) -> ModelLabels {
        match &self.target {
            Target::Model(model) if wanted.into_iter().flatten().any(|output| output.classes > 0) => {
                model.entry.record.manifest.labels.clone()
            }
            Target::Model(_) | Target::Function(_) | Target::Workflow(_) => ModelLabels::default(),
        }
    }

    fn served(&self, node: &NodeState) -> Served {
        match &self.target {
            Target::Function(function) => node.dispatch.served(function.deployment()),
            Target::Model(model) => model.entry.served.clone(),
            Target::Workflow(workflow) => workflow.served.clone(),
        }
    }
}

/// Returns the number of items of an inference: the first dimension of the first input.
fn batch(tensors: &[(String, Tensor)]) -> u32 {
    tensors.iter().find_map(|(_, tensor)| tensor.shape().dimensions().first().copied()).unwrap_or(1)
}
