//! Places for instances, and the instances that lie idle in some of them.
//!
//! The allocators behind the engines have so many places. An invocation holds one while it runs; an instance that may run another one keeps
//! its place and waits there. What ends its wait: an invocation of the same version of its function takes it; an invocation finds no place
//! free, or too many wait already, and the one that has waited longest goes; it has waited for `reuse.idle_ms`, or is `reuse.age_ms` old; its
//! version is not the active one any more; the node shuts down.

use crate::instance::{Fault, Instance};
use crate::registry::Deployment;
use crate::telemetry::{Metrics, Retired};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_types::ErrorCode;

/// The places of one node.
pub(crate) struct Slots {
    free: Arc<Semaphore>,
    idle: Mutex<Idle>,
    /// Instances that may wait at once, over all functions.
    idle_max: usize,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Idle {
    /// Those that have waited longest come first.
    waiting: VecDeque<Waiting>,
    /// Invocations that found no place free. While there are any, no instance keeps one.
    wanted: usize,
    is_closed: bool,
}

/// An instance that waits in its place.
struct Waiting {
    since: Instant,
    deployment: Arc<Deployment>,
    instance: Box<Instance>,
    permit: OwnedSemaphorePermit,
}

/// A place for an invocation, and what is in it.
pub(crate) struct Slot {
    /// An instance to use again; none where a fresh one is to be made.
    pub(crate) idle: Option<Box<Instance>>,
    pub(crate) permit: OwnedSemaphorePermit,
}

impl Slots {
    pub(crate) fn new(slots: usize, idle_max: usize, metrics: Arc<Metrics>) -> Self {
        Self { free: Arc::new(Semaphore::new(slots)), idle: Mutex::default(), idle_max, metrics }
    }

    /// A place for an invocation. The caller bounds the wait by its deadline; one that must not wait is refused where no place is free.
    pub(crate) async fn take(&self, deployment: &Arc<Deployment>, may_wait: bool) -> Result<Slot, Fault> {
        if deployment.manifest.reuse.is_some()
            && let Some(Waiting { instance, permit, .. }) = self.take_idle(deployment)
        {
            deployment.metrics.instance(false);
            return Ok(Slot { idle: Some(instance), permit });
        }
        let permit = match self.free.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) if !may_wait => {
                let text = "all instance slots are taken (instances_max), and a function that a function calls waits for none";
                return Err(Fault::new(ErrorCode::QueueFull, text));
            }
            Err(_) => self.wait().await?,
        };
        deployment.metrics.instance(true);
        Ok(Slot { idle: None, permit })
    }

    /// Have `instance` wait for the next invocation in the place that it has.
    pub(crate) fn keep(
        &self,
        deployment: &Arc<Deployment>,
        instance: Box<Instance>,
        permit: OwnedSemaphorePermit,
    ) {
        let function_max = deployment.manifest.reuse.as_ref().map_or(0, |reuse| reuse.idle_max as usize);
        let kept = Waiting { since: Instant::now(), deployment: deployment.clone(), instance, permit };
        self.retire(|idle| {
            let Idle { waiting, wanted, is_closed } = idle;
            let node_max = if *wanted > 0 || *is_closed { 0 } else { self.idle_max };
            waiting.push_back(kept);
            let of_function = |one: &Waiting| Arc::ptr_eq(&one.deployment, deployment);
            let over = if node_max == 0 {
                waiting.pop_back()
            } else if waiting.iter().filter(|one| of_function(one)).count() > function_max {
                waiting.iter().position(of_function).and_then(|at| waiting.remove(at))
            } else if waiting.len() > node_max {
                waiting.pop_front()
            } else {
                None
            };
            over.map(|over| (over, Retired::Room)).into_iter().collect()
        });
    }

    /// Give up what has waited too long, or belongs to a version that is not current.
    pub(crate) fn sweep(&self, is_current: impl Fn(&Arc<Deployment>) -> bool) {
        let now = Instant::now();
        self.retire(|idle| {
            let mut over = Vec::new();
            for one in std::mem::take(&mut idle.waiting) {
                match one.end(now) {
                    None if is_current(&one.deployment) => idle.waiting.push_back(one),
                    cause => over.push((one, cause.unwrap_or(Retired::Replaced))),
                }
            }
            over
        });
    }

    /// From now on, let no instance wait.
    pub(crate) fn close(&self) {
        self.retire(|idle| {
            idle.is_closed = true;
            std::mem::take(&mut idle.waiting).into_iter().map(|one| (one, Retired::Stopping)).collect()
        });
    }

    /// Wait for a place, with those that lie idle making room.
    async fn wait(&self) -> Result<OwnedSemaphorePermit, Fault> {
        let wanted = Wanted(self);
        self.retire(|idle| {
            idle.wanted += 1;
            idle.waiting.pop_front().map(|one| (one, Retired::Room)).into_iter().collect()
        });
        let permit = self.free.clone().acquire_owned().await;
        drop(wanted);
        permit.map_err(|_| Fault::new(ErrorCode::Unavailable, "the node is shutting down"))
    }

    /// The instance of this very version that has waited least: its memory is the warmest.
    fn take_idle(&self, deployment: &Arc<Deployment>) -> Option<Waiting> {
        let (now, mut taken) = (Instant::now(), None);
        self.retire(|idle| {
            let mut over = Vec::new();
            while let Some(at) = idle.waiting.iter().rposition(|one| Arc::ptr_eq(&one.deployment, deployment))
                && let Some(one) = idle.waiting.remove(at)
            {
                match one.end(now) {
                    None => {
                        taken = Some(one);
                        break;
                    }
                    Some(cause) => over.push((one, cause)),
                }
            }
            over
        });
        taken
    }

    /// Change who waits, and give up what `change` takes out. That is dropped outside the lock, since its memory is cleared then.
    fn retire(&self, change: impl FnOnce(&mut Idle) -> Vec<(Waiting, Retired)>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let over = change(&mut idle);
        self.metrics.instances_idle.set(i64::try_from(idle.waiting.len()).unwrap_or(i64::MAX));
        drop(idle);
        over.into_iter().for_each(|(mut one, cause)| one.instance.end_as(cause));
    }
}

impl Waiting {
    /// Why it may not be used at `now`, if so.
    fn end(&self, now: Instant) -> Option<Retired> {
        let reuse = self.deployment.manifest.reuse.as_ref()?;
        let waited = now.saturating_duration_since(self.since);
        if waited >= Duration::from_millis(reuse.idle_ms) {
            Some(Retired::Idle)
        } else {
            self.instance.is_aged(reuse, now).then_some(Retired::Age)
        }
    }
}

/// An invocation that waits for a place, until it has one or gives up.
struct Wanted<'a>(&'a Slots);

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).wanted -= 1;
    }
}
