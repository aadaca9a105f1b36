//! Engine and store with the settings of Weir's node; `host/sandbox/src/engine.rs` has the
//! reasons.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use wasmtime::component::ResourceTable;
use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, StoreLimits,
    StoreLimitsBuilder,
};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{
    Error, RequestOptions, WasiBody, WasiHttpCtx, WasiHttpCtxView, WasiHttpHooks, WasiHttpView,
};

const EPOCH_TICK: Duration = Duration::from_millis(1);
const INSTANCES_MAX: u32 = 1_000;
/// Reservation of the pool for each memory and table.
const MEMORY_BYTES_CAP: usize = 1 << 30;
const TABLE_ELEMENTS_CAP: usize = 1_000_000;
/// Limits of one guest.
const MEMORY_BYTES_MAX: usize = 256 << 20;
const TABLE_ELEMENTS_MAX: usize = 100_000;

pub(crate) fn engine() -> wasmtime::Result<Engine> {
    let mut pool = PoolingAllocationConfig::default();
    pool.total_component_instances(INSTANCES_MAX)
        .total_core_instances(INSTANCES_MAX * 8)
        .total_memories(INSTANCES_MAX)
        .total_tables(INSTANCES_MAX * 2)
        .total_stacks(INSTANCES_MAX)
        .max_core_instances_per_component(40)
        .max_memories_per_component(8)
        .max_tables_per_component(40)
        .max_component_instance_size(4 << 20)
        .max_memory_size(MEMORY_BYTES_CAP)
        .table_elements(TABLE_ELEMENTS_CAP)
        .max_unused_warm_slots(100)
        .linear_memory_keep_resident(2 << 20)
        .table_keep_resident(64 << 10)
        .async_stack_keep_resident(64 << 10)
        .pagemap_scan(Enabled::Auto);
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .gc_support(false)
        .concurrency_support(false)
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Engine::new(&config)
}

/// Increments the epoch until dropped.
pub(crate) struct EpochTicker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl EpochTicker {
    pub(crate) fn spawn(engine: Engine) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let tick = move || {
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(EPOCH_TICK);
                engine.increment_epoch();
            }
        };
        let thread = std::thread::Builder::new().name("epoch".to_owned()).spawn(tick)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for EpochTicker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("the epoch ticker panicked");
        }
    }
}

/// Store data of one request.
pub(crate) struct RequestState {
    wasi: WasiCtx,
    http: WasiHttpCtx,
    table: ResourceTable,
    hooks: NoRequests,
    pub(crate) limits: StoreLimits,
}

impl RequestState {
    pub(crate) fn new() -> Self {
        Self {
            wasi: WasiCtx::builder().build(),
            http: WasiHttpCtx::new(),
            table: ResourceTable::new(),
            hooks: NoRequests,
            limits: StoreLimitsBuilder::new()
                .memory_size(MEMORY_BYTES_MAX)
                .table_elements(TABLE_ELEMENTS_MAX)
                .build(),
        }
    }
}

/// Denies outbound requests: the measured functions send none.
struct NoRequests;

type Io = Box<dyn Future<Output = Result<(), Error>> + Send>;

impl WasiHttpHooks for NoRequests {
    fn send_request(
        &mut self,
        _: hyper::Request<WasiBody>,
        _: Option<RequestOptions>,
        _: Io,
    ) -> Box<dyn Future<Output = Result<(hyper::Response<WasiBody>, Io), Error>> + Send> {
        Box::new(std::future::ready(Err(Error::HttpRequestDenied)))
    }
}

impl WasiView for RequestState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for RequestState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { ctx: &mut self.http, table: &mut self.table, hooks: &mut self.hooks }
    }
}
