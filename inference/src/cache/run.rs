//! One run of a resident model, from the request to its outputs, alone or in a batch.

mod metered;
mod together;
mod trial;

use super::pool::Pool;
use super::resident::Pin;
use crate::backend::Session;
use crate::batching::{Fit, SuccessfulRun};
use crate::error::InferenceError;
use crate::interrupt::{Interrupt, StopReason};
use crate::meter::{Meter, RequestMeter};
use crate::request::{Completion, Execution, PRIORITY_DEFAULT, PlacedJob, RunRequest};
use crate::threads::{DeviceWork, Lane, QueueEntry, Taken, Ticket, error_of, lost};
use crate::value::Value;
use metered::MeteredSession;
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin as StdPin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use together::run_together;
use tokio::sync::oneshot;
use trial::OpenTrial;

/// A pending run. Resolves to its outputs; dropping it withdraws or stops the run.
#[must_use = "dropping a run stops it"]
pub struct PendingRun(RunState);

enum RunState {
    /// The run was not queued.
    Failed(Option<InferenceError>),
    /// The run is queued, running or finished. Dropping `ticket` withdraws a queued run and stops a
    /// running one; `answer` receives the reply.
    UnderWay { ticket: Ticket<ModelRun>, answer: oneshot::Receiver<RunReply> },
}

type RunReply = Result<Completion, InferenceError>;

impl PendingRun {
    pub(super) fn start(pin: Pin, request: RunRequest) -> Self {
        let lane = pin.resident().lane.clone();
        Self::start_in(pin, lane, None, request)
    }

    /// Starts a run in a different lane, with sessions of a pool that is not the model's.
    pub(super) fn start_in(pin: Pin, lane: Lane, pool: Option<Arc<Pool>>, request: RunRequest) -> Self {
        Self(submit(pin, lane, pool, request).unwrap_or_else(|error| RunState::Failed(Some(error))))
    }

    /// Withdraws or stops the run, which then ends with [`InferenceError::Cancelled`] unless it has
    /// already ended.
    pub fn cancel(&self) {
        if let RunState::UnderWay { ticket, .. } = &self.0 {
            ticket.cancel();
        }
    }
}

impl Future for PendingRun {
    type Output = RunReply;

    fn poll(mut self: StdPin<&mut Self>, context: &mut Context<'_>) -> Poll<RunReply> {
        match &mut self.0 {
            // A future that is polled again after completion has no better answer.
            RunState::Failed(error) => Poll::Ready(Err(error.take().unwrap_or(InferenceError::Cancelled))),
            RunState::UnderWay { answer, .. } => {
                let answer = ready!(StdPin::new(answer).poll(context));
                Poll::Ready(
                    answer.unwrap_or_else(|_| Err(InferenceError::Run("the backend gave no answer".into()))),
                )
            }
        }
    }
}

fn submit(
    pin: Pin,
    lane: Lane,
    pool: Option<Arc<Pool>>,
    request: RunRequest,
) -> Result<RunState, InferenceError> {
    let priority = if request.priority == 0 { PRIORITY_DEFAULT } else { request.priority };
    let deadline = request.deadline;
    let meter = request.meter.clone().unwrap_or_else(|| pin.resident().source.meter.clone());
    let job = request.check(pin.signature())?;
    if pin.resident().is_lost() {
        return Err(lost());
    }
    let (reply, answer) = oneshot::channel();
    let runs = pin.shared().runs.clone();
    let reply = Reply::new(reply);
    let submitted = Instant::now();
    let meter = RequestMeter::new(meter);
    let work = ModelRun { pool, pin, meter, job, reply, submitted, outcome: None };
    let ticket = runs.submit(lane, priority, deadline, work)?;
    Ok(RunState::UnderWay { ticket, answer })
}

/// A run as the device threads see it. Its pin keeps the model resident until the run has ended.
pub(super) struct ModelRun {
    /// The pool for measurement runs; `None`: the model's pool.
    pool: Option<Arc<Pool>>,
    pin: Pin,
    /// Counts the device time of the run.
    meter: RequestMeter,
    job: PlacedJob,
    reply: Reply,
    submitted: Instant,
    outcome: Option<RunReply>,
}

/// The reply channel of a run; used once.
#[derive(Clone)]
struct Reply(Arc<Mutex<Option<oneshot::Sender<RunReply>>>>);

impl Reply {
    fn new(sender: oneshot::Sender<RunReply>) -> Self {
        Self(Arc::new(Mutex::new(Some(sender))))
    }

    fn send(&self, answer: RunReply) {
        let sender = self.0.lock().take();
        // The caller may have stopped waiting.
        if let Some(sender) = sender {
            let _ = sender.send(answer);
        }
    }
}

impl DeviceWork for ModelRun {
    fn fit(&self, lane: &Lane) -> Option<Fit> {
        lane.batcher.as_ref()?.fit(&self.job)
    }

    fn run(taken: &mut Taken<Self>) {
        match &mut taken.jobs[..] {
            [(_, entry)] => run_alone(entry, taken.is_trial),
            jobs => {
                let mut members: Vec<_> = jobs.iter_mut().map(|(_, entry)| entry).collect();
                run_together(&taken.lane, &mut members);
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.outcome.is_some()
    }

    fn answer(self) {
        let Self { pool, pin, meter, job, reply, outcome, .. } = self;
        // Dropped first: when the caller receives the answer, the model can be evicted, the inputs'
        // memory is free, and the device use is complete.
        drop((pool, pin, job, meter));
        let panicked = || Err(InferenceError::Run("the backend panicked".into()));
        reply.send(outcome.unwrap_or_else(panicked));
    }

    fn refuse(mut self, why: InferenceError) {
        self.outcome = Some(Err(why));
        self.answer();
    }
}

fn run_alone(entry: &mut QueueEntry<ModelRun>, is_trial: bool) {
    // Records an outcome of the trial in every case.
    let trial = is_trial.then(|| OpenTrial::new(entry.lane.clone()));
    let run = &mut entry.job;
    let interrupt = &*entry.interrupt;
    let started = Instant::now();
    let outcome = run.with_session(&run.meter, interrupt, |session| {
        let outputs = session.run_placed(&run.job, interrupt)?;
        Ok((outputs, session.device_time(), session.was_cold()))
    });
    let elapsed = started.elapsed();
    run.outcome = Some(match (outcome, interrupt.reason()) {
        // The error of this run caused the loss of the device, and thereby its own interrupt.
        (Err(error @ InferenceError::DeviceLost(_)), Some(StopReason::DeviceLost)) => Err(error.in_use()),
        (_, Some(reason)) => Err(error_of(reason)),
        (Err(error), None) => Err(error.in_use()),
        (Ok((outputs, device_time, was_cold)), None) => {
            // The device time of a cold run excludes the wait for weights.
            let run_time = if was_cold { elapsed } else { device_time.unwrap_or(elapsed) };
            let items = run.job.batch();
            if run.pool.is_none() && !was_cold {
                run.pin.shared().profiles.ran(run.pin.key(), items, run_time);
            }
            if let (Some(batcher), Some(fit), false) = (&entry.lane.batcher, &entry.fit, was_cold) {
                batcher.ran(&SuccessfulRun { class: &fit.class, items: vec![items], time: run_time });
            }
            let input_bytes = run.job.input_bytes();
            let execution = Execution { requests: 1, items, input_bytes, padding_bytes: 0 };
            Ok(run.complete(outputs, started, run_time, Some(execution)))
        }
    });
    if let Some(trial) = trial {
        // Before the answer: once the caller has the answer, it drops the run, which stops the
        // trial.
        trial.run(run, interrupt);
    }
}

/// Runs `body` with a session. Its runs are charged to `bearers` by their items.
fn with_session<T>(
    pin: &Pin,
    pool: &Pool,
    bearers: &[(&Meter, u32)],
    interrupt: &Interrupt,
    body: impl FnOnce(&mut dyn Session) -> Result<T, InferenceError>,
) -> Result<T, InferenceError> {
    if let Some(reason) = interrupt.reason() {
        return Err(error_of(reason));
    }
    let resident = pin.resident();
    let outcome = resident.take_session(pool).and_then(|mut pooled| {
        // If `body` panics, the session is dropped, because its state is unknown.
        let device = pin.shared().backend.device();
        let outcome = body(&mut MeteredSession { session: &mut *pooled.session, device, bearers });
        pool.put(pooled);
        outcome
    });
    if let Err(error) = &outcome
        && !resident.is_lost()
    {
        pin.shared().note_loss(error);
    }
    pin.shared().note_capacity();
    outcome
}

impl ModelRun {
    fn with_session<T>(
        &self,
        meter: &Meter,
        interrupt: &Interrupt,
        body: impl FnOnce(&mut dyn Session) -> Result<T, InferenceError>,
    ) -> Result<T, InferenceError> {
        let bearers = [(meter, self.job.batch())];
        match &self.pool {
            Some(pool) => with_session(&self.pin, pool, &bearers, interrupt, body),
            None => with_session(&self.pin, &self.pin.resident().pool(), &bearers, interrupt, body),
        }
    }

    fn complete(
        &self,
        given: Vec<Value>,
        started: Instant,
        run_time: Duration,
        execution: Option<Execution>,
    ) -> Completion {
        let ports = &self.pin.signature().outputs;
        let names =
            self.job.outputs.iter().filter_map(|position| ports.get(*position)).map(|port| port.name.clone());
        let queue_time = started.saturating_duration_since(self.submitted);
        let mut outputs = Vec::with_capacity(given.len());
        let mut stayed = Vec::new();
        for (name, value) in names.zip(given) {
            match value {
                Value::Host(tensor) => outputs.push((name, tensor)),
                Value::Device(tensor) => stayed.push((name, tensor)),
            }
        }
        Completion { outputs, stayed, queue_time, run_time, execution }
    }
}
