//! One sandbox with a component in it, for as many invocations as it is used for; at one time it runs one of them.

use super::memory::MemoryMeter;
use super::{Call, Fault, Lent, State, Usage, http02, http03, tensor};
use crate::component::Entry;
use crate::hostcalls::Stage;
use crate::telemetry::{FunctionMetrics, Phase, Retired, Trace};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Instrument;
use wasmtime::Store;
use wasmtime_wasi_http::p2::bindings::Proxy;
use wasmtime_wasi_http::p3::bindings::Service;
use weir_types::{FunctionManifest, Reuse};

/// A sandbox. It is given up by being dropped.
pub(crate) struct Instance {
    /// Counts it when it is given up; none where it is for one invocation alone.
    counted: Option<FunctionMetrics>,
    /// Why it would be given up now.
    end: Retired,
    store: Store<State>,
    /// None until it has been started.
    exports: Option<Exports>,
    made: Instant,
    /// What it held when it was started.
    at_first: Held,
    calls: u32,
}

/// The typed ways to call it.
enum Exports {
    Http02(Proxy),
    Http03(Service),
    Tensor(Stage),
}

/// What an instance holds.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    memory_bytes: u64,
    /// Tasks, streams and futures of WASI 0.3, which have a table of their own.
    concurrent: usize,
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance").field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl Instance {
    /// A fresh one for an invocation. `counted` is told of its end, where it may be used again.
    pub(super) fn new(
        entry: &Entry,
        manifest: &Arc<FunctionManifest>,
        lent: Lent,
        counted: FunctionMetrics,
    ) -> Self {
        let engine = match entry {
            Entry::Http02(pre) => pre.engine(),
            Entry::Http03(pre) => pre.engine(),
            Entry::Tensor(pre) => pre.engine(),
        };
        let limits = &manifest.limits;
        let mut store = Store::new(engine, State::new(manifest, lent));
        store.limiter(|state| &mut state.memory);
        store.set_epoch_deadline(1);
        store.epoch_deadline_async_yield_and_update(1);
        // Both are for as long as the store lives; the first counts anew for each host call.
        store.set_hostcall_fuel(usize::try_from(limits.host_call_bytes).unwrap_or(usize::MAX));
        store.set_max_component_handles(limits.handles as usize);
        Self {
            counted: manifest.reuse.is_some().then_some(counted),
            end: Retired::Failed,
            store,
            exports: None,
            made: Instant::now(),
            at_first: Held::default(),
            calls: 0,
        }
    }

    /// Make it ready for another invocation than those before.
    pub(super) fn begin(&mut self, lent: Lent) {
        self.store.data_mut().begin(lent);
        // The epoch went on while it lay idle.
        self.store.set_epoch_deadline(1);
    }

    /// Bring the component to life, if that has not been done. The invocation has gone on since `started`.
    pub(super) async fn start(
        &mut self,
        entry: &Entry,
        trace: &Trace,
        usage: &Usage,
        started: Instant,
    ) -> wasmtime::Result<()> {
        if self.exports.is_some() {
            return Ok(());
        }
        let (store, making) = (&mut self.store, trace.phase(Phase::Instantiate));
        let exports = match entry {
            Entry::Http02(pre) => Exports::Http02(pre.instantiate_async(store).instrument(making).await?),
            Entry::Http03(pre) => Exports::Http03(pre.instantiate_async(store).instrument(making).await?),
            Entry::Tensor(pre) => Exports::Tensor(pre.instantiate_async(store).instrument(making).await?),
        };
        self.exports = Some(exports);
        if self.counted.is_some() {
            self.at_first = self.held();
        }
        usage.set_instantiate_time(started.elapsed());
        Ok(())
    }

    /// Give it a call.
    pub(super) async fn call(&mut self, call: Call) -> wasmtime::Result<Result<(), Fault>> {
        self.calls = self.calls.saturating_add(1);
        let store = &mut self.store;
        match (&self.exports, call) {
            (Some(Exports::Http02(proxy)), Call::Http { request, cell, answer }) => {
                http02::handle(proxy, store, *request, &cell, answer).await
            }
            (Some(Exports::Http03(service)), Call::Http { request, cell, answer }) => {
                http03::handle(service, store, *request, &cell, answer).await
            }
            (Some(Exports::Tensor(stage)), Call::Tensor { inputs, answer }) => {
                tensor::run(stage, store, inputs, answer).await
            }
            _ => wasmtime::bail!("the invocation does not fit the kind of function"),
        }
    }

    /// Whether it may be in the middle of its answer's body. Of WASI 0.3, where the guest's own tasks write that, nothing else is known.
    pub(super) fn is_writing(&mut self) -> bool {
        matches!(self.exports, Some(Exports::Http03(_))) || self.store.data_mut().has_open_body()
    }

    /// What it has taken of its memory limits.
    pub(super) fn memory(&self) -> &MemoryMeter {
        &self.store.data().memory
    }

    /// Lay it to rest, after a call that ended well, for the next one; it is given up where there is to be no next one.
    pub(super) fn rest(mut self: Box<Self>, reuse: &Reuse) -> Option<Box<Self>> {
        let may_lie_idle = self.store.data_mut().rest(reuse.handles_max);
        let held = self.held();
        let concurrent = held.concurrent.saturating_sub(self.at_first.concurrent);
        let growth_bytes = held.memory_bytes.saturating_sub(self.at_first.memory_bytes);
        let end = if !may_lie_idle || concurrent > reuse.handles_max as usize {
            Retired::Handles
        } else if self.calls >= reuse.calls_max {
            Retired::Calls
        } else if growth_bytes > reuse.memory_growth_bytes {
            Retired::Memory
        } else if self.is_aged(reuse, Instant::now()) {
            Retired::Age
        } else {
            return Some(self);
        };
        self.end_as(end);
        None
    }

    /// It is about to be given up: count that as `why`.
    pub(crate) fn end_as(&mut self, why: Retired) {
        self.end = why;
    }

    /// Whether it is too old at `now` for another call.
    pub(crate) fn is_aged(&self, reuse: &Reuse, now: Instant) -> bool {
        now.saturating_duration_since(self.made) >= Duration::from_millis(reuse.age_ms)
    }

    fn held(&mut self) -> Held {
        let memory_bytes = self.store.data().memory.memory_bytes() as u64;
        let concurrent = self.store.concurrent_resource_table().map_or(0, |table| table.iter_mut().count());
        Held { memory_bytes, concurrent }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(counted) = &self.counted {
            counted.retired(self.end);
        }
    }
}
