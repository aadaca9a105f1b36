//! The sandbox of an invocation: created, called and measured here. It is fresh and dropped with
//! the invocation, unless the function's manifest enables reuse: then it may have run earlier
//! invocations of the same version, all of which succeeded.

mod answer;
mod extension;
mod fault;
mod http02;
mod http03;
mod lengths;
mod link;
mod live;
mod memory;
mod meter;
mod outbound;
mod output;
mod request;
mod state;
mod tensor;
mod usage;

use answer::AbortFlag;
pub use answer::{AnswerReceiver, ResponseSender};
pub use extension::DeadlineExtension;
pub(crate) use link::linker;
pub use link::{LinkError, LinkedComponent, Needs};
pub use live::Instance;
pub use output::{CurrentSink, OutputSink};
pub use request::{GuestRequestBody, RequestCell, SharedBody};
pub use state::InstanceState;
pub use tensor::TensorAnswer;
pub use usage::SandboxUsage;

use crate::engine::Engines;
use crate::hostcalls::InferenceCtx;
use crate::sources;
use crate::{SecretEnv, TenantMemory};
use meter::{GuestTimes, MeteredGuest};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_call::Fault;
use weir_call::body::BodyOverrun;
use weir_inference::Tensor;
use weir_outbound::TenantConnector;
use weir_telemetry::{FunctionMetrics, Phase, ReservedSpan, Trace};
use weir_types::FunctionManifest;

/// The context of one invocation, without its input.
pub struct Sandbox {
    /// The function's component, linked.
    pub entry: Arc<LinkedComponent>,
    /// The engines, whose epoch ticks interrupt the guest.
    pub engines: Arc<Engines>,
    /// The manifest of the function's version.
    pub manifest: Arc<FunctionManifest>,
    /// The invocation's trace.
    pub trace: Trace,
    /// The span of the guest.
    pub guest_span: ReservedSpan,
    /// The time at which the guest is stopped.
    pub deadline: tokio::time::Instant,
    /// A later deadline, for a guest that serves a WebSocket.
    pub extension: Option<DeadlineExtension>,
    /// The state that the instance has for this invocation.
    pub ctx: InvocationCtx,
    /// The secrets of a new instance.
    pub secrets: SecretEnv,
    /// The metrics that count reusable instances when they are retired.
    pub counted: FunctionMetrics,
}

/// Per-invocation state lent to the instance.
pub struct InvocationCtx {
    /// The log output.
    pub sink: Arc<OutputSink>,
    /// The context of the inference calls.
    pub inference: InferenceCtx,
    /// The counters of CPU time and memory.
    pub usage: Arc<SandboxUsage>,
    /// The connector of the function's tenant.
    pub connector: TenantConnector,
    /// The memory of all guests of the function's tenant.
    pub memory: TenantMemory,
}

/// The guest's input, and the channel for its response.
pub enum GuestCall {
    /// An HTTP function.
    Http {
        /// The request with its body as a stream.
        request: Box<http::Request<SharedBody>>,
        /// The body and the response, shared with the guest's tensor calls.
        cell: RequestCell,
        /// The channel for the response.
        answer: ResponseSender,
    },
    /// A tensor function.
    Tensor {
        /// The inputs by name, which the guest then owns.
        inputs: Vec<(String, Tensor)>,
        /// The channel for the outputs.
        answer: TensorAnswer,
    },
}

impl GuestCall {
    /// The signal to send if the guest exceeds a limit of time.
    fn overrun(&self) -> BodyOverrun {
        match self {
            Self::Http { answer, .. } => answer.overrun(),
            Self::Tensor { .. } => BodyOverrun::default(),
        }
    }

    /// The flag to set if the guest ends before its response is complete.
    fn abort_flag(&self) -> AbortFlag {
        match self {
            Self::Http { answer, .. } => answer.abort_flag(),
            // A tensor function returns its outputs in one piece.
            Self::Tensor { .. } => AbortFlag::default(),
        }
    }
}

/// The outcome of an invocation.
#[derive(Debug)]
pub struct InvocationReport {
    /// The reason why there is no response, or only part of one.
    pub fault: Option<Fault>,
    /// The time from the creation of the sandbox to the end of the guest.
    pub guest_time: Duration,
    /// The instance, if it may run another invocation of the same version.
    pub left: Option<Box<Instance>>,
}

impl Sandbox {
    /// Runs the guest to its end, within its limits. Uses `idle` if set: an instance that has run
    /// invocations of the same version. Dropping the future stops the guest at once.
    pub async fn run(self, idle: Option<Box<Instance>>, call: GuestCall) -> InvocationReport {
        let limits = self.manifest.limits.clone();
        let engines = self.engines.clone();
        let times = GuestTimes {
            cpu_time_max: Duration::from_millis(limits.cpu_time_ms),
            deadline: self.deadline,
            extension: self.extension.clone(),
        };
        let sink = self.ctx.sink.clone();
        let usage = self.ctx.usage.clone();
        let started = Instant::now();
        let abort_flag = call.abort_flag();
        let signal = call.overrun();
        let guest = pin!(self.guest(idle, call, started));
        let ended = MeteredGuest::new(guest, engines, usage.clone(), times).await;
        sink.finish();
        let ended = ended.unwrap_or_else(|overrun| {
            // The guest is dropped on return. A guest that has already finished its response, which
            // the client has not read completely, is treated like any other here.
            abort_flag.set();
            signal.set();
            Err(fault::overrun(overrun, &limits))
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
        InvocationReport { fault, guest_time, left }
    }

    /// Runs the guest. Returns its instance if the next invocation may use it.
    async fn guest(
        self,
        idle: Option<Box<Instance>>,
        call: GuestCall,
        started: Instant,
    ) -> Result<Option<Box<Instance>>, Fault> {
        let Self { entry, manifest, trace, guest_span, ctx, secrets, counted, .. } = self;
        let usage = ctx.usage.clone();
        let abort_flag = call.abort_flag();
        let mut instance = match idle {
            Some(mut idle) => {
                idle.begin(ctx);
                idle
            }
            None => Box::new(Instance::new(&entry, &manifest, ctx, &secrets, counted)),
        };
        // The instance has its copy.
        drop(secrets);
        let ended = match instance.start(&entry, &trace, &usage, started).await {
            Ok(()) => guest_span.start(Phase::Guest).around(instance.call(call)).await,
            Err(error) => Err(error),
        };
        match ended {
            Ok(Ok(())) => Ok(match &manifest.reuse {
                Some(reuse) => instance.rest(reuse).await,
                None => None,
            }),
            Ok(Err(fault)) => Err(fault),
            Err(error) => {
                if instance.is_writing() {
                    abort_flag.set();
                }
                let trace = sources::located(&error, entry.sources()).await;
                Err(fault::ended(&error, trace, instance.memory(), &manifest.limits))
            }
        }
    }
}
