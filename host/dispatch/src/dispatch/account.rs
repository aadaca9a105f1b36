//! The cost and outcome of one invocation. Written to the metrics once, when both the guest and its
//! response are done.

use super::CallCtx;
use super::shadow::{FunctionComparison, FunctionCopy};
use http::StatusCode;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_call::Objective;
use weir_call::body::BodyObserver;
use weir_call::status as status_of;
use weir_control::canary::{CallEnd as ComparedEnd, CallOutcome};
use weir_control::registry::DeployedFunction;
use weir_sandbox::instance::{InvocationReport, SandboxUsage};
use weir_telemetry::events::NewEvent;
use weir_telemetry::{Metrics, Phase, Span, Trace};
use weir_types::api::{EventKind, EventResource};
use weir_types::{ErrorCode, FunctionId};

/// Shared by the guest's run and the response body; dropping the last reference closes the account.
pub struct Account {
    deployment: Arc<DeployedFunction>,
    metrics: Arc<Metrics>,
    arrived: Instant,
    objective: Objective,
    trace: Trace,
    /// Whether the trace is that of this call, and not of an enclosing one.
    is_traced: bool,
    /// Whether the call serves a WebSocket: the client decides about its time.
    is_websocket: AtomicBool,
    usage: Arc<SandboxUsage>,
    /// The comparison that a copy of a call ends; `None` for a call.
    comparison: Mutex<Option<Box<FunctionComparison>>>,
    state: Mutex<AccountState>,
}

#[derive(Default)]
struct AccountState {
    /// The copy for the shadow, which begins when the call has ended.
    copy: Option<Box<FunctionCopy>>,
    failed: Option<ErrorCode>,
    /// The status of the response, once its head is complete.
    status: Option<StatusCode>,
    ended: Option<CallEnd>,
    /// Another node accounts for the invocation.
    is_forwarded: bool,
    /// The response came from the cache, so no guest ran.
    is_hit: bool,
}

struct CallEnd {
    at: Instant,
    guest_time: Duration,
    /// The span of the reply phase, which follows the guest's end.
    _reply: Span,
}

impl Account {
    /// Opens the account of a call of `deployment`.
    pub(super) fn open(
        call: &CallCtx,
        deployment: Arc<DeployedFunction>,
        metrics: &Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            deployment,
            metrics: metrics.clone(),
            arrived: call.arrived,
            objective: call.objective,
            trace: call.trace.clone(),
            is_traced: call.depth == 0,
            is_websocket: AtomicBool::new(false),
            usage: Arc::default(),
            comparison: Mutex::default(),
            state: Mutex::default(),
        })
    }

    /// Opens the account of a copy of a call. The copy counts for its comparison and its costs, and
    /// not as a call.
    pub(super) fn open_copy(
        call: &CallCtx,
        deployment: Arc<DeployedFunction>,
        metrics: &Arc<Metrics>,
        comparison: FunctionComparison,
    ) -> Arc<Self> {
        let account = Self::open(call, deployment, metrics);
        *account.comparison.lock() = Some(Box::new(comparison));
        account
    }

    /// Whether the account is that of a copy.
    pub(super) fn is_copy(&self) -> bool {
        self.comparison.lock().is_some()
    }

    /// Begins `copy` when the call has ended.
    pub(super) fn copy_to(&self, copy: FunctionCopy) {
        self.state.lock().copy = Some(Box::new(copy));
    }

    /// The deployment that was called.
    pub(super) fn deployment(&self) -> &Arc<DeployedFunction> {
        &self.deployment
    }

    /// The counters that the sandbox updates.
    pub(super) fn usage(&self) -> Arc<SandboxUsage> {
        self.usage.clone()
    }

    /// Records that the guest has ended.
    pub(super) fn report(&self, report: &InvocationReport) {
        self.deployment.is_brief.store(self.usage.cpu_time() < super::slice::LENGTH, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.failed = state.failed.or(report.fault.as_ref().map(|fault| fault.code));
        let _reply = self.trace.phase(Phase::Reply);
        state.ended = Some(CallEnd { at: Instant::now(), guest_time: report.guest_time, _reply });
    }

    /// Records that the invocation failed with `code`. This code, which comes from the client's
    /// side, takes precedence over the guest's own outcome.
    pub fn close(&self, code: ErrorCode) {
        self.state.lock().failed = Some(code);
    }

    /// Records that another node responded to the invocation and accounts for it.
    pub fn forwarded(&self) {
        self.state.lock().is_forwarded = true;
    }

    /// Records that the function has accepted a WebSocket.
    pub(super) fn serve_websocket(&self) {
        self.is_websocket.store(true, Ordering::Relaxed);
    }

    /// Records the status of the response.
    pub fn answered(&self, status: StatusCode) {
        self.state.lock().status = Some(status);
    }

    /// Records that the invocation was served from the response cache: it succeeded at no cost.
    pub fn hit(&self) {
        self.state.lock().is_hit = true;
        self.deployment.metrics.hit();
    }

    /// Counts the invocation as running until the result is dropped.
    pub fn running(&self) -> GaugeGuard {
        GaugeGuard::new(&self.metrics.calls.running)
    }
}

impl Account {
    /// Counts the call if its function has a canary.
    fn count_for_trial(&self, outcome: CallOutcome) {
        let version = self.deployment.id.version;
        if self.deployment.trial.count(version, outcome) {
            self.deployment.metrics.canary_call(version, outcome == CallOutcome::Failed);
        }
    }

    /// Records that the function has failed by its own fault. Repetitions are counted.
    fn note_fault(&self, code: ErrorCode) {
        let FunctionId { tenant, name, version } = &self.deployment.id;
        self.metrics.events.record(NewEvent {
            tenant: Some(tenant.clone()),
            kind: EventKind::Fault,
            resource: EventResource::Function,
            name: name.to_string(),
            text: format!("a call of {name}:{version} failed with {code}: weir logs {name} --errors"),
            repeats: Some(code.as_str()),
        });
    }
}

/// Whether the function itself, and neither its caller nor the node, causes failures with this code.
fn is_fault(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::GuestTrap
            | ErrorCode::GuestError
            | ErrorCode::NoResponse
            | ErrorCode::StackOverflow
            | ErrorCode::CpuTimeLimit
            | ErrorCode::DeadlineExceeded
            | ErrorCode::MemoryLimit
            | ErrorCode::TableLimit
            | ErrorCode::HandleLimit
            | ErrorCode::HostCallLimit
            | ErrorCode::ResponseTooLarge
            | ErrorCode::ComponentDamaged
    )
}

impl BodyObserver for Account {
    fn cut_off(&self, code: ErrorCode) {
        self.close(code);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let AccountState { copy, failed, status, ended, is_forwarded, is_hit } =
            std::mem::take(self.state.get_mut());
        if is_forwarded {
            return;
        }
        if let Some(comparison) = self.comparison.get_mut().take() {
            let ran = ended.as_ref().map_or_else(|| self.arrived.elapsed(), |ended| ended.guest_time);
            let failed = failed.or_else(|| ended.is_none().then_some(ErrorCode::Cancelled));
            self.deployment.metrics.copy_ended(self.usage.cpu_time());
            let end = ComparedEnd::of_copy(failed, status.unwrap_or(StatusCode::OK), ran);
            return comparison.ended(failed, end);
        }
        if let Some(instantiate_time) = self.usage.instantiate_time() {
            self.metrics.phase(Phase::Instantiate, instantiate_time);
        }
        if let Some(ended) = &ended {
            self.metrics.guest_memory(usize::try_from(self.usage.memory_bytes()).unwrap_or(usize::MAX));
            self.metrics.phase(Phase::Guest, ended.guest_time);
            self.metrics.phase(Phase::Reply, ended.at.elapsed());
        }
        // A guest that neither ended nor failed was dropped because its client disconnected.
        let failed = failed.or_else(|| (ended.is_none() && !is_hit).then_some(ErrorCode::Cancelled));
        if let Some(code) = failed.filter(|_| self.is_traced) {
            self.trace.failed(code);
        }
        let time = self.arrived.elapsed();
        let ran = ended.as_ref().map_or(time, |ended| ended.guest_time);
        let status = status.unwrap_or_else(|| failed.map_or(StatusCode::OK, status_of));
        self.deployment.metrics.ended(failed, status, time, self.usage.cpu_time());
        // The time for which clients keep WebSockets open neither compares a canary nor misses an
        // objective.
        let is_websocket = *self.is_websocket.get_mut();
        let compared = if is_websocket { Duration::ZERO } else { ran };
        if let Some(outcome) = CallOutcome::new(failed, status, compared).filter(|_| !is_hit) {
            self.count_for_trial(outcome);
        }
        if let Some(code) = failed.filter(|code| is_fault(*code)) {
            self.note_fault(code);
        }
        if let Some(copy) = copy {
            copy.begin(failed, ComparedEnd::new(failed, status, ran));
        }
        if let Some(outcome) = self.objective.outcome(failed, time).filter(|_| !is_websocket) {
            self.deployment.metrics.objective(outcome);
        }
    }
}

/// Adds one to a gauge until dropped.
pub struct GaugeGuard(Gauge);

impl GaugeGuard {
    pub fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
