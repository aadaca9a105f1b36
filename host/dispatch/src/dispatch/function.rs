//! Calls of functions on this node.
//!
//! A function call that is placed here acquires an instance slot and the loaded component, and runs
//! in a sandbox. The guest starts on the gateway thread that received the request, because most
//! guests end before another thread could wake up. A guest that computes for longer than one time
//! slice moves to the guest threads, so that gateway threads stay free.

use super::access::FunctionAccess;
use super::account::GaugeGuard;
use super::admission::{Admission, ForwardPermits};
use super::forwarder::ForwardRequest;
use super::outgoing::{Outgoing, WebSocketTerms};
use super::resendable::ResendableBody;
use super::slice::{First, Slice};
use super::slots::InstanceSlot;
use super::{Account, CallCtx, Dispatch, FunctionTarget, InstanceSlots, Target};
use axum::response::Response;
use http::Uri;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use weir_call::{Fault, until};
use weir_cluster::{ForwardedCall, LocalPlacement, Placement};
use weir_control::registry::{DeployedFunction, FunctionRecord};
use weir_control::secrets::SecretError;
use weir_inference::{Completion, Execution, Tensor};
use weir_outbound::TenantConnector;
use weir_sandbox::TenantImages;
use weir_sandbox::component::ComponentLoadError;
use weir_sandbox::hostcalls::InferenceCtx;
use weir_sandbox::instance::{
    AnswerReceiver, DeadlineExtension, GuestCall, GuestRequestBody, InvocationCtx, InvocationReport,
    LinkedComponent, OutputSink, RequestCell, ResponseSender, Sandbox,
};
use weir_telemetry::{ColdStart, FunctionColdStart, Phase};
use weir_types::{ErrorCode, FunctionKind};

/// A request to an HTTP function.
pub struct HttpRequest {
    /// The head as received, for the node that runs the call.
    pub head: http::request::Parts,
    /// The request target as the function sees it.
    pub guest_uri: Uri,
    /// The body, received whole or as a stream.
    pub body: GuestRequestBody,
}

/// A function call with all resources that it needs to run on this node.
pub(super) struct ReadyFunction {
    entry: Arc<LinkedComponent>,
    permits: ExecutionPermits,
    placement: LocalPlacement,
    /// The time from arrival in the queue until all resources were acquired.
    queue_time: Duration,
}

/// The permits that a function call holds while it runs here.
struct ExecutionPermits {
    forward: ForwardPermits,
    slot: InstanceSlot,
}

impl Dispatch {
    /// Calls an HTTP function, on the node that the call is placed on.
    pub async fn http(
        self: &Arc<Self>,
        mut call: CallCtx,
        function: FunctionTarget,
        request: HttpRequest,
    ) -> Result<Response, Fault> {
        let HttpRequest { mut head, guest_uri, body } = request;
        let mut body = Some(body);
        let resendable = if call.is_websocket { ResendableBody::share(&mut body) } else { None };
        let forwarded =
            ForwardedCall { method: &head.method, uri: &head.uri, headers: &head.headers, span: None };
        let forwarded = ForwardRequest::Http { call: forwarded, body: &mut body, resendable };
        let target = Target::Function(function.clone());
        let admission = match self.route(&mut call, &target, 1, forwarded).await? {
            Placement::Local(admission) => admission,
            Placement::Remote(response) => {
                function.account.forwarded();
                return Ok(response);
            }
        };
        self.copy_http(&call, &function, (&head, &guest_uri), body.as_ref());
        let ready = self.ready_function(&call, &function, admission).await?;
        head.uri = guest_uri;
        let request = http::Request::from_parts(head, ());
        self.run_http(&call, &function, ready, request, body.unwrap_or_else(GuestRequestBody::none)).await
    }

    async fn run_http(
        self: &Arc<Self>,
        call: &CallCtx,
        function: &FunctionTarget,
        ReadyFunction { entry, mut permits, placement, .. }: ReadyFunction,
        head: http::Request<()>,
        body: GuestRequestBody,
    ) -> Result<Response, Fault> {
        let FunctionTarget { account } = function;
        let deployment = function.deployment();
        let is_bodiless = head.method() == http::Method::HEAD;
        let cell = RequestCell::new(body);
        let (answer, receiver) = ResponseSender::channel();
        let mut request = Box::new(head.map(|()| cell.stream()));
        let mut sandbox = self.sandbox(call, function, placement, entry, cell.clone(), &mut permits.slot);
        // A function that does not accept the WebSocket has the time of an ordinary call.
        let websocket = call.is_websocket.then(|| {
            let limit_ms = deployment.manifest.limits.deadline_ms;
            sandbox.deadline = super::deadline(call.arrived, limit_ms).min(call.deadline).into();
            let time = DeadlineExtension::new(call.deadline.into());
            sandbox.extension = Some(time.clone());
            WebSocketTerms { time, close_time: self.websocket_close_time }
        });
        sandbox.guest_span.inject(request.headers_mut());
        let guest_call = GuestCall::Http { request, cell: cell.clone(), answer };
        let log = sandbox.ctx.sink.clone();
        // Boxed first, so that the enclosing futures stay small, cheap to move and cache-friendly.
        let run = Box::pin(finish(sandbox, guest_call, permits, self.slots.clone(), account.clone()));
        let outgoing = Outgoing {
            guests: &self.guests,
            account,
            log,
            bytes_max: deployment.manifest.limits.response_body_bytes,
            rest_time: None,
            websocket,
            is_bodiless,
        };
        let response = self.drive(deployment, run, receiver, outgoing).await;
        // A guest that fails because the request body was cut off is not at fault.
        response.map_err(|fault| cell.body_fault().unwrap_or(fault))
    }

    /// Calls a tensor function on this node.
    pub(super) async fn tensor(
        self: &Arc<Self>,
        call: &CallCtx,
        function: &FunctionTarget,
        ReadyFunction { entry, mut permits, placement, queue_time }: ReadyFunction,
        inputs: Vec<(String, Tensor)>,
    ) -> Result<Completion, Fault> {
        let sandbox =
            self.sandbox(call, function, placement, entry, RequestCell::default(), &mut permits.slot);
        let (answer, receiver) = oneshot::channel();
        let execution = Some(Execution::alone(&inputs));
        let guest_call = GuestCall::Tensor { inputs, answer };
        let account = function.account.clone();
        let run = Box::pin(finish(sandbox, guest_call, permits, self.slots.clone(), account));
        // Tensor functions compute, so they start on a guest thread.
        let started = Instant::now();
        let turn = self.guests.turn(&function.account);
        let report = self.guests.run(run, turn).await.map_err(|error| interrupted(&error));
        let fault = report.map_or_else(Some, |report| report.fault);
        match (fault, receiver.await) {
            (None, Ok(outputs)) => Ok(Completion {
                outputs,
                stayed: Vec::new(),
                queue_time,
                run_time: started.elapsed(),
                execution,
            }),
            (fault, _) => Err(fault
                .unwrap_or_else(|| Fault::new(ErrorCode::NoResponse, "the function returned no outputs"))),
        }
    }

    /// Acquires, until the deadline, the other resources of an admitted call: an instance
    /// slot and the loaded component.
    pub(super) async fn ready_function(
        &self,
        call: &CallCtx,
        function: &FunctionTarget,
        Admission { placement, permits, queueing, .. }: Admission,
    ) -> Result<ReadyFunction, Fault> {
        let ready = until(call.deadline, async {
            let queued = queueing.since;
            // A copy for a shadow takes only what calls do not wait for.
            let may_wait = !function.account.is_copy();
            let slot = self.take_slot(call, function, may_wait).await?;
            queueing.end(&self.metrics);
            let permits = ExecutionPermits { forward: permits, slot };
            let entry = self.load(call, function).await?;
            Ok(ReadyFunction { entry, permits, placement, queue_time: queued.elapsed() })
        });
        ready.await.unwrap_or_else(|| Err(self.start_timeout(function)))
    }

    /// Admits a call nested in one that was placed here. A function call within another function
    /// does not wait for an instance slot: all slots may be taken by callers that wait in the same
    /// way, which would be a deadlock.
    pub(super) async fn ready_nested(
        &self,
        call: &CallCtx,
        function: &FunctionTarget,
        placement: LocalPlacement,
    ) -> Result<ReadyFunction, Fault> {
        let ready = until(call.deadline, async {
            let queued = Instant::now();
            let _waiting = GaugeGuard::new(&self.metrics.calls.queued);
            let gate = function.deployment().gate.enter().await?;
            let may_wait = call.depth <= 1;
            let slot = self.take_slot(call, function, may_wait).await?;
            let forward = ForwardPermits { _gate: Some(gate), placement: None };
            let permits = ExecutionPermits { forward, slot };
            let entry = self.load(call, function).await?;
            Ok(ReadyFunction { entry, permits, placement, queue_time: queued.elapsed() })
        });
        ready.await.unwrap_or_else(|| Err(self.start_timeout(function)))
    }

    /// The fault of an admitted call whose deadline passed before it could start.
    fn start_timeout(&self, function: &FunctionTarget) -> Fault {
        let fault = function.start_timeout();
        match self.slots.share_used_up(&function.deployment().id.tenant) {
            Some(why) => Fault { text: format!("{}: {why}", fault.text), ..fault },
            None => fault,
        }
    }

    /// Takes an instance slot, with the secrets of the function: of its idle instance, or decrypted
    /// for a new one.
    async fn take_slot(
        &self,
        call: &CallCtx,
        function: &FunctionTarget,
        may_wait: bool,
    ) -> Result<InstanceSlot, Fault> {
        let deployment = function.deployment();
        let DeployedFunction { id, manifest, log, .. } = &**deployment;
        let granted = self.secrets.granted(&id.tenant, &manifest.secrets).await;
        let unusable = |error: SecretError| {
            let code = match error.code() {
                ErrorCode::SecretNotFound => ErrorCode::SecretUnavailable,
                code => code,
            };
            let sink = OutputSink::new(log.clone(), id.version, call.request_id.clone(), 0);
            sink.note(format!("{code}: {error}"));
            // Callers of the function must not learn the names of its secrets.
            let text = "the function gets a secret that is missing, or that this node cannot decrypt; the function's log has the reason";
            Fault { detail: Some(error.to_string()), ..Fault::new(code, text) }
        };
        let mut slot = self.slots.take(deployment, granted.map_err(unusable)?, may_wait).await?;
        if slot.idle.is_none() {
            slot.env = self.secrets.open_granted(&slot.secrets).map_err(unusable)?;
        }
        Ok(slot)
    }

    /// The loaded component. Loads it from its artefact if needed, and recompiles it first if this
    /// node cannot use the artefact.
    async fn load(&self, call: &CallCtx, function: &FunctionTarget) -> Result<Arc<LinkedComponent>, Fault> {
        let FunctionRecord { digest, kind, .. } = function.deployment().record;
        if let Some(entry) = self.components.loaded(digest) {
            return Ok(entry);
        }
        let metrics = &function.deployment().metrics;
        if let Ok(entry) = call.trace.during(Phase::Fetch, self.fetch(digest, kind)).await {
            metrics.cold_start(FunctionColdStart::Component);
            return Ok(entry);
        }
        metrics.cold_start(FunctionColdStart::Compile);
        let compiled = call.trace.during(Phase::Compile, self.recompiler.compile(digest, kind));
        compiled.await.map_err(|error| {
            let text = format!("recompiling the function failed; deploy it again: {error}");
            // The caller is not at fault, even if the component is invalid.
            let is_nodes = matches!(error.code, ErrorCode::ComponentDamaged | ErrorCode::DiskFull);
            Fault::new(if is_nodes { error.code } else { ErrorCode::Unavailable }, text)
        })?;
        self.fetch(digest, kind).await.map_err(|error| Fault::new(ErrorCode::Internal, error.to_string()))
    }

    async fn fetch(
        &self,
        digest: weir_types::ContentHash,
        kind: FunctionKind,
    ) -> Result<Arc<LinkedComponent>, ComponentLoadError> {
        let components = self.components.clone();
        let metrics = self.metrics.clone();
        let started = Instant::now();
        let loaded = tokio::task::spawn_blocking(move || components.load(digest, kind)).await;
        let entry = loaded.unwrap_or_else(|panic| Err(ComponentLoadError::panicked(&panic)))?;
        metrics.cold_start(ColdStart::Component);
        metrics.phase(Phase::Fetch, started.elapsed());
        Ok(entry)
    }

    fn sandbox(
        self: &Arc<Self>,
        call: &CallCtx,
        function: &FunctionTarget,
        placement: LocalPlacement,
        entry: Arc<LinkedComponent>,
        request: RequestCell,
        slot: &mut InstanceSlot,
    ) -> Sandbox {
        let FunctionTarget { account } = function;
        let deployment = function.deployment();
        let DeployedFunction { id, manifest, log, .. } = &**deployment;
        let limits = &manifest.limits;
        let guest_span = call.trace.reserve();
        let guest_trace = guest_span.trace().clone();
        Sandbox {
            entry,
            engines: self.components.engines().clone(),
            manifest: manifest.clone(),
            trace: call.trace.clone(),
            guest_span,
            deadline: call.deadline.into(),
            extension: None,
            ctx: InvocationCtx {
                sink: OutputSink::new(log.clone(), id.version, call.request_id.clone(), limits.log_bytes),
                inference: InferenceCtx {
                    resources: Arc::new(FunctionAccess::new(self.clone(), call, account, placement)),
                    arena: self.arena.tenant(&id.tenant),
                    request,
                    images: TenantImages::new(self.images.clone(), id.tenant.clone()),
                    usage: account.usage(),
                    metrics: self.metrics.clone(),
                    trace: guest_trace,
                    deadline: call.deadline,
                    priority: call.priority,
                    tensor_bytes_left: limits.tensor_bytes,
                    tensor_bytes_max: limits.tensor_bytes,
                    loaded_model_bytes_left: limits.loaded_model_bytes,
                    loaded_model_bytes_max: limits.loaded_model_bytes,
                    request_body_bytes_max: limits.request_body_bytes,
                },
                usage: account.usage(),
                connector: TenantConnector::new(self.connector.clone(), id.tenant.clone()),
                memory: slot.memory.clone(),
            },
            secrets: std::mem::take(&mut slot.env),
            counted: deployment.metrics.clone(),
        }
    }

    async fn drive(
        &self,
        deployment: &DeployedFunction,
        mut run: Pin<Box<impl Future<Output = InvocationReport> + Send + 'static>>,
        mut receiver: AnswerReceiver,
        outgoing: Outgoing<'_>,
    ) -> Result<Response, Fault> {
        let turn = self.guests.turn(outgoing.account);
        let first = if deployment.is_brief.load(Ordering::Relaxed) && !turn.is_over() {
            Slice::new(&mut run, &mut receiver, &outgoing.account.usage()).await
        } else {
            First::Spent
        };
        let report = match first {
            First::Ended(report) => Ok(report),
            First::Answered(response) => {
                let rest = self.guests.run(run, turn);
                return outgoing.send(response, Some(rest)).await;
            }
            First::Spent => {
                let mut rest = self.guests.run(run, turn);
                tokio::select! {
                    biased;
                    Ok(response) = &mut receiver, if !receiver.is_terminated() => {
                        return outgoing.send(response, Some(rest)).await;
                    }
                    report = &mut rest => report.map_err(|error| interrupted(&error)),
                }
            }
        };
        // The guest has ended, so a response that it sent is complete.
        match (receiver.try_recv(), report) {
            (Ok(response), report) => outgoing.send(response, None).await.map_err(|torn| match report {
                // The guest's own fault explains best why a response is incomplete.
                Ok(InvocationReport { fault: Some(fault), .. }) | Err(fault) => fault,
                Ok(_) => torn,
            }),
            (Err(_), Ok(InvocationReport { fault: Some(fault), .. }) | Err(fault)) => Err(fault),
            (Err(_), Ok(_)) => {
                Err(Fault::new(ErrorCode::NoResponse, "the function returned without sending a response"))
            }
        }
    }
}

/// Runs the guest and accounts for it. Then releases its permits, or keeps its instance for the
/// next call.
async fn finish(
    sandbox: Sandbox,
    call: GuestCall,
    ExecutionPermits { forward, slot: InstanceSlot { idle, secrets, permit, .. } }: ExecutionPermits,
    slots: Arc<InstanceSlots>,
    account: Arc<Account>,
) -> InvocationReport {
    let _running = account.running();
    let mut report = sandbox.run(idle, call).await;
    account.report(&report);
    forward.ended(report.fault.is_none());
    match report.left.take() {
        Some(instance) => slots.keep(account.deployment(), instance, secrets, permit),
        None => drop(permit),
    }
    // Before the account: its end may begin a copy of the call, which looks for room.
    drop(forward);
    report
}

/// The fault of a guest whose task did not end: it panicked, or the node stopped its threads.
fn interrupted(error: &tokio::task::JoinError) -> Fault {
    if error.is_cancelled() {
        return Fault::new(ErrorCode::Unavailable, "the node shut down before the function ended");
    }
    Fault::new(ErrorCode::Internal, format!("the node failed while it ran the function: {error}"))
}
