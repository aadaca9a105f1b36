//! One run of a resident model, from the request to its outputs; alone, or as one of a batch.

use super::resident::{Pin, Resident};
use crate::backend::Session;
use crate::batching::{Fit, Joined, Ran, Verdict, join, try_out};
use crate::error::InferenceError;
use crate::interrupt::{HookGuard, Interrupt, Reason};
use crate::request::{Completion, Execution, Job, PRIORITY_DEFAULT, RunRequest};
use crate::tensor::Tensor;
use crate::threads::{Entry, Lane, Taken, Ticket, Work, error_of};
use std::future::Future;
use std::pin::Pin as StdPin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tracing::{debug, info, warn};

/// A run under way. Ready with its outputs; dropping it withdraws or stops the run.
#[must_use = "dropping a run stops it"]
pub struct Run(State);

enum State {
    /// It did not get in line.
    Failed(Option<InferenceError>),
    /// It is in line, or running, or has ended. The field order withdraws it before its answer is let go.
    UnderWay { ticket: Ticket<ModelRun>, answer: oneshot::Receiver<Answer> },
}

type Answer = Result<Completion, InferenceError>;

impl Run {
    pub(super) fn start(pin: Pin, request: RunRequest) -> Self {
        Self(submit(pin, request).unwrap_or_else(|error| State::Failed(Some(error))))
    }

    /// Withdraw or stop the run, which then ends with [`InferenceError::Cancelled`] unless it has ended already.
    pub fn cancel(&self) {
        if let State::UnderWay { ticket, .. } = &self.0 {
            ticket.cancel();
        }
    }
}

impl Future for Run {
    type Output = Answer;

    fn poll(mut self: StdPin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        match &mut self.0 {
            // A future that is polled again after it was ready has no better answer.
            State::Failed(error) => Poll::Ready(Err(error.take().unwrap_or(InferenceError::Cancelled))),
            State::UnderWay { answer, .. } => {
                let answer = ready!(StdPin::new(answer).poll(context));
                Poll::Ready(
                    answer.unwrap_or_else(|_| Err(InferenceError::Run("the backend gave no answer".into()))),
                )
            }
        }
    }
}

fn submit(pin: Pin, request: RunRequest) -> Result<State, InferenceError> {
    let priority = if request.priority == 0 { PRIORITY_DEFAULT } else { request.priority };
    let deadline = request.deadline;
    let job = request.check(pin.signature())?;
    let (reply, answer) = oneshot::channel();
    let (lane, runs) = (pin.resident().lane.clone(), pin.shared().runs.clone());
    let work = ModelRun { pin, job, reply: Reply::new(reply), submitted: Instant::now(), outcome: None };
    let ticket = runs.submit(lane, priority, deadline, work)?;
    Ok(State::UnderWay { ticket, answer })
}

/// A run as the device threads see it. Its pin keeps the model there until the run has ended.
pub(super) struct ModelRun {
    pin: Pin,
    job: Job,
    reply: Reply,
    submitted: Instant,
    outcome: Option<Answer>,
}

/// The one who waits for a run; told once.
#[derive(Clone)]
struct Reply(Arc<Mutex<Option<oneshot::Sender<Answer>>>>);

impl Reply {
    fn new(sender: oneshot::Sender<Answer>) -> Self {
        Self(Arc::new(Mutex::new(Some(sender))))
    }

    fn send(&self, answer: Answer) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Whoever asked may be gone.
        if let Some(sender) = sender {
            let _ = sender.send(answer);
        }
    }
}

impl Work for ModelRun {
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
        let Self { pin, job, reply, outcome, .. } = self;
        // The model can be evicted, and the inputs' memory is free, by the time that the answer is seen.
        drop((pin, job));
        let panicked = || Err(InferenceError::Run("the backend panicked".into()));
        reply.send(outcome.unwrap_or_else(panicked));
    }

    fn refuse(mut self, why: InferenceError) {
        self.outcome = Some(Err(why));
        self.answer();
    }
}

fn run_alone(entry: &mut Entry<ModelRun>, is_trial: bool) {
    // Settles the trial whatever happens.
    let trial = is_trial.then(|| OpenTrial { lane: entry.lane.clone(), verdict: Verdict::Unclear });
    let (run, interrupt) = (&mut entry.job, &*entry.interrupt);
    let started = Instant::now();
    let outcome = run.with_session(interrupt, |session| session.run(&run.job, interrupt));
    let run_time = started.elapsed();
    run.outcome = Some(match (outcome, interrupt.reason()) {
        (_, Some(reason)) => Err(error_of(reason)),
        (Err(error), None) => Err(error),
        (Ok(outputs), None) => {
            let items = run.job.batch();
            run.pin.shared().profiles.ran(run.pin.key(), items, run_time);
            if let (Some(batcher), Some(fit)) = (&entry.lane.batcher, &entry.fit) {
                batcher.ran(&Ran { class: &fit.class, items: vec![items], time: run_time });
            }
            let input_bytes = run.job.inputs.iter().map(|input| input.data().len() as u64).sum();
            let execution = Execution { requests: 1, items, input_bytes, padding_bytes: 0 };
            Ok(run.complete(outputs, started, run_time, Some(execution)))
        }
    });
    if let Some(mut trial) = trial {
        // Before the answer: whoever has that lets go of the run, which stops it.
        trial.verdict = run.try_out(interrupt).unwrap_or(Verdict::Unclear);
    }
}

/// A trial that is under way. Says on drop how it ended.
struct OpenTrial {
    lane: Lane,
    verdict: Verdict,
}

impl Drop for OpenTrial {
    fn drop(&mut self) {
        let Some(batcher) = &self.lane.batcher else { return };
        let verdict = match self.verdict {
            Verdict::Same => Some(true),
            Verdict::Differs => Some(false),
            Verdict::Unclear => None,
        };
        batcher.tried(verdict);
    }
}

/// Run several as one. Those that have no outcome after it are to be run alone.
fn run_together(lane: &Lane, members: &mut [&mut Entry<ModelRun>]) {
    let (Some(batcher), Some(first)) = (&lane.batcher, members.first()) else { return };
    let (pin, class) = (first.job.pin.clone(), first.fit.as_ref().map(|fit| fit.class.clone()));
    let started = Instant::now();
    let together = Arc::new(Interrupt::default());
    let outcome = {
        let guards = watch(members, &together);
        let outcome = run_joined(&pin, members, &together);
        drop(guards);
        outcome
    };
    let run_time = started.elapsed();
    let own = match outcome {
        Ok(Some((joined, own))) => Some((joined, own)),
        Ok(None) => {
            warn!(model = %pin.id(), "the outputs of a batch do not have its items: requests are run alone from now on");
            batcher.give_up();
            None
        }
        // Not the batch's fault.
        Err(_) if together.reason().is_some() => None,
        Err(error) => {
            debug!(model = %pin.id(), requests = members.len(), %error, "a batch failed; its requests are run alone");
            let items = members.iter().map(|member| member.job.job.batch()).sum();
            batcher.failed(class.as_deref().unwrap_or_default(), items);
            None
        }
    };
    for member in members.iter_mut() {
        member.job.outcome = member.interrupt.reason().map(|reason| Err(error_of(reason)));
    }
    let Some((joined, own)) = own else { return };
    pin.shared().profiles.ran(pin.key(), joined.items(), run_time);
    let items = members.iter().map(|member| member.job.job.batch()).collect();
    batcher.ran(&Ran { class: &class.unwrap_or_default(), items, time: run_time });
    let mut execution = Some(Execution {
        requests: u32::try_from(joined.len()).unwrap_or(u32::MAX),
        items: joined.items(),
        input_bytes: joined.input_bytes,
        padding_bytes: joined.padding_bytes,
    });
    for (member, outputs) in members.iter_mut().zip(own) {
        if member.job.outcome.is_none() {
            let completion = member.job.complete(outputs, started, run_time, execution.take());
            member.job.outcome = Some(Ok(completion));
        }
    }
}

/// Answer each member as soon as it is told to stop, and stop the run when all are.
fn watch<'a>(members: &'a [&mut Entry<ModelRun>], together: &Arc<Interrupt>) -> Vec<HookGuard<'a>> {
    let left = Arc::new(AtomicUsize::new(members.len()));
    let hook = |member: &'a &mut Entry<ModelRun>| {
        let (left, together) = (Arc::clone(&left), Arc::clone(together));
        let (reply, interrupt) = (member.job.reply.clone(), Arc::downgrade(&member.interrupt));
        member.interrupt.hook(move || {
            let reason =
                interrupt.upgrade().and_then(|interrupt| interrupt.reason()).unwrap_or(Reason::Cancelled);
            reply.send(Err(error_of(reason)));
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                together.fire(reason);
            }
        })
    };
    members.iter().map(hook).collect()
}

type Parted = Option<(Joined, Vec<Vec<Tensor>>)>;

fn run_joined(
    pin: &Pin,
    members: &[&mut Entry<ModelRun>],
    interrupt: &Interrupt,
) -> Result<Parted, InferenceError> {
    let (resident, arena) = (pin.resident(), &pin.shared().arena);
    let Some(batcher) = &resident.lane.batcher else { return Ok(None) };
    let jobs: Vec<&Job> = members.iter().map(|member| &member.job.job).collect();
    let joined = join(batcher.rules(), &jobs, 0, arena)?;
    let outputs = with_session(resident, interrupt, |session| session.run(&joined.job, interrupt))?;
    let own = joined.part(&outputs, pin.signature(), arena)?;
    Ok(own.map(|own| (joined, own)))
}

fn with_session<T>(
    resident: &Resident,
    interrupt: &Interrupt,
    body: impl FnOnce(&mut dyn Session) -> Result<T, InferenceError>,
) -> Result<T, InferenceError> {
    if let Some(reason) = interrupt.reason() {
        return Err(error_of(reason));
    }
    let mut session = resident.take_session()?;
    // Should this panic, the session is dropped: nobody knows what state it is in.
    let outcome = body(&mut *session);
    resident.put_session(session);
    outcome
}

impl ModelRun {
    fn with_session<T>(
        &self,
        interrupt: &Interrupt,
        body: impl FnOnce(&mut dyn Session) -> Result<T, InferenceError>,
    ) -> Result<T, InferenceError> {
        with_session(self.pin.resident(), interrupt, body)
    }

    /// Find out with this request whether its like may be run together.
    fn try_out(&self, interrupt: &Interrupt) -> Option<Verdict> {
        if !matches!(self.outcome, Some(Ok(_))) {
            return None;
        }
        let batcher = self.pin.resident().lane.batcher.as_ref()?;
        let (signature, arena) = (self.pin.signature(), &self.pin.shared().arena);
        let trial = self.with_session(interrupt, |session| {
            Ok(try_out(batcher.rules(), signature, &self.job, session, (arena, interrupt)))
        });
        let verdict = trial.ok()?;
        match verdict {
            Verdict::Same => {
                info!(model = %self.pin.id(), "requests may be run together: their answers stay the same");
            }
            Verdict::Differs => {
                info!(model = %self.pin.id(), "requests are run alone: together their answers change (batching.mode = on insists)");
            }
            Verdict::Unclear => {}
        }
        Some(verdict)
    }

    fn complete(
        &self,
        outputs: Vec<Tensor>,
        started: Instant,
        run_time: Duration,
        execution: Option<Execution>,
    ) -> Completion {
        let ports = &self.pin.signature().outputs;
        let names =
            self.job.outputs.iter().filter_map(|position| ports.get(*position)).map(|port| port.name.clone());
        let queue_time = started.saturating_duration_since(self.submitted);
        Completion { outputs: names.zip(outputs).collect(), queue_time, run_time, execution }
    }
}
