//! Clients that call continuously and record the results.

use super::FUNCTIONS;
use anyhow::{Result, bail};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use ureq::Agent;

const CALLERS: usize = 12;
/// Pause between two calls of a client.
const PAUSE: Duration = Duration::from_millis(50);
/// Time limit of a client for a response.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of retries on other nodes.
const DOORS_MAX: u32 = 10;
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// One call. Times count from the start of the clients.
#[derive(Debug)]
pub(super) struct ClientCall {
    pub(super) began: Duration,
    pub(super) took: Duration,
    pub(super) is_idempotent: bool,
    /// Number of nodes that did not accept the call.
    pub(super) turned_away: u32,
    /// Error of a lost call.
    pub(super) lost: Option<String>,
}

/// Nodes that accept calls, used round-robin.
pub(super) struct Doors {
    urls: Vec<String>,
    next: AtomicUsize,
}

impl Doors {
    pub(super) fn new(urls: Vec<String>) -> Arc<Self> {
        Arc::new(Self { urls, next: AtomicUsize::new(0) })
    }

    fn next(&self) -> &str {
        &self.urls[self.next.fetch_add(1, Ordering::Relaxed) % self.urls.len()]
    }
}

/// Running clients.
pub(super) struct Callers {
    began: Instant,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<ClientCall>>>,
}

impl Callers {
    pub(super) fn start(doors: &Arc<Doors>) -> Result<Self> {
        let began = Instant::now();
        let stop = Arc::new(AtomicBool::new(false));
        let caller = |first: usize| {
            let doors = doors.clone();
            let stop = stop.clone();
            std::thread::Builder::new().spawn(move || {
                // A new connection per call: a kept connection may belong to a dead node.
                let agent: Agent = Agent::config_builder()
                    .http_status_as_error(false)
                    .max_idle_connections(0)
                    .timeout_global(Some(PATIENCE))
                    .build()
                    .into();
                let mut calls = Vec::new();
                for number in first.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    calls.push(call(&agent, &doors, number % FUNCTIONS, began));
                    std::thread::sleep(PAUSE);
                }
                calls
            })
        };
        let threads = (0..CALLERS).map(caller).collect::<std::io::Result<_>>()?;
        Ok(Self { began, stop, threads })
    }

    /// Time since the start of the clients.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Stops the clients after their current calls, and returns all calls.
    pub(super) fn stop(self) -> Result<Vec<ClientCall>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut calls = Vec::new();
        for thread in self.threads {
            match thread.join() {
                Ok(made) => calls.extend(made),
                Err(_) => bail!("a client panicked"),
            }
        }
        Ok(calls)
    }
}

/// Result of one attempt.
enum Said {
    Answered,
    /// The node did not accept the call.
    Away,
    Lost(String),
}

fn call(agent: &Agent, doors: &Doors, function: usize, first: Instant) -> ClientCall {
    let began = first.elapsed();
    let mut turned_away = 0;
    let lost = loop {
        match ask(agent, doors.next(), function) {
            Said::Answered => break None,
            Said::Lost(why) => break Some(why),
            Said::Away if turned_away == DOORS_MAX => break Some("no node accepts the call".to_owned()),
            Said::Away => {
                turned_away += 1;
                std::thread::sleep(AGAIN_AFTER);
            }
        }
    };
    let is_idempotent = function.is_multiple_of(2);
    ClientCall { began, took: first.elapsed().saturating_sub(began), is_idempotent, turned_away, lost }
}

fn ask(agent: &Agent, door: &str, function: usize) -> Said {
    let url = format!("{door}/fn/f{function}/m{function}?shape=1,1");
    let mut answer = match agent.post(&url).send(&1_f32.to_le_bytes()[..]) {
        Ok(answer) => answer,
        Err(ureq::Error::Io(error)) if error.kind() == ErrorKind::ConnectionRefused => return Said::Away,
        Err(ureq::Error::ConnectionFailed) => return Said::Away,
        Err(error) => return Said::Lost(error.to_string()),
    };
    let status = answer.status();
    let body = match answer.body_mut().read_to_vec() {
        Ok(_) if status.is_success() => return Said::Answered,
        Ok(body) => body,
        Err(error) => return Said::Lost(error.to_string()),
    };
    let text = String::from_utf8_lossy(&body);
    if status == 503 && text.contains("shutting down") {
        return Said::Away;
    }
    Said::Lost(format!("{status}: {}", text.trim()))
}
