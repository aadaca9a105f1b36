//! A sandbox with an instantiated component. Runs one invocation at a time, and several in
//! succession if reused.

use super::link::{LinkedComponent, LinkedExports};
use super::memory::MemoryMeter;
use super::{GuestCall, InstanceState, InvocationCtx, SandboxUsage, http02, http03, tensor};
use crate::SecretEnv;
use crate::hostcalls::Stage;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wasmtime::Store;
use wasmtime_wasi_http::p2::bindings::Proxy;
use wasmtime_wasi_http::p3::bindings::Service;
use weir_call::Fault;
use weir_telemetry::{FunctionMetrics, Phase, Retired, Trace};
use weir_types::{FunctionManifest, Reuse};

/// A sandbox. Dropping it retires it.
pub struct Instance {
    /// The metrics that count its retirement; `None` for an instance without reuse.
    counted: Option<FunctionMetrics>,
    /// The reason to report if it is dropped now.
    end: Retired,
    store: Store<InstanceState>,
    /// `None` until it has been started.
    exports: Option<Exports>,
    made: Instant,
    /// The resources that it held right after its start.
    at_first: InstanceResources,
    calls: u32,
}

/// The typed exports of the component.
enum Exports {
    Http02(Proxy),
    Http03(Service),
    Tensor(Stage),
}

/// The resources that an instance holds.
#[derive(Debug, Clone, Copy, Default)]
struct InstanceResources {
    memory_bytes: u64,
    /// Tasks, streams and futures of WASI 0.3, which have a separate table.
    concurrent: usize,
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance").field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl Instance {
    /// Creates a fresh instance for an invocation, with `secrets` among its variables. The end of a
    /// reusable instance is counted in `counted`.
    pub(super) fn new(
        entry: &LinkedComponent,
        manifest: &Arc<FunctionManifest>,
        ctx: InvocationCtx,
        secrets: &SecretEnv,
        counted: FunctionMetrics,
    ) -> Self {
        let engine = match &entry.exports {
            LinkedExports::Http02(pre) => pre.engine(),
            LinkedExports::Http03(pre) => pre.engine(),
            LinkedExports::Tensor(pre) => pre.engine(),
        };
        let limits = &manifest.limits;
        let mut store = Store::new(engine, InstanceState::new(manifest, ctx, secrets));
        store.limiter(|state| &mut state.memory);
        store.set_epoch_deadline(1);
        store.epoch_deadline_async_yield_and_update(1);
        // Both limits last as long as the store; the first is reset for each host call.
        store.set_hostcall_fuel(usize::try_from(limits.host_call_bytes).unwrap_or(usize::MAX));
        store.set_max_component_handles(limits.handles as usize);
        Self {
            counted: manifest.reuse.is_some().then_some(counted),
            end: Retired::Failed,
            store,
            exports: None,
            made: Instant::now(),
            at_first: InstanceResources::default(),
            calls: 0,
        }
    }

    /// Prepares the instance for its next invocation.
    pub(super) fn begin(&mut self, ctx: InvocationCtx) {
        self.store.data_mut().begin(ctx);
        // The epoch advanced while the instance was idle.
        self.store.set_epoch_deadline(1);
    }

    /// Instantiates the component, unless that is done. The creation of the sandbox began at
    /// `started`.
    pub(super) async fn start(
        &mut self,
        entry: &LinkedComponent,
        trace: &Trace,
        usage: &SandboxUsage,
        started: Instant,
    ) -> wasmtime::Result<()> {
        if self.exports.is_some() {
            return Ok(());
        }
        let store = &mut self.store;
        let exports = match &entry.exports {
            LinkedExports::Http02(pre) => {
                Exports::Http02(trace.during(Phase::Instantiate, pre.instantiate_async(store)).await?)
            }
            LinkedExports::Http03(pre) => {
                Exports::Http03(trace.during(Phase::Instantiate, pre.instantiate_async(store)).await?)
            }
            LinkedExports::Tensor(pre) => {
                Exports::Tensor(trace.during(Phase::Instantiate, pre.instantiate_async(store)).await?)
            }
        };
        self.exports = Some(exports);
        if self.counted.is_some() {
            self.at_first = self.held();
        }
        usage.set_instantiate_time(started.elapsed());
        Ok(())
    }

    /// Runs a call.
    pub(super) async fn call(&mut self, call: GuestCall) -> wasmtime::Result<Result<(), Fault>> {
        self.calls = self.calls.saturating_add(1);
        let store = &mut self.store;
        match (&self.exports, call) {
            (Some(Exports::Http02(proxy)), GuestCall::Http { request, cell, answer }) => {
                http02::handle(proxy, store, *request, &cell, answer).await
            }
            (Some(Exports::Http03(service)), GuestCall::Http { request, cell, answer }) => {
                http03::handle(service, store, *request, &cell, answer).await
            }
            (Some(Exports::Tensor(stage)), GuestCall::Tensor { inputs, answer }) => {
                tensor::run(stage, store, inputs, answer).await
            }
            _ => wasmtime::bail!("the invocation does not fit the kind of function"),
        }
    }

    /// Whether the guest may still be writing the body of its response. Always true for WASI 0.3,
    /// where the guest's own tasks write the body and the host cannot observe when they finish.
    pub(super) fn is_writing(&mut self) -> bool {
        matches!(self.exports, Some(Exports::Http03(_))) || self.store.data_mut().has_open_body()
    }

    /// The usage of its memory limits.
    pub(super) fn memory(&self) -> &MemoryMeter {
        &self.store.data().memory
    }

    /// Prepares the instance for its next call, after one that succeeded. Retires it if it may not
    /// be reused.
    pub(super) async fn rest(mut self: Box<Self>, reuse: &Reuse) -> Option<Box<Self>> {
        self.store.data_mut().fetch_tensors().await;
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

    /// Sets the reason for its imminent retirement.
    pub fn end_as(&mut self, why: Retired) {
        self.end = why;
    }

    /// Whether it is too old at `now` for another call.
    pub fn is_aged(&self, reuse: &Reuse, now: Instant) -> bool {
        now.saturating_duration_since(self.made) >= Duration::from_millis(reuse.age_ms)
    }

    fn held(&mut self) -> InstanceResources {
        let memory_bytes = self.store.data().memory.memory_bytes() as u64;
        let concurrent = self.store.concurrent_resource_table().map_or(0, |table| table.iter_mut().count());
        InstanceResources { memory_bytes, concurrent }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(counted) = &self.counted {
            counted.retired(self.end);
        }
    }
}
