//! One run of a resident model, from the request to its outputs.

use super::resident::Pin;
use crate::error::InferenceError;
use crate::interrupt::Interrupt;
use crate::request::{Completion, Job, PRIORITY_DEFAULT, RunRequest};
use crate::tensor::Tensor;
use crate::threads::{Ticket, Work, error_of};
use std::future::Future;
use std::pin::Pin as StdPin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A run under way. Ready with its outputs; dropping it withdraws or stops the run.
#[must_use = "dropping a run stops it"]
pub struct Run(State);

enum State {
    /// It did not get in line.
    Failed(Option<InferenceError>),
    /// It is in line, or running, or has ended. The field order withdraws it before its answer is let go.
    UnderWay { ticket: Ticket, answer: oneshot::Receiver<Answer> },
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
    let (lane, runs) = (pin.resident().lane, pin.shared().runs.clone());
    let work = ModelRun { pin, job, reply, submitted: Instant::now(), outcome: None };
    let ticket = runs.submit(lane, priority, deadline, Box::new(work))?;
    Ok(State::UnderWay { ticket, answer })
}

/// A run as the device threads see it. Its pin keeps the model there until the run has ended.
struct ModelRun {
    pin: Pin,
    job: Job,
    reply: oneshot::Sender<Answer>,
    submitted: Instant,
    outcome: Option<Answer>,
}

impl Work for ModelRun {
    fn run(&mut self, interrupt: &Interrupt) {
        let started = Instant::now();
        let outcome = self.run_session(interrupt);
        let run_time = started.elapsed();
        self.outcome = Some(match (outcome, interrupt.reason()) {
            (_, Some(reason)) => Err(error_of(reason)),
            (Err(error), None) => Err(error),
            (Ok(outputs), None) => {
                self.pin.shared().profiles.ran(self.pin.key(), self.job.batch(), run_time);
                Ok(self.complete(outputs, started - self.submitted, run_time))
            }
        });
    }

    fn answer(self: Box<Self>) {
        let Self { pin, job, reply, outcome, .. } = *self;
        // The model can be evicted, and the inputs' memory is free, by the time that the answer is seen.
        drop((pin, job));
        let panicked = || Err(InferenceError::Run("the backend panicked".into()));
        // Whoever asked may be gone.
        let _ = reply.send(outcome.unwrap_or_else(panicked));
    }

    fn refuse(mut self: Box<Self>, why: InferenceError) {
        self.outcome = Some(Err(why));
        self.answer();
    }
}

impl ModelRun {
    fn run_session(&self, interrupt: &Interrupt) -> Result<Vec<Tensor>, InferenceError> {
        if let Some(reason) = interrupt.reason() {
            return Err(error_of(reason));
        }
        let mut session = self.pin.resident().take_session()?;
        // Should this panic, the session is dropped: nobody knows what state it is in.
        let outputs = session.run(&self.job, interrupt);
        self.pin.resident().put_session(session);
        outputs
    }

    fn complete(&self, outputs: Vec<Tensor>, queue_time: Duration, run_time: Duration) -> Completion {
        let ports = &self.pin.signature().outputs;
        let names =
            self.job.outputs.iter().filter_map(|position| ports.get(*position)).map(|port| port.name.clone());
        Completion { outputs: names.zip(outputs).collect(), queue_time, run_time }
    }
}
