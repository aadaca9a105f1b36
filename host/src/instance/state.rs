//! What an instance's store holds: one per invocation, gone with it.

use super::memory::MemoryMeter;
use super::outbound::Outbound;
use super::output::{Channel, Output, OutputSink};
use super::usage::Usage;
use crate::hostcalls::InferenceCtx;
use std::sync::Arc;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};
use weir_types::FunctionManifest;

/// The state that host calls work on.
pub(crate) struct State {
    wasi: WasiCtx,
    http: WasiHttpCtx,
    table: ResourceTable,
    outbound: Outbound,
    pub(crate) memory: MemoryMeter,
    pub(crate) inference: InferenceCtx,
}

impl State {
    pub(crate) fn new(
        manifest: &Arc<FunctionManifest>,
        sink: &Arc<OutputSink>,
        inference: InferenceCtx,
        usage: Arc<Usage>,
    ) -> Self {
        let mut wasi = WasiCtx::builder();
        wasi.stdout(Output { sink: sink.clone(), channel: Channel::Stdout })
            .stderr(Output { sink: sink.clone(), channel: Channel::Stderr })
            .allow_tcp(false)
            .allow_udp(false);
        for (key, value) in &manifest.env {
            wasi.env(key, value);
        }
        let mut table = ResourceTable::new();
        table.set_max_capacity(manifest.limits.handles as usize);
        Self {
            wasi: wasi.build(),
            http: WasiHttpCtx::new(),
            table,
            outbound: Outbound::new(manifest.clone(), sink.clone()),
            memory: MemoryMeter::new(&manifest.limits, usage),
            inference,
        }
    }

    /// The inference calls' own state and the table that holds their handles.
    pub(crate) fn inference(&mut self) -> (&mut InferenceCtx, &mut ResourceTable) {
        (&mut self.inference, &mut self.table)
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for State {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { ctx: &mut self.http, table: &mut self.table, hooks: &mut self.outbound }
    }
}
