//! The contents of an instance's store: the instance's own state, and the state of its current
//! invocation.

use super::InvocationCtx;
use super::memory::MemoryMeter;
use super::outbound::Outbound;
use super::output::{Channel, CurrentSink, GuestStream};
use crate::SecretEnv;
use crate::hostcalls::{
    ExecutionContext, InferenceCtx, InferenceView, NnError, NnTensor, OpenModel, to_host,
};
use std::any::Any;
use std::sync::Arc;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, DynPollable};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::p2::body::HostOutgoingBody;
use wasmtime_wasi_http::p2::types::HostIncomingRequest;
use wasmtime_wasi_http::{FieldMap, WasiHttpCtx, WasiHttpCtxView, WasiHttpView};
use weir_inference::Value;
use weir_telemetry::Trace;
use weir_types::FunctionManifest;

/// The state that host calls work on.
pub struct InstanceState {
    wasi: WasiCtx,
    http: WasiHttpCtx,
    table: ResourceTable,
    outbound: Outbound,
    sink: CurrentSink,
    pub(super) memory: MemoryMeter,
    inference: InferenceCtx,
}

impl InstanceState {
    pub(super) fn new(manifest: &Arc<FunctionManifest>, ctx: InvocationCtx, secrets: &SecretEnv) -> Self {
        let InvocationCtx { sink: output, inference, usage, connector, memory } = ctx;
        let sink = CurrentSink::default();
        sink.set(Some(output));
        let mut wasi = WasiCtx::builder();
        wasi.stdout(GuestStream { sink: sink.clone(), channel: Channel::Stdout })
            .stderr(GuestStream { sink: sink.clone(), channel: Channel::Stderr })
            .allow_tcp(false)
            .allow_udp(false);
        for (key, value) in &manifest.env {
            wasi.env(key, value);
        }
        for (key, value) in secrets.iter() {
            wasi.env(key, value);
        }
        let mut table = ResourceTable::new();
        table.set_max_capacity(manifest.limits.handles as usize);
        let mut outbound = Outbound::new(manifest.clone(), connector, sink.clone());
        outbound.set_trace(inference.trace.clone());
        Self {
            wasi: wasi.build(),
            http: WasiHttpCtx::new(),
            table,
            outbound,
            sink,
            memory: MemoryMeter::new(&manifest.limits, usage, memory),
            inference,
        }
    }

    /// Starts the next invocation, of the same function. Tensors that the guest still holds count
    /// against its limit.
    pub(super) fn begin(&mut self, ctx: InvocationCtx) {
        let InvocationCtx { sink: output, inference, usage, .. } = ctx;
        self.sink.set(Some(output));
        self.outbound.set_trace(inference.trace.clone());
        self.memory.begin(usage);
        let held = self.inference.tensor_bytes_held();
        self.inference = inference;
        self.inference.tensor_bytes_left = self.inference.tensor_bytes_left.saturating_sub(held);
    }

    /// Moves the tensors that the guest holds to the host, at the end of an invocation: an idle
    /// instance holds no device memory. A tensor that was lost with its device stays as it is, and
    /// so the instance is retired.
    pub(super) async fn fetch_tensors(&mut self) {
        let is_on_device = |value: &&mut Value| value.device().is_some();
        let values = self.table.iter_mut().filter_map(|entry| entry.downcast_mut()).filter(is_on_device);
        let mut fetched = Vec::new();
        for value in values.map(|value| value.clone()).collect::<Vec<_>>() {
            fetched.push(to_host(value).await);
        }
        let values = self.table.iter_mut().filter_map(|entry| entry.downcast_mut()).filter(is_on_device);
        for (value, fetched) in values.zip(fetched) {
            if let Ok(tensor) = fetched {
                *value = tensor.into();
            }
        }
    }

    /// Ends the invocation. Drops all of its state except for resources that the guest itself
    /// holds. Returns whether the instance may be idle with these resources: only tensors, models,
    /// requests without their bodies, headers and standard streams are allowed, at most
    /// `handles_max` in total.
    pub(super) fn rest(&mut self, handles_max: u32) -> bool {
        self.sink.set(None);
        self.outbound.set_trace(Trace::none());
        self.inference.rest();
        let mut held = 0;
        self.table.iter_mut().all(|entry| {
            held += 1;
            held <= handles_max && may_lie_idle(entry)
        })
    }

    /// Whether the guest has a body that it has neither finished nor dropped.
    pub(super) fn has_open_body(&mut self) -> bool {
        self.table.iter_mut().any(|entry| entry.is::<HostOutgoingBody>())
    }

    /// The destination of the guest's output.
    pub(super) fn sink(&self) -> &CurrentSink {
        &self.sink
    }

    /// The state that inference calls work on.
    pub fn inference(&mut self) -> InferenceView<'_> {
        InferenceView { ctx: &mut self.inference, table: &mut self.table, sink: &self.sink }
    }
}

/// Whether an instance may keep `entry` of its table between invocations; releases the invocation's
/// resources in it. The streams of a body have the same type as those of standard input and output,
/// and are therefore accepted. This is safe: the body itself is in the table as well, and is
/// rejected.
fn may_lie_idle(entry: &mut (dyn Any + Send)) -> bool {
    if let Some(model) = entry.downcast_mut::<OpenModel>() {
        model.park();
        return true;
    }
    if let Some(ExecutionContext(model)) = entry.downcast_mut() {
        model.park();
        return true;
    }
    if let Some(request) = entry.downcast_mut::<HostIncomingRequest>() {
        // Python's garbage collector may collect it later. Its body is dropped.
        request.body = None;
        return true;
    }
    entry.downcast_ref().is_some_and(|value: &Value| value.device().is_none())
        || entry.is::<NnTensor>()
        || entry.is::<NnError>()
        || entry.is::<FieldMap>()
        || entry.is::<DynOutputStream>()
        || entry.is::<DynInputStream>()
        || entry.is::<DynPollable>()
}

impl WasiView for InstanceState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for InstanceState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { ctx: &mut self.http, table: &mut self.table, hooks: &mut self.outbound }
    }
}
