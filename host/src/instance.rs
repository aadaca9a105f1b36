//! The sandbox of an invocation: created, called and measured here. It is fresh and dropped with
//! the invocation, unless the function's manifest enables reuse: then it may have run earlier
//! invocations of the same version, all of which succeeded.

mod answer;
mod fault;
mod http02;
mod http03;
mod live;
mod memory;
mod meter;
mod outbound;
mod output;
mod request;
mod state;
mod tensor;
mod usage;

use answer::Torn;
pub(crate) use answer::{Answer, AnswerReceiver};
pub(crate) use fault::Fault;
pub(crate) use live::Instance;
pub(crate) use outbound::is_granted;
pub(crate) use output::{CurrentSink, OutputSink};
pub(crate) use request::{RequestBody, RequestCell, SharedBody};
pub(crate) use state::State;
pub(crate) use tensor::TensorAnswer;
pub(crate) use usage::Usage;

use crate::component::{Engines, Entry};
use crate::hostcalls::InferenceCtx;
use crate::telemetry::{FunctionMetrics, Phase, Trace};
use meter::Metered;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Instrument;
use weir_inference::Tensor;
use weir_types::FunctionManifest;

/// The context of one invocation, without its input.
pub(crate) struct Sandbox {
    pub(crate) entry: Arc<Entry>,
    pub(crate) engines: Arc<Engines>,
    pub(crate) manifest: Arc<FunctionManifest>,
    pub(crate) trace: Trace,
    pub(crate) deadline: tokio::time::Instant,
    pub(crate) lent: Lent,
    /// The metrics that count reusable instances when they are retired.
    pub(crate) counted: FunctionMetrics,
}

/// Per-invocation state lent to the instance.
pub(crate) struct Lent {
    pub(crate) sink: Arc<OutputSink>,
    pub(crate) inference: InferenceCtx,
    pub(crate) usage: Arc<Usage>,
}

/// The guest's input, and the channel for its response.
pub(crate) enum Call {
    /// An HTTP function.
    Http { request: Box<http::Request<SharedBody>>, cell: RequestCell, answer: Answer },
    /// A tensor function.
    Tensor { inputs: Vec<(String, Tensor)>, answer: TensorAnswer },
}

impl Call {
    /// The flag to set if the guest ends before its response is complete.
    fn torn(&self) -> Torn {
        match self {
            Self::Http { answer, .. } => answer.torn(),
            // A tensor function returns its outputs in one piece.
            Self::Tensor { .. } => Torn::default(),
        }
    }
}

/// The outcome of an invocation.
#[derive(Debug)]
pub(crate) struct Report {
    /// The reason why there is no response, or only part of one.
    pub(crate) fault: Option<Fault>,
    /// The time from the creation of the sandbox to the end of the guest.
    pub(crate) guest_time: Duration,
    /// The instance, if it may run another invocation of the same version.
    pub(crate) left: Option<Box<Instance>>,
}

impl Sandbox {
    /// Runs the guest to its end, within its limits. Uses `idle` if set: an instance that has run
    /// invocations of the same version. Dropping the future stops the guest at once.
    pub(crate) async fn run(self, idle: Option<Box<Instance>>, call: Call) -> Report {
        let limits = self.manifest.limits.clone();
        let (engines, deadline, sink) = (self.engines.clone(), self.deadline, self.lent.sink.clone());
        let (usage, started) = (self.lent.usage.clone(), Instant::now());
        let cpu_time_max = Duration::from_millis(limits.cpu_time_ms);
        let torn = call.torn();
        let guest = pin!(self.guest(idle, call, started));
        let ended = Metered::new(guest, engines, usage.clone(), cpu_time_max, deadline).await;
        sink.finish();
        let ended = ended.unwrap_or_else(|overrun| {
            // The guest is dropped on return. A guest that has already finished its response, which
            // the client has not read completely, is treated like any other here.
            torn.set();
            Err(Fault::from_overrun(overrun, &limits))
        });
        if let Err(fault) = &ended {
            let detail = fault.detail.as_deref().unwrap_or(&fault.text);
            sink.note(format!("{}: {detail}", fault.code));
        }
        let guest_time = started.elapsed().saturating_sub(usage.instantiate_time().unwrap_or_default());
        let (fault, left) = match ended {
            Ok(left) => (None, left),
            Err(fault) => (Some(fault), None),
        };
        Report { fault, guest_time, left }
    }

    /// Runs the guest. Returns its instance if the next invocation may use it.
    async fn guest(
        self,
        idle: Option<Box<Instance>>,
        call: Call,
        started: Instant,
    ) -> Result<Option<Box<Instance>>, Fault> {
        let Self { entry, manifest, trace, lent, counted, .. } = self;
        let (usage, torn) = (lent.usage.clone(), call.torn());
        let mut instance = match idle {
            Some(mut idle) => {
                idle.begin(lent);
                idle
            }
            None => Box::new(Instance::new(&entry, &manifest, lent, counted)),
        };
        let ended = match instance.start(&entry, &trace, &usage, started).await {
            Ok(()) => instance.call(call).instrument(trace.phase(Phase::Guest)).await,
            Err(error) => Err(error),
        };
        match ended {
            Ok(Ok(())) => Ok(manifest.reuse.as_ref().and_then(|reuse| instance.rest(reuse))),
            Ok(Err(fault)) => Err(fault),
            Err(error) => {
                if instance.is_writing() {
                    torn.set();
                }
                Err(Fault::from_guest(&error, instance.memory(), &manifest.limits))
            }
        }
    }
}
