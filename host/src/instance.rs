//! The sandbox of an invocation: made, called and measured here. It is a fresh one, dropped with the invocation, unless the function's
//! manifest asks for reuse; then it may be one that has run others of the same version of the function, each to a good end.

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

/// All that one invocation needs besides its input.
pub(crate) struct Sandbox {
    pub(crate) entry: Arc<Entry>,
    pub(crate) engines: Arc<Engines>,
    pub(crate) manifest: Arc<FunctionManifest>,
    pub(crate) trace: Trace,
    pub(crate) deadline: tokio::time::Instant,
    pub(crate) lent: Lent,
    /// Where instances are counted that may be used again and are not.
    pub(crate) counted: FunctionMetrics,
}

/// What an instance has of the invocation that it runs, for as long as it does.
pub(crate) struct Lent {
    pub(crate) sink: Arc<OutputSink>,
    pub(crate) inference: InferenceCtx,
    pub(crate) usage: Arc<Usage>,
}

/// What the guest is called with, and where its answer goes.
pub(crate) enum Call {
    /// An HTTP function.
    Http { request: Box<http::Request<SharedBody>>, cell: RequestCell, answer: Answer },
    /// A tensor function.
    Tensor { inputs: Vec<(String, Tensor)>, answer: TensorAnswer },
}

impl Call {
    /// To be told should the guest end before its answer does.
    fn torn(&self) -> Torn {
        match self {
            Self::Http { answer, .. } => answer.torn(),
            // It answers all at once.
            Self::Tensor { .. } => Torn::default(),
        }
    }
}

/// How an invocation went.
#[derive(Debug)]
pub(crate) struct Report {
    /// Why there is no answer, or only a part of one.
    pub(crate) fault: Option<Fault>,
    /// From the sandbox being made to the guest's end.
    pub(crate) guest_time: Duration,
    /// The instance, if it may run another invocation of the same version.
    pub(crate) left: Option<Box<Instance>>,
}

impl Sandbox {
    /// Run the guest to its end, within its limits, in `idle` if there is one, which has run others of the same version. Dropping the future
    /// stops the guest at once.
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
            // The guest goes when this returns. One that had closed its answer already, and whose client has not read so far, is not told apart here.
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

    /// The guest's run, and what it leaves of its instance for the next.
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
