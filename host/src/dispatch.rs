//! The path of one invocation, from admission to response.
//!
//! An invocation acquires, in order: a permit of the function's concurrency gate, a placement from
//! the scheduler, an instance slot, and the loaded component. It then runs in a sandbox. The guest
//! starts on the gateway thread that received the request: most guests end there sooner than
//! another thread could wake up. A guest that computes for longer than one time slice moves to the
//! guest threads, so that gateway threads stay free. Every wait ends at the deadline.

mod account;
mod anywhere;
mod inference;
mod job;
mod outgoing;
mod passing;
mod placement;
mod remote;
mod slice;
mod slots;
mod workflow;

pub(crate) use account::Account;
pub(crate) use anywhere::Ran;
pub(crate) use inference::{Inference, InferenceTurn, Ready};
pub(crate) use job::Job;
pub(crate) use passing::{Passed, Passing};
pub(crate) use placement::{Away, Link, LinkId, PlacementConfig, Placements, Spot};
pub(crate) use slots::Slots;
pub(crate) use workflow::{Steps, WorkflowCall, WorkflowPlace, WorkflowTurn};

use crate::cluster::Cluster;
use crate::cluster::wire::Granted;
use crate::component::{Components, Entry, LoadError, Recompiler};
use crate::hostcalls::InferenceCtx;
use crate::instance::{
    Answer, AnswerReceiver, Call, Fault, Lent, OutputSink, Report, RequestBody, RequestCell, Sandbox,
};
use crate::intermediates::Intermediates;
use crate::models::{ModelAccess, Models};
use crate::objective::Objective;
use crate::objects::Objects;
use crate::registry::{Deployment, FunctionRecord};
use crate::telemetry::{ColdStart, Metrics, Phase, Served, Trace};
use crate::until::until;
use crate::workflows::Catalog;
use axum::response::Response;
use outgoing::Outgoing;
use placement::Place;
use slice::{First, Slice};
use slots::Slot;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;
use weir_device::Arena;
use weir_inference::{Completion, Execution, Tensor};
use weir_scheduler::InputsOn;
use weir_types::{ErrorCode, FunctionKind, InvocationId};

/// Runs invocations of functions, models and workflows.
pub(crate) struct Dispatch {
    pub(crate) components: Arc<Components>,
    pub(crate) models: Arc<Models>,
    /// The models, functions and workflows that workflow steps run and functions open.
    pub(crate) catalog: Catalog,
    pub(crate) placements: Arc<Placements>,
    /// The cluster that this node belongs to, if any.
    pub(crate) cluster: Option<Arc<Cluster>>,
    pub(crate) objects: Arc<Objects>,
    /// Intermediate tensors that one workflow step leaves for another.
    pub(crate) intermediates: Arc<Intermediates>,
    pub(crate) arena: Arena,
    pub(crate) metrics: Arc<Metrics>,
    /// Instance slots, shared by all functions.
    pub(crate) slots: Arc<Slots>,
    /// The guest threads.
    pub(crate) guests: Handle,
    /// Recompiles components whose artefact this node cannot use.
    pub(crate) recompiler: Recompiler,
    /// Permits for work that would block other requests.
    pub(crate) turns: Arc<Semaphore>,
    /// The size limit of a response from another node that ran a model or workflow.
    pub(crate) answer_bytes_max: u64,
}

/// An invocation as the gateway describes it.
pub(crate) struct Invocation {
    pub(crate) id: InvocationId,
    pub(crate) request_id: Arc<str>,
    pub(crate) deployment: Arc<Deployment>,
    /// The objective to meet; see [`Inference::objective`].
    pub(crate) objective: Objective,
    pub(crate) trace: Trace,
    pub(crate) arrived: Instant,
    pub(crate) deadline: Instant,
    pub(crate) priority: u32,
    /// The nesting depth in calls of functions and workflows: 0 for a client's request.
    pub(crate) depth: u32,
    /// The input bytes per node, for placement; empty to ignore the transfer of inputs.
    pub(crate) inputs: Vec<InputsOn>,
    /// The grant that a forwarding node sent along; `None`: ask the scheduler.
    pub(crate) granted: Option<Granted>,
}

/// An admitted invocation: runs here, or on another node.
pub(crate) enum Admitted {
    Here(Admission),
    There(Away, HeldAway),
}

/// The resources that an invocation needs to run on this node.
pub(crate) struct Admission {
    entry: Arc<Entry>,
    held: Held,
    spot: Spot,
    /// The time from arrival in the queue until all resources were acquired.
    queue_time: Duration,
}

/// The permits that an invocation holds while it runs here.
struct Held {
    _held: HeldAway,
    slot: Slot,
}

/// The result of queueing: run here, or on another node.
enum Turn {
    Here(Held, Spot),
    There(Away, HeldAway),
}

/// The permits that an invocation holds on this node while it runs on another node.
pub(crate) struct HeldAway {
    /// The permit of the function's gate; `None` if the node that received the invocation holds it.
    _turn: Option<OwnedSemaphorePermit>,
    /// The placement; `None` for an invocation nested in a placed one.
    _placement: Option<placement::Placed>,
}

impl Dispatch {
    /// Opens the account of an invocation. A caller that sees the invocation fail closes the
    /// account.
    pub(crate) fn account(&self, invocation: &Invocation) -> Arc<Account> {
        Account::open(invocation, &self.metrics)
    }

    /// Calls an HTTP function.
    pub(crate) async fn http(
        self: &Arc<Self>,
        invocation: Invocation,
        Admission { entry, held, spot, .. }: Admission,
        account: &Arc<Account>,
        head: http::Request<()>,
        body: RequestBody,
    ) -> Result<Response, Fault> {
        let is_bodiless = head.method() == http::Method::HEAD;
        let cell = RequestCell::new(body);
        let (answer, receiver) = Answer::channel();
        let request = Box::new(head.map(|()| cell.stream()));
        let sandbox = self.sandbox(&invocation, spot, account, entry, cell.clone());
        let call = Call::Http { request, cell: cell.clone(), answer };
        // Boxed before it is handed on: the futures around it stay small, cheap to move and
        // cache-friendly.
        let run = Box::pin(finish(sandbox, call, held, self.slots.clone(), account.clone()));
        let outgoing = Outgoing {
            guests: &self.guests,
            account,
            bytes_max: invocation.deployment.manifest.limits.response_body_bytes,
            is_bodiless,
        };
        let response = self.drive(&invocation, run, receiver, outgoing).await;
        // A guest that fails because the request body was cut off is not at fault.
        response.map_err(|fault| cell.body_fault().unwrap_or(fault))
    }

    /// Calls a tensor function.
    pub(crate) async fn tensor(
        self: &Arc<Self>,
        invocation: &Invocation,
        Admission { entry, held, spot, queue_time }: Admission,
        account: &Arc<Account>,
        inputs: Vec<(String, Tensor)>,
    ) -> Result<Completion, Fault> {
        let sandbox = self.sandbox(invocation, spot, account, entry, RequestCell::default());
        let (answer, receiver) = oneshot::channel();
        let execution = Some(Execution::alone(&inputs));
        let call = Call::Tensor { inputs, answer };
        let run = Box::pin(finish(sandbox, call, held, self.slots.clone(), account.clone()));
        // Tensor functions compute, so they start on a guest thread.
        let started = Instant::now();
        let report = AbortOnDropHandle::new(self.guests.spawn(run)).await.map_err(|panic| panicked(&panic));
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

    /// Waits for everything that the invocation needs, until its deadline.
    pub(crate) async fn admit(&self, invocation: &Invocation) -> Result<Admitted, Fault> {
        let admitted = until(invocation.deadline, async {
            let queued = Instant::now();
            let turn = self.queue(invocation).instrument(invocation.trace.phase(Phase::Queue)).await?;
            self.metrics.phase(Phase::Queue, queued.elapsed());
            let (held, spot) = match turn {
                Turn::Here(held, spot) => (held, spot),
                Turn::There(away, held) => return Ok(Admitted::There(away, held)),
            };
            let record = &invocation.deployment.record;
            let entry = match self.components.loaded(record.digest) {
                Some(entry) => entry,
                None => self.load(invocation).await?,
            };
            Ok(Admitted::Here(Admission { entry, held, spot, queue_time: queued.elapsed() }))
        });
        admitted.await.unwrap_or_else(|| Err(no_turn(invocation)))
    }

    /// Admits an invocation nested in one that was placed here. A function call within another
    /// function does not wait for an instance slot: all slots may be taken by callers that wait in
    /// the same way, which would be a deadlock.
    pub(crate) async fn admit_within(&self, invocation: &Invocation, spot: Spot) -> Result<Admission, Fault> {
        let admitted = until(invocation.deadline, async {
            let queued = Instant::now();
            let _waiting = account::Counted::new(&self.metrics.queued);
            let turn = invocation.deployment.gate.enter().await?;
            let may_wait = invocation.depth <= 1;
            let slot = self.slots.take(&invocation.deployment, may_wait).await?;
            let held = Held { _held: HeldAway { _turn: Some(turn), _placement: None }, slot };
            let entry = match self.components.loaded(invocation.deployment.record.digest) {
                Some(entry) => entry,
                None => self.load(invocation).await?,
            };
            Ok(Admission { entry, held, spot, queue_time: queued.elapsed() })
        });
        admitted.await.unwrap_or_else(|| Err(no_turn(invocation)))
    }

    /// The serving statistics of a tensor function.
    pub(crate) fn served(&self, deployment: &Deployment) -> Served {
        let id = &deployment.id;
        deployment.served.get_or_init(|| self.metrics.served(&id.tenant, &id.name, id.version)).clone()
    }

    async fn queue(&self, invocation: &Invocation) -> Result<Turn, Fault> {
        let _waiting = account::Counted::new(&self.metrics.queued);
        // Each call takes one gate permit, on one node only. Two nodes that forward calls to each
        // other would deadlock otherwise.
        let turn = match &invocation.granted {
            None => Some(invocation.deployment.gate.enter().await?),
            Some(_) => None,
        };
        let (place, placement) = self.placements.place(invocation, &self.catalog).await?;
        let held = HeldAway { _turn: turn, _placement: Some(placement) };
        let device = match place {
            Place::Here(device) => device,
            Place::There(away) => return Ok(Turn::There(away, held)),
        };
        let slot = self.slots.take(&invocation.deployment, true).await?;
        let spot = Spot { invocation: invocation.id, device };
        Ok(Turn::Here(Held { _held: held, slot }, spot))
    }

    /// Loads the component from its artefact. Recompiles it first if this node cannot use the
    /// artefact.
    async fn load(&self, invocation: &Invocation) -> Result<Arc<Entry>, Fault> {
        let FunctionRecord { digest, kind, .. } = invocation.deployment.record;
        if let Ok(entry) = self.fetch(digest, kind).instrument(invocation.trace.phase(Phase::Fetch)).await {
            return Ok(entry);
        }
        let compiled =
            self.recompiler.compile(digest, kind).instrument(invocation.trace.phase(Phase::Compile));
        compiled.await.map_err(|error| {
            // The caller is not at fault, even if the component is invalid.
            let text =
                format!("the function has to be compiled again, and cannot be; deploy it again: {error}");
            Fault::new(ErrorCode::Unavailable, text)
        })?;
        self.fetch(digest, kind).await.map_err(|error| Fault::new(ErrorCode::Internal, error.to_string()))
    }

    async fn fetch(
        &self,
        digest: weir_types::ContentHash,
        kind: FunctionKind,
    ) -> Result<Arc<Entry>, LoadError> {
        let (components, metrics) = (self.components.clone(), self.metrics.clone());
        let started = Instant::now();
        let loaded = tokio::task::spawn_blocking(move || components.load(digest, kind)).await;
        let entry = loaded.unwrap_or_else(|panic| Err(LoadError::panicked(&panic)))?;
        metrics.cold_start(ColdStart::Component);
        metrics.phase(Phase::Fetch, started.elapsed());
        Ok(entry)
    }

    fn sandbox(
        self: &Arc<Self>,
        invocation: &Invocation,
        spot: Spot,
        account: &Account,
        entry: Arc<Entry>,
        request: RequestCell,
    ) -> Sandbox {
        let Deployment { id, manifest, log, .. } = &*invocation.deployment;
        let limits = &manifest.limits;
        Sandbox {
            entry,
            engines: self.components.engines().clone(),
            manifest: manifest.clone(),
            trace: invocation.trace.clone(),
            deadline: invocation.deadline.into(),
            lent: Lent {
                sink: OutputSink::new(
                    log.clone(),
                    id.version,
                    invocation.request_id.clone(),
                    limits.log_bytes,
                ),
                inference: InferenceCtx {
                    models: ModelAccess::new(self.clone(), invocation, spot),
                    arena: self.arena.clone(),
                    request,
                    metrics: self.metrics.clone(),
                    trace: invocation.trace.clone(),
                    deadline: invocation.deadline,
                    priority: invocation.priority,
                    tensor_bytes_left: limits.tensor_bytes,
                    tensor_bytes_max: limits.tensor_bytes,
                    loaded_model_bytes_left: limits.loaded_model_bytes,
                    request_body_bytes_max: limits.request_body_bytes,
                },
                usage: account.usage(),
            },
            counted: invocation.deployment.metrics.clone(),
        }
    }

    async fn drive(
        &self,
        invocation: &Invocation,
        mut run: Pin<Box<impl Future<Output = Report> + Send + 'static>>,
        mut receiver: AnswerReceiver,
        outgoing: Outgoing<'_>,
    ) -> Result<Response, Fault> {
        let first = if invocation.deployment.is_brief.load(Ordering::Relaxed) {
            Slice::new(&mut run, &mut receiver, &outgoing.account.usage()).await
        } else {
            First::Spent
        };
        let report = match first {
            First::Ended(report) => Ok(report),
            First::Answered(response) => {
                let rest = AbortOnDropHandle::new(self.guests.spawn(run));
                return outgoing.send(response, Some(rest)).await;
            }
            First::Spent => {
                let mut rest = AbortOnDropHandle::new(self.guests.spawn(run));
                tokio::select! {
                    biased;
                    Ok(response) = &mut receiver => return outgoing.send(response, Some(rest)).await,
                    report = &mut rest => report.map_err(|panic| panicked(&panic)),
                }
            }
        };
        // The guest has ended, so a response that it sent is complete.
        match (receiver.try_recv(), report) {
            (Ok(response), report) => outgoing.send(response, None).await.map_err(|torn| match report {
                // The guest's own fault explains best why a response is incomplete.
                Ok(Report { fault: Some(fault), .. }) | Err(fault) => fault,
                Ok(_) => torn,
            }),
            (Err(_), Ok(Report { fault: Some(fault), .. }) | Err(fault)) => Err(fault),
            (Err(_), Ok(_)) => {
                Err(Fault::new(ErrorCode::NoResponse, "the function returned without sending a response"))
            }
        }
    }
}

/// Runs the guest and accounts for it. Then releases its permits, or keeps its instance for the
/// next invocation.
async fn finish(
    sandbox: Sandbox,
    call: Call,
    Held { _held, slot: Slot { idle, permit } }: Held,
    slots: Arc<Slots>,
    account: Arc<Account>,
) -> Report {
    let _running = account.running();
    let mut report = sandbox.run(idle, call).await;
    account.report(&report);
    if let Some(instance) = report.left.take() {
        slots.keep(account.deployment(), instance, permit);
    }
    report
}

fn no_turn(invocation: &Invocation) -> Fault {
    let limits = &invocation.deployment.manifest.limits;
    let text =
        format!("the function did not get its turn within {} ms (limits.deadline_ms)", limits.deadline_ms);
    Fault::new(ErrorCode::DeadlineExceeded, text)
}

fn panicked(panic: &tokio::task::JoinError) -> Fault {
    Fault::new(ErrorCode::Internal, format!("the node failed while it ran the function: {panic}"))
}

/// The deadline `limit_ms` after `arrived`.
pub(crate) fn deadline(arrived: Instant, limit_ms: u64) -> Instant {
    arrived + Duration::from_millis(limit_ms)
}
