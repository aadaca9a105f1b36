//! Copies of calls for shadows.
//!
//! The node that runs a call of the active version may copy it to the shadow. A copy begins once the
//! call has ended, so it cannot delay the call, and it runs on the same node, with the lowest
//! priority. Its answer is discarded after the comparison. A copy is skipped, and counted as skipped,
//! if the limits of copies are reached, or if calls of the tenant may need the room.

mod limits;
mod outputs;

pub use limits::CopyLimits;

use super::account::Account;
use super::run::RunResult;
use super::{CallCtx, Dispatch, FunctionTarget, HttpRequest, InferenceJob, ModelTarget, Target};
use axum::body::Body;
use http::{HeaderValue, Uri};
use http_body_util::BodyExt;
use limits::CopyPermit;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use weir_call::{Fault, Objective, headers, next_invocation_id};
use weir_cluster::Granted;
use weir_control::canary::{CallEnd, ChosenCall, CopyOutcome};
use weir_control::models::{ModelChoices, ModelEntry};
use weir_control::registry::DeployedFunction;
use weir_inference::Tensor;
use weir_sandbox::instance::GuestRequestBody;
use weir_telemetry::Trace;
use weir_types::{ErrorCode, FunctionId, ModelId};

/// Copies run after all calls: 1 is the most urgent priority.
const PRIORITY: u32 = u32::MAX;

/// Bytes that are counted for a copy in addition to its body and its headers.
const COPY_BYTES: u64 = 4 << 10;

/// The call of a function that is copied once it has ended.
pub(super) struct FunctionCopy {
    dispatch: Arc<Dispatch>,
    chosen: ChosenCall,
    shadow: Arc<DeployedFunction>,
    request: CopiedRequest,
    models: Option<Arc<ModelChoices>>,
    request_id: Arc<str>,
    bytes: CopyPermit,
}

/// A request to a function.
enum CopiedRequest {
    Http(Box<HttpRequest>),
    Tensors(Vec<(String, Tensor)>),
}

/// The comparison of a copy with the call that was copied. Ends with the account of the copy.
pub(super) struct FunctionComparison {
    chosen: ChosenCall,
    active: CallEnd,
    _permits: (CopyPermit, CopyPermit, OwnedSemaphorePermit),
}

/// The inference of a model that is copied once it has ended.
pub(super) struct InferenceCopy {
    dispatch: Arc<Dispatch>,
    chosen: ChosenCall,
    shadow: Arc<ModelEntry>,
    inputs: Vec<(String, Tensor)>,
    wanted: Option<Vec<String>>,
    request_id: Arc<str>,
    time_max: Duration,
    bytes: CopyPermit,
}

/// Whether a call failed for want of room on the node, and not by the fault of its version.
fn lacked_room(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::QueueFull | ErrorCode::Unavailable | ErrorCode::NoCapacity)
}

impl Dispatch {
    /// A copy of a call of an HTTP function that runs here, if it is chosen to be copied.
    pub(super) fn copy_http(
        self: &Arc<Self>,
        call: &CallCtx,
        function: &FunctionTarget,
        (head, guest_uri): (&http::request::Parts, &Uri),
        body: Option<&GuestRequestBody>,
    ) {
        let Some(chosen) = choose(call, function) else { return };
        let body = match body {
            None => Some(GuestRequestBody::none()),
            Some(GuestRequestBody::Whole(whole)) => Some(GuestRequestBody::Whole(whole.clone())),
            Some(GuestRequestBody::WholeWithTrailers(whole, trailers)) => {
                Some(GuestRequestBody::WholeWithTrailers(whole.clone(), trailers.clone()))
            }
            Some(GuestRequestBody::Stream(_)) => None,
        };
        let Some(body) = body else { return chosen.skipped(CopyOutcome::Body) };
        let body_bytes = match &body {
            GuestRequestBody::Whole(whole) | GuestRequestBody::WholeWithTrailers(whole, _) => whole.len(),
            GuestRequestBody::Stream(_) => 0,
        };
        let head_bytes: usize =
            head.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        let bytes = (body_bytes + head_bytes) as u64;
        self.copy_function(call, function, chosen, bytes, || {
            let mut head = head.clone();
            head.extensions.clear();
            head.headers.insert(headers::SHADOW, HeaderValue::from_static("1"));
            CopiedRequest::Http(Box::new(HttpRequest { head, guest_uri: guest_uri.clone(), body }))
        });
    }

    /// A copy of a call of a tensor function that runs here, if it is chosen to be copied.
    pub(super) fn copy_tensors(
        self: &Arc<Self>,
        call: &CallCtx,
        function: &FunctionTarget,
        job: &InferenceJob,
    ) {
        if job.step.is_some() {
            return;
        }
        let Some(chosen) = choose(call, function) else { return };
        let Some(inputs) = inputs_here(job) else { return chosen.skipped(CopyOutcome::Body) };
        self.copy_function(call, function, chosen, bytes_of(&inputs), || CopiedRequest::Tensors(inputs));
    }

    fn copy_function(
        self: &Arc<Self>,
        call: &CallCtx,
        function: &FunctionTarget,
        chosen: ChosenCall,
        bytes: u64,
        request: impl FnOnce() -> CopiedRequest,
    ) {
        let FunctionId { tenant, name, .. } = &function.deployment().id;
        let entry = self.catalog.functions.get(tenant, name.as_str());
        let shadow = entry.and_then(|entry| entry.versions.get(&chosen.version()).cloned());
        let Some(shadow) = shadow else { return chosen.skipped(CopyOutcome::NoRoom) };
        if self.copies.is_too_large(bytes) {
            return chosen.skipped(CopyOutcome::Body);
        }
        let Some(bytes) = self.copies.keep(tenant, bytes.saturating_add(COPY_BYTES)) else {
            return chosen.skipped(CopyOutcome::Limit);
        };
        function.account.copy_to(FunctionCopy {
            dispatch: self.clone(),
            chosen,
            shadow,
            request: request(),
            models: call.models.clone(),
            request_id: call.request_id.clone(),
            bytes,
        });
    }

    /// A copy of a client's inference that runs here, if it is chosen to be copied.
    pub(super) fn copy_inference(
        self: &Arc<Self>,
        call: &CallCtx,
        model: &ModelTarget,
        job: &InferenceJob,
    ) -> Option<InferenceCopy> {
        let entry = &model.entry;
        if !entry.shadow.is_on() || call.depth > 0 || job.step.is_some() || model.is_measured {
            return None;
        }
        let chosen = entry.shadow.choose(entry.record.version)?;
        let ModelId { tenant, name, .. } = entry.source.id();
        let Some(inputs) = inputs_here(job).filter(|inputs| !self.copies.is_too_large(bytes_of(inputs)))
        else {
            chosen.skipped(CopyOutcome::Body);
            return None;
        };
        let Ok(shadow) = self.models.get(tenant, name, Some(chosen.version())) else {
            chosen.skipped(CopyOutcome::NoRoom);
            return None;
        };
        let Some(bytes) = self.copies.keep(tenant, bytes_of(&inputs).saturating_add(COPY_BYTES)) else {
            chosen.skipped(CopyOutcome::Limit);
            return None;
        };
        Some(InferenceCopy {
            dispatch: self.clone(),
            chosen,
            shadow,
            inputs,
            wanted: job.wanted.clone(),
            request_id: call.request_id.clone(),
            time_max: call.deadline.saturating_duration_since(call.arrived),
            bytes,
        })
    }

    /// The context of a copy: it runs here, and the scheduler is not asked.
    fn copy_ctx(&self, request_id: Arc<str>, time_max: Duration, models: Vec<ModelId>) -> CallCtx {
        let arrived = Instant::now();
        let granted = Granted { evict: Vec::new(), ..self.grant_here(models) };
        CallCtx {
            id: next_invocation_id(),
            request_id,
            objective: Objective::default(),
            trace: Trace::none(),
            arrived,
            deadline: arrived + time_max,
            priority: PRIORITY,
            depth: 0,
            inputs: Vec::new(),
            models: None,
            granted: Some(granted),
            is_websocket: false,
        }
    }
}

/// Whether the call is one of a client and chosen to be copied.
fn choose(call: &CallCtx, function: &FunctionTarget) -> Option<ChosenCall> {
    let deployment = function.deployment();
    if !deployment.shadow.is_on() || call.depth > 0 {
        return None;
    }
    deployment.shadow.choose(deployment.id.version)
}

/// The inputs, if all of them are in this node's memory.
fn inputs_here(job: &InferenceJob) -> Option<Vec<(String, Tensor)>> {
    job.inputs.iter().map(|(name, handle)| Some((name.clone(), handle.here()?.clone()))).collect()
}

fn bytes_of(tensors: &[(String, Tensor)]) -> u64 {
    tensors.iter().map(|(_, tensor)| tensor.data().len() as u64).sum()
}

impl FunctionCopy {
    /// Begins the copy of a call that has ended, unless the node lacks room.
    pub(super) fn begin(self, failed: Option<ErrorCode>, active: Option<CallEnd>) {
        let Some(active) = active else { return self.chosen.skipped(CopyOutcome::NoAnswer) };
        if failed.is_some_and(lacked_room) {
            return self.chosen.skipped(CopyOutcome::NoRoom);
        }
        let dispatch = self.dispatch.clone();
        let Some(running) = dispatch.copies.run(&self.shadow.id.tenant) else {
            return self.chosen.skipped(CopyOutcome::Limit);
        };
        let models = dispatch.catalog.granted(&self.shadow, self.models.as_deref());
        let models: Vec<ModelId> = models.into_iter().map(|demand| demand.model).collect();
        let has_room = !dispatch.placements.may_hold_back(&self.shadow.id.tenant)
            && dispatch.slots.has_spare(&self.shadow)
            && dispatch.models.has_spare_room(&models);
        let gate = has_room.then(|| self.shadow.gate.try_enter()).flatten();
        let Some(gate) = gate else { return self.chosen.skipped(CopyOutcome::NoRoom) };
        // These threads have a lower priority than those that run the calls.
        dispatch
            .clone()
            .guests
            .spawn_background(async move { self.run(active, models, (running, gate)).await });
    }

    async fn run(
        self,
        active: CallEnd,
        models: Vec<ModelId>,
        (running, gate): (CopyPermit, OwnedSemaphorePermit),
    ) {
        let Self { dispatch, chosen, shadow, request, models: choices, request_id, bytes } = self;
        let time_max = Duration::from_millis(shadow.manifest.limits.deadline_ms);
        let mut call = dispatch.copy_ctx(request_id, time_max, models);
        call.models = choices;
        let comparison = FunctionComparison { chosen, active, _permits: (running, bytes, gate) };
        let account = Account::open_copy(&call, shadow, &dispatch.metrics, comparison);
        let function = FunctionTarget { account };
        let ran = match request {
            CopiedRequest::Http(request) => match dispatch.http(call, function.clone(), *request).await {
                Ok(response) => {
                    discard(response.into_body()).await;
                    Ok(())
                }
                Err(fault) => Err(fault),
            },
            CopiedRequest::Tensors(inputs) => {
                let job = InferenceJob::of_client(inputs, None);
                dispatch.run(&mut call, &Target::Function(function.clone()), job).await.map(drop)
            }
        };
        if let Err(fault) = ran {
            function.account.close(fault.code);
        }
    }
}

/// Reads a body to its end, within the limits of the function, which apply to the guest.
async fn discard(mut body: Body) {
    while let Some(Ok(_)) = body.frame().await {}
}

impl FunctionComparison {
    /// Ends the comparison: the copy ended with `status`, or with `failed`.
    pub(super) fn ended(self, failed: Option<ErrorCode>, shadow: Option<CallEnd>) {
        let Some(shadow) = shadow else { return self.chosen.skipped(CopyOutcome::NoAnswer) };
        if failed.is_some_and(lacked_room) {
            return self.chosen.skipped(CopyOutcome::NoRoom);
        }
        self.chosen.compared(self.active, shadow, self.active.status == shadow.status);
    }
}

impl InferenceCopy {
    /// Begins the copy of an inference that has ended, unless the node lacks room.
    pub(super) fn begin(self, ran: Result<&RunResult, &Fault>) {
        let failed = ran.err().map(|fault| fault.code);
        if failed.is_some_and(lacked_room) {
            return self.chosen.skipped(CopyOutcome::NoRoom);
        }
        let run_time = ran.map_or(Duration::ZERO, |result| result.completion.run_time);
        let Some(active) = CallEnd::new(failed, http::StatusCode::OK, run_time) else {
            return self.chosen.skipped(CopyOutcome::NoAnswer);
        };
        let outputs = ran.map_or(&[][..], |result| &result.completion.outputs);
        let dispatch = self.dispatch.clone();
        let id = self.shadow.source.id().clone();
        if dispatch.copies.is_too_large(bytes_of(outputs)) {
            return self.chosen.skipped(CopyOutcome::Body);
        }
        let kept = dispatch.copies.keep(&id.tenant, bytes_of(outputs));
        let Some((kept, running)) = kept.zip(dispatch.copies.run(&id.tenant)) else {
            return self.chosen.skipped(CopyOutcome::Limit);
        };
        // The scheduler does not count copies for the limits of tenants.
        let is_limited = dispatch.placements.may_hold_back(&id.tenant);
        let models = vec![id];
        if is_limited || !dispatch.models.has_spare_room(&models) {
            return self.chosen.skipped(CopyOutcome::NoRoom);
        }
        let outputs = ran.is_ok().then(|| outputs.to_vec());
        dispatch.clone().guests.spawn_background(async move {
            let _permits = (kept, running);
            self.run(active, outputs, models).await;
        });
    }

    async fn run(self, active: CallEnd, expected: Option<Vec<(String, Tensor)>>, models: Vec<ModelId>) {
        let Self { dispatch, chosen, shadow, inputs, wanted, request_id, time_max, bytes } = self;
        let mut call = dispatch.copy_ctx(request_id, time_max, models);
        let job = InferenceJob::of_client(inputs, wanted);
        let target = Target::Model(ModelTarget::new(shadow, None));
        let ran = dispatch.run(&mut call, &target, job).await;
        let failed = ran.as_ref().err().map(|fault| fault.code);
        if failed.is_some_and(lacked_room) {
            return chosen.skipped(CopyOutcome::NoRoom);
        }
        let run_time = ran.as_ref().map_or(Duration::ZERO, |result| result.completion.run_time);
        let Some(end) = CallEnd::of_copy(failed, http::StatusCode::OK, run_time) else {
            return chosen.skipped(CopyOutcome::NoAnswer);
        };
        let is_equal = match (expected, ran) {
            (Some(expected), Ok(result)) => {
                let actual = result.completion.outputs;
                let comparing = move || outputs::are_equal(&expected, &actual);
                tokio::task::spawn_blocking(comparing).await.unwrap_or(false)
            }
            (None, Err(_)) => active.status == end.status,
            _ => false,
        };
        chosen.compared(active, end, is_equal);
        drop(bytes);
    }
}
