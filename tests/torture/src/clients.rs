//! Clients that change and call everything, and record requests and answers.
//!
//! Each client has its own function and model, so that their writes are in a known order; it calls
//! those of all clients. Objects are shared by all clients.

use crate::recorder::Recorder;
use crate::requests::Requests;
use bytes::Bytes;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use reqwest::RequestBuilder;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::sleep;
use weir_torture::history::{Action, Answer, Operation, Outcome};

/// Number of clients.
pub(crate) const CLIENTS: usize = 10;
/// Number of shared objects.
const OBJECTS: usize = 4;
/// Pause between two operations of a client, in milliseconds.
const PAUSE_MS: std::ops::Range<u64> = 5..120;
/// Pause before a request with an idempotency key is repeated.
const AGAIN_AFTER: Duration = Duration::from_millis(300);
/// Number of repetitions of a request with an idempotency key.
const REPEATED_MAX: usize = 8;
/// Chance that a client gives up early.
const IMPATIENT: f64 = 0.1;
/// Time limit of such a client, in milliseconds.
const IMPATIENT_MS: std::ops::Range<u64> = 20..2_000;
/// Number of accepted invocations whose results may be fetched.
const RECENT: usize = 64;
/// Number of versions that a rollback may choose, far below `versions_keep`.
const ROLL_BACK_MAX: usize = 8;
/// Number of attempts to make the first version of a client's function and model.
const SET_UP_MAX: usize = 20;

/// State that all clients share.
pub(crate) struct Shared {
    pub(crate) requests: Requests,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) component: Bytes,
    pub(crate) is_over: AtomicBool,
    /// Accepted invocations, the newest last.
    pub(crate) accepted: Mutex<VecDeque<String>>,
}

/// One client.
pub(crate) struct Client {
    index: usize,
    random: StdRng,
    shared: Arc<Shared>,
    /// Number of the next mark, value or token.
    next: u64,
    /// Acknowledged versions of its function, with their marks, the newest last.
    deployed: Vec<(u32, String)>,
    /// Version of the latest push, whether it was acknowledged or not.
    pushed: u32,
}

fn function(client: usize) -> String {
    format!("f{client}")
}

fn model(client: usize) -> String {
    format!("m{client}")
}

impl Client {
    pub(crate) fn new(index: usize, seed: u64, shared: Arc<Shared>) -> Self {
        // Different from the seed of the faults.
        let random =
            StdRng::seed_from_u64(seed.wrapping_add(index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Self { index, random, shared, next: 0, deployed: Vec::new(), pushed: 0 }
    }

    /// Makes the first versions of its function and model, and the objects. Returns whether the
    /// cluster acknowledged them.
    pub(crate) async fn set_up(&mut self) -> bool {
        for _ in 0..SET_UP_MAX {
            if self.deployed.is_empty() {
                self.deploy().await;
            }
            let is_pushed = self.push().await;
            let object = self.index % OBJECTS;
            let is_put = self.put(object).await;
            if is_pushed && is_put && !self.deployed.is_empty() {
                return true;
            }
        }
        false
    }

    /// Sends requests until the run is over.
    pub(crate) async fn run(mut self) {
        while !self.shared.is_over.load(Ordering::Relaxed) {
            self.operate().await;
            sleep(Duration::from_millis(self.random.random_range(PAUSE_MS))).await;
        }
    }

    /// One random operation. The weights are out of 100.
    async fn operate(&mut self) {
        let other = self.random.random_range(0..CLIENTS);
        let object = self.random.random_range(0..OBJECTS);
        match self.random.random_range(0..100) {
            0..30 => self.call(other).await,
            30..44 => self.infer(other).await,
            44..49 => self.deploy().await,
            49..53 => self.roll_back().await,
            53 => self.deploy_new_name().await,
            54..68 => self.submit(other).await,
            68..76 => self.fetch_result().await,
            76..84 => _ = self.put(object).await,
            84..97 => self.get(object).await,
            _ => _ = self.push().await,
        }
    }

    /// Sends a request to a node, and records the operation.
    async fn send(&mut self, node: usize, action: Action, request: RequestBuilder) -> Outcome {
        let request = if self.random.random_bool(IMPATIENT) {
            request.timeout(Duration::from_millis(self.random.random_range(IMPATIENT_MS)))
        } else {
            request
        };
        let recorder = &self.shared.recorder;
        let begin_us = recorder.now();
        let outcome = self.shared.requests.send(&action, request).await;
        let end_us = recorder.now();
        let client = self.index;
        recorder.operation(Operation { client, node, begin_us, end_us, action, outcome: outcome.clone() });
        outcome
    }

    fn node(&mut self) -> usize {
        self.random.random_range(0..self.shared.requests.nodes())
    }

    /// A mark, value or token that no other operation has.
    fn unique(&mut self) -> String {
        self.next += 1;
        format!("c{}-{}", self.index, self.next)
    }

    async fn deploy(&mut self) {
        let node = self.node();
        let mark = self.unique();
        // Most versions differ by their environment only, which needs no compilation.
        let component = if self.random.random_ratio(1, 8) {
            weir_tests::with_custom_section(&self.shared.component, &mark)
        } else {
            self.shared.component.clone()
        };
        let function = function(self.index);
        let request = self.shared.requests.deploy(node, &function, &mark, component);
        let action = Action::Deploy { function, mark: mark.clone() };
        if let Outcome::Acknowledged(Answer { version: Some(version), .. }) =
            self.send(node, action, request).await
        {
            self.deployed.push((version, mark));
        }
    }

    /// Deploys a function under a new name, and calls it at once at another node.
    async fn deploy_new_name(&mut self) {
        let node = self.node();
        let mark = self.unique();
        let function = format!("new-{mark}");
        let component = self.shared.component.clone();
        let request = self.shared.requests.deploy(node, &function, &mark, component);
        let deploy = Action::Deploy { function: function.clone(), mark };
        self.send(node, deploy, request).await;
        let other = (node + 1) % self.shared.requests.nodes();
        let request = self.shared.requests.call(other, &function, 0, "x");
        self.send(other, Action::Call { function }, request).await;
    }

    async fn roll_back(&mut self) {
        let recent = &self.deployed[self.deployed.len().saturating_sub(ROLL_BACK_MAX)..];
        let Some((version, mark)) = recent.choose(&mut self.random).cloned() else { return };
        let node = self.node();
        let function = function(self.index);
        let request = self.shared.requests.roll_back(node, &function, version);
        self.send(node, Action::RollBack { function, version, mark }, request).await;
    }

    async fn call(&mut self, other: usize) {
        let node = self.node();
        let nap_ms = if self.random.random_ratio(1, 4) { self.random.random_range(50..1_500) } else { 0 };
        let function = function(other);
        let request = self.shared.requests.call(node, &function, nap_ms, "x");
        self.send(node, Action::Call { function }, request).await;
    }

    /// Starts an asynchronous call; half of them with an idempotency key, which are repeated until
    /// they are accepted, and sometimes afterwards.
    async fn submit(&mut self, other: usize) {
        let token = self.unique();
        let key = self.random.random_bool(0.5).then(|| format!("key-{token}"));
        let nap_ms = if self.random.random_ratio(1, 3) { self.random.random_range(100..3_000) } else { 0 };
        let function = function(other);
        let attempts = if key.is_some() { REPEATED_MAX } else { 1 };
        for _ in 0..attempts {
            let node = self.node();
            let mut request = self.shared.requests.call(node, &function, nap_ms, &token);
            request = request.header("prefer", "respond-async");
            if let Some(key) = &key {
                request = request.header("idempotency-key", key);
            }
            let action =
                Action::Submit { function: function.clone(), token: token.clone(), key: key.clone() };
            if let Outcome::Acknowledged(Answer { id: Some(id), .. }) = self.send(node, action, request).await
            {
                let mut accepted = self.shared.accepted.lock();
                accepted.push_back(id);
                while accepted.len() > RECENT {
                    accepted.pop_front();
                }
                if self.random.random_ratio(4, 5) {
                    break;
                }
                continue;
            }
            sleep(AGAIN_AFTER).await;
        }
    }

    async fn fetch_result(&mut self) {
        let node = self.node();
        let id = {
            let accepted = self.shared.accepted.lock();
            let at = self.random.random_range(0..RECENT);
            accepted.get(at % accepted.len().max(1)).cloned()
        };
        let Some(id) = id else { return };
        let request = self.shared.requests.fetch_result(node, &id);
        self.send(node, Action::FetchResult { id }, request).await;
    }

    async fn put(&mut self, object: usize) -> bool {
        let node = self.node();
        let object = format!("o{object}");
        let value = self.unique();
        let request = self.shared.requests.put_object(node, &object, &value);
        let outcome = self.send(node, Action::PutObject { object, value }, request).await;
        matches!(outcome, Outcome::Acknowledged(_))
    }

    async fn get(&mut self, object: usize) {
        let node = self.node();
        let object = format!("o{object}");
        let request = self.shared.requests.get_object(node, &object);
        self.send(node, Action::GetObject { object }, request).await;
    }

    /// Pushes the next version of its model, and runs that version at once at another node.
    async fn push(&mut self) -> bool {
        let node = self.node();
        self.pushed += 1;
        let version = self.pushed;
        let model = model(self.index);
        let request = self.shared.requests.push(node, &model, version);
        let outcome = self.send(node, Action::Push { model: model.clone(), version }, request).await;
        let other = (node + 1) % self.shared.requests.nodes();
        let request = self.shared.requests.infer(other, &model, Some(version));
        self.send(other, Action::Infer { model, version: Some(version) }, request).await;
        matches!(outcome, Outcome::Acknowledged(_))
    }

    async fn infer(&mut self, other: usize) {
        let node = self.node();
        let model = model(other);
        let request = self.shared.requests.infer(node, &model, None);
        self.send(node, Action::Infer { model, version: None }, request).await;
    }
}
