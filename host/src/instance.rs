//! One fresh sandbox per invocation: made, called, measured and dropped here.

mod answer;
mod fault;
mod http02;
mod http03;
mod memory;
mod meter;
mod outbound;
mod output;
mod request;
mod state;
mod tensor;
mod usage;

pub(crate) use answer::{Answer, AnswerReceiver};
pub(crate) use fault::Fault;
pub(crate) use outbound::is_granted;
pub(crate) use output::OutputSink;
pub(crate) use request::{RequestBody, RequestCell, SharedBody};
pub(crate) use state::State;
pub(crate) use tensor::TensorAnswer;
pub(crate) use usage::Usage;

use crate::component::{Engines, Entry};
use crate::hostcalls::InferenceCtx;
use crate::telemetry::{Phase, Trace};
use meter::Metered;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Instrument;
use wasmtime::Store;
use weir_inference::Tensor;
use weir_types::FunctionManifest;

/// All that one invocation needs besides its input.
pub(crate) struct Sandbox {
    pub(crate) entry: Arc<Entry>,
    pub(crate) engines: Arc<Engines>,
    pub(crate) manifest: Arc<FunctionManifest>,
    pub(crate) sink: Arc<OutputSink>,
    pub(crate) inference: InferenceCtx,
    pub(crate) trace: Trace,
    pub(crate) deadline: tokio::time::Instant,
    pub(crate) usage: Arc<Usage>,
}

/// What the guest is called with, and where its answer goes.
pub(crate) enum Call {
    /// An HTTP function.
    Http { request: Box<http::Request<SharedBody>>, cell: RequestCell, answer: Answer },
    /// A tensor function.
    Tensor { inputs: Vec<(String, Tensor)>, answer: TensorAnswer },
}

/// How an invocation went.
#[derive(Debug)]
pub(crate) struct Report {
    /// Why there is no answer, or only a part of one.
    pub(crate) fault: Option<Fault>,
    /// From the sandbox being made to the guest's end.
    pub(crate) guest_time: Duration,
}

impl Sandbox {
    /// Run the guest to its end, within its limits. Dropping the future stops the guest at once.
    pub(crate) async fn run(self, call: Call) -> Report {
        let limits = self.manifest.limits.clone();
        let (engines, deadline, sink) = (self.engines.clone(), self.deadline, self.sink.clone());
        let (usage, started) = (self.usage.clone(), Instant::now());
        let cpu_time_max = Duration::from_millis(limits.cpu_time_ms);
        let guest = Box::pin(self.guest(call, started));
        let ended = Metered::new(guest, engines, usage.clone(), cpu_time_max, deadline).await;
        sink.finish();
        let fault = ended.unwrap_or_else(|overrun| Some(Fault::from_overrun(overrun, &limits)));
        if let Some(fault) = &fault {
            let detail = fault.detail.as_deref().unwrap_or(&fault.text);
            sink.note(format!("{}: {detail}", fault.code));
        }
        let guest_time = started.elapsed().saturating_sub(usage.instantiate_time().unwrap_or_default());
        Report { fault, guest_time }
    }

    async fn guest(self, call: Call, started: Instant) -> Option<Fault> {
        let mut store = self.store();
        let ended = self.call(&mut store, call, started).await;
        match ended {
            Ok(Ok(())) => None,
            Ok(Err(fault)) => Some(fault),
            Err(error) => Some(Fault::from_guest(&error, &store.data().memory, &self.manifest.limits)),
        }
    }

    fn store(&self) -> Store<State> {
        let limits = &self.manifest.limits;
        let engine = match &*self.entry {
            Entry::Http02(pre) => pre.engine(),
            Entry::Http03(pre) => pre.engine(),
            Entry::Tensor(pre) => pre.engine(),
        };
        let mut store = Store::new(
            engine,
            State::new(&self.manifest, &self.sink, self.inference.clone(), self.usage.clone()),
        );
        store.limiter(|state| &mut state.memory);
        store.set_epoch_deadline(1);
        store.epoch_deadline_async_yield_and_update(1);
        store.set_hostcall_fuel(usize::try_from(limits.host_call_bytes).unwrap_or(usize::MAX));
        store.set_max_component_handles(limits.handles as usize);
        store
    }

    async fn call(
        &self,
        store: &mut Store<State>,
        call: Call,
        started: Instant,
    ) -> wasmtime::Result<Result<(), Fault>> {
        let (making, calling) = (self.trace.phase(Phase::Instantiate), self.trace.phase(Phase::Guest));
        match (&*self.entry, call) {
            (Entry::Http02(pre), Call::Http { request, cell, answer }) => {
                let proxy = pre.instantiate_async(&mut *store).instrument(making).await?;
                self.usage.set_instantiate_time(started.elapsed());
                http02::handle(&proxy, store, *request, &cell, answer).instrument(calling).await
            }
            (Entry::Http03(pre), Call::Http { request, cell, answer }) => {
                let service = pre.instantiate_async(&mut *store).instrument(making).await?;
                self.usage.set_instantiate_time(started.elapsed());
                http03::handle(&service, store, *request, &cell, answer).instrument(calling).await
            }
            (Entry::Tensor(pre), Call::Tensor { inputs, answer }) => {
                let function = pre.instantiate_async(&mut *store).instrument(making).await?;
                self.usage.set_instantiate_time(started.elapsed());
                tensor::run(&function, store, inputs, answer).instrument(calling).await
            }
            (Entry::Http02(_) | Entry::Http03(_), Call::Tensor { .. })
            | (Entry::Tensor(_), Call::Http { .. }) => {
                wasmtime::bail!("the invocation does not fit the kind of function")
            }
        }
    }
}
