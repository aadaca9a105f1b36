//! Sends requests at their times.
//!
//! One thread waits for the time of each request and hands the request to a thread that sends it
//! and waits for the response. Threads are started as needed, up to the limit of requests in flight.

use super::plan::{Plan, PlannedRequest};
use crate::client::Client;
use crate::error::Problem;
use anyhow::Result;
use indicatif::ProgressBar;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io::Read;
use std::thread::Builder;
use std::time::{Duration, Instant};
use ureq::SendBody;
use ureq::http::{HeaderName, HeaderValue, Method};

/// Stack of a thread that sends requests; TLS needs most of it.
const STACK_BYTES: usize = 512 << 10;
/// Maximum length of the explanation of a failure.
const EXPLANATION_BYTES: u64 = 300;

/// The requests, and how to send them.
pub(super) struct Load<'a> {
    pub(super) plan: &'a Plan,
    /// Called in turn.
    pub(super) clients: &'a [Client],
    pub(super) speed: f64,
    pub(super) in_flight_max: usize,
    pub(super) method: &'a Method,
    pub(super) headers: &'a [(HeaderName, HeaderValue)],
}

/// The outcome of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SentRequest {
    /// Index in the plan's requests.
    pub(super) request: usize,
    /// Scaled time at which the request was due, since the first one.
    pub(super) due: Duration,
    /// How late the request was sent.
    pub(super) lag: Duration,
    /// Time from the due time to the end of the response.
    pub(super) latency: Duration,
    pub(super) outcome: RequestOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestOutcome {
    /// A response, with its status and, if it is an error, the beginning of its text.
    Answered(u16, String),
    /// No response, and why.
    Failed(String),
    /// Too many requests were in flight.
    NotSent,
}

/// Requests that are due, and threads that send them.
#[derive(Default)]
struct Sending {
    state: Mutex<SendingState>,
    wake: Condvar,
}

#[derive(Default)]
struct SendingState {
    due: VecDeque<(usize, Duration)>,
    /// Threads that wait for a request.
    idle: usize,
    threads: usize,
    is_over: bool,
    sent: Vec<SentRequest>,
}

impl Load<'_> {
    /// Sends all requests. Returns their outcomes in the order of the plan.
    pub(super) fn run(&self, bar: &ProgressBar) -> Result<Vec<SentRequest>> {
        let sending = Sending::default();
        let began = Instant::now();
        let started = std::thread::scope(|scope| {
            let mut started = Ok(());
            for (request, PlannedRequest { at, .. }) in self.plan.requests.iter().enumerate() {
                let due = at.div_f64(self.speed);
                std::thread::sleep(due.saturating_sub(began.elapsed()));
                match sending.add((request, due), self.in_flight_max) {
                    Handover::Idle => continue,
                    Handover::Dropped => {
                        bar.inc(1);
                        continue;
                    }
                    Handover::Another => {}
                }
                let thread = Builder::new().name("request".to_owned()).stack_size(STACK_BYTES);
                if let Err(error) = thread.spawn_scoped(scope, || self.send_due(&sending, began, bar)) {
                    started = Err(error);
                    break;
                }
            }
            sending.state.lock().is_over = true;
            sending.wake.notify_all();
            started
        });
        started.map_err(|error| {
            Problem::new("cannot start another thread").because(error).hint("lower --in-flight-max")
        })?;
        let mut sent = sending.state.into_inner().sent;
        sent.sort_unstable_by_key(|sent| sent.request);
        Ok(sent)
    }

    /// Sends requests until all are sent.
    fn send_due(&self, sending: &Sending, began: Instant, bar: &ProgressBar) {
        while let Some((request, due)) = sending.next() {
            let lag = began.elapsed().saturating_sub(due);
            let outcome = self.send(request);
            let latency = began.elapsed().saturating_sub(due);
            sending.state.lock().sent.push(SentRequest { request, due, lag, latency, outcome });
            bar.inc(1);
        }
    }

    fn send(&self, request: usize) -> RequestOutcome {
        match self.ask(request) {
            Ok((status, text)) => RequestOutcome::Answered(status, text),
            Err(error) => RequestOutcome::Failed(error.root_cause().to_string()),
        }
    }

    /// Sends a request and reads its response. Returns the status and, of an error, the beginning of
    /// its text.
    fn ask(&self, request: usize) -> Result<(u16, String)> {
        let client = &self.clients[request % self.clients.len()];
        let target = &self.plan.targets[self.plan.requests[request].target];
        let mut body = &*target.body;
        let length = body.len();
        let mut request =
            client.request(self.method.clone(), &target.path, SendBody::from_reader(&mut body))?;
        let headers = request.headers_mut();
        headers.insert("content-type", HeaderValue::from_static(target.content_type));
        headers.insert("content-length", length.into());
        for (name, _) in self.headers {
            headers.remove(name);
        }
        for (name, value) in self.headers {
            headers.append(name, value.clone());
        }
        let answer = client.send(request)?;
        let status = answer.status();
        let mut reader = answer.into_body().into_reader();
        let mut text = Vec::new();
        if status.is_client_error() || status.is_server_error() {
            reader.by_ref().take(EXPLANATION_BYTES).read_to_end(&mut text)?;
        }
        std::io::copy(&mut reader, &mut std::io::sink())?;
        Ok((status.as_u16(), String::from_utf8_lossy(&text).trim().to_owned()))
    }
}

/// Handover of a due request to a sending thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handover {
    /// An idle thread sends it.
    Idle,
    /// It needs another thread.
    Another,
    /// There are too many requests in flight.
    Dropped,
}

impl Sending {
    /// Adds a request that is due.
    fn add(&self, (request, due): (usize, Duration), threads_max: usize) -> Handover {
        let mut state = self.state.lock();
        if state.due.len() < state.idle {
            state.due.push_back((request, due));
            self.wake.notify_one();
            return Handover::Idle;
        }
        if state.threads < threads_max {
            state.due.push_back((request, due));
            state.threads += 1;
            return Handover::Another;
        }
        let outcome = RequestOutcome::NotSent;
        let lag = Duration::ZERO;
        state.sent.push(SentRequest { request, due, lag, latency: Duration::ZERO, outcome });
        Handover::Dropped
    }

    /// Waits for a request; `None` at the end.
    fn next(&self) -> Option<(usize, Duration)> {
        let mut state = self.state.lock();
        loop {
            if let Some(due) = state.due.pop_front() {
                return Some(due);
            }
            if state.is_over {
                return None;
            }
            state.idle += 1;
            self.wake.wait(&mut state);
            state.idle -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_beyond_the_limit_are_reported_as_not_sent() {
        let sending = Sending::default();
        let handovers = [0, 1, 2].map(|request| sending.add((request, Duration::ZERO), 2));
        assert_eq!(handovers, [Handover::Another, Handover::Another, Handover::Dropped]);
        assert_eq!((sending.next(), sending.next()), (Some((0, Duration::ZERO)), Some((1, Duration::ZERO))));
        sending.state.lock().is_over = true;
        assert_eq!(sending.next(), None);
        let sent = sending.state.into_inner().sent;
        assert_eq!((sent.len(), sent[0].request, &sent[0].outcome), (1, 2, &RequestOutcome::NotSent));
    }
}
