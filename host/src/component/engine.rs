//! The two wasmtime engines of a node, and the clock that interrupts their guests.
//!
//! WASI 0.2 components run faster in an engine without concurrency support, and WASI 0.3 components need it; each engine rejects the
//! other's artefacts. Both share one epoch ticker. The same configuration, with the on-demand allocator, serves the compiling child: a
//! pooling engine reserves terabytes of address space and cannot start under a memory limit, yet loads what the other compiled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};
use weir_types::{FunctionKind, Limits};

/// How often a running guest can be interrupted.
pub(crate) const EPOCH_TICK: Duration = Duration::from_millis(1);

/// Memory of an instance slot that stays mapped between invocations: most requests touch less, and page faults cost more than the
/// clearing does.
const MEMORY_KEEP_RESIDENT_BYTES: usize = 2 << 20;
const TABLE_KEEP_RESIDENT_BYTES: usize = 64 << 10;
const STACK_KEEP_RESIDENT_BYTES: usize = 64 << 10;
/// Core instances, memories and tables that one component may be made of.
const CORE_INSTANCES_PER_COMPONENT_MAX: u32 = 40;
const MEMORIES_PER_COMPONENT_MAX: u32 = 8;
const TABLES_PER_COMPONENT_MAX: u32 = 40;
/// Slots kept warm for components that are not running now; bounds the memory of an idle node.
const WARM_SLOTS_MAX: u32 = 100;

/// Which of the two engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Generation {
    /// WASI 0.2 and components without WASI.
    P2,
    /// WASI 0.3: asynchronous component functions.
    P3,
}

impl Generation {
    pub(crate) fn of(kind: FunctionKind) -> Self {
        match kind {
            FunctionKind::Http02 | FunctionKind::Tensor => Self::P2,
            FunctionKind::Http03 => Self::P3,
        }
    }

    /// The name it has in file names.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::P2 => "p2",
            Self::P3 => "p3",
        }
    }
}

/// An engine for the compiling child: same code as the node's, no pool.
pub(crate) fn compiling_engine(generation: Generation) -> wasmtime::Result<Engine> {
    Engine::new(&config(generation))
}

fn config(generation: Generation) -> Config {
    let mut config = Config::new();
    config.epoch_interruption(true);
    config.gc_support(false);
    match generation {
        Generation::P2 => {
            config.concurrency_support(false);
        }
        Generation::P3 => {
            config.wasm_component_model_async(true);
        }
    }
    config
}

/// The node's engines. Dropping it stops the ticker.
pub(crate) struct Engines {
    p2: Engine,
    p3: Engine,
    ticker: EpochTicker,
}

impl Engines {
    /// Reserve the pools: address space, not memory.
    pub(crate) fn new(instances_max: u32, caps: &Limits) -> wasmtime::Result<Self> {
        let pooled = |generation| {
            let mut config = config(generation);
            config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(instances_max, caps)));
            Engine::new(&config)
        };
        let (p2, p3) = (pooled(Generation::P2)?, pooled(Generation::P3)?);
        let ticker = EpochTicker::spawn(vec![p2.clone(), p3.clone()])?;
        Ok(Self { p2, p3, ticker })
    }

    pub(crate) fn get(&self, generation: Generation) -> &Engine {
        match generation {
            Generation::P2 => &self.p2,
            Generation::P3 => &self.p3,
        }
    }

    /// Keep the epochs ticking for as long as a guest may run. Cheap while they tick already.
    pub(crate) fn keep_ticking(&self) {
        self.ticker.touch();
    }
}

fn pool(instances_max: u32, caps: &Limits) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::default();
    pool.total_component_instances(instances_max)
        .total_core_instances(instances_max.saturating_mul(8))
        .total_memories(instances_max)
        .total_tables(instances_max.saturating_mul(2))
        .total_stacks(instances_max)
        .max_core_instances_per_component(CORE_INSTANCES_PER_COMPONENT_MAX)
        .max_memories_per_component(MEMORIES_PER_COMPONENT_MAX)
        .max_tables_per_component(TABLES_PER_COMPONENT_MAX)
        .max_component_instance_size(4 << 20)
        .max_memory_size(usize::try_from(caps.memory_bytes).unwrap_or(usize::MAX))
        .table_elements(caps.table_elements as usize)
        .max_unused_warm_slots(WARM_SLOTS_MAX)
        .linear_memory_keep_resident(MEMORY_KEEP_RESIDENT_BYTES)
        .table_keep_resident(TABLE_KEEP_RESIDENT_BYTES)
        .async_stack_keep_resident(STACK_KEEP_RESIDENT_BYTES)
        // Linux 6.7 and later tell which pages a guest wrote, so that only those are cleared.
        .pagemap_scan(Enabled::Auto);
    pool
}

/// Raises the epoch every [`EPOCH_TICK`], and sleeps when nobody has run for a while.
struct EpochTicker {
    shared: Arc<Ticks>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Ticks {
    /// Counts `touch` calls, so that the ticker sees whether any came.
    touches: AtomicU64,
    parked: AtomicBool,
    stop: AtomicBool,
}

/// Ticks without a touch after which the ticker sleeps.
const IDLE_TICKS_MAX: u32 = 1_000;

impl EpochTicker {
    fn spawn(engines: Vec<Engine>) -> std::io::Result<Self> {
        let shared = Arc::new(Ticks::default());
        let ticks = shared.clone();
        let thread =
            std::thread::Builder::new().name("weir-epoch".into()).spawn(move || tick(&engines, &ticks))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    fn touch(&self) {
        self.shared.touches.fetch_add(1, Ordering::SeqCst);
        if self.shared.parked.load(Ordering::SeqCst)
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }
}

fn tick(engines: &[Engine], ticks: &Ticks) {
    let (mut seen, mut idle) = (0, 0);
    while !ticks.stop.load(Ordering::Relaxed) {
        std::thread::sleep(EPOCH_TICK);
        engines.iter().for_each(Engine::increment_epoch);
        let touches = ticks.touches.load(Ordering::SeqCst);
        idle = if touches == seen { idle + 1 } else { 0 };
        seen = touches;
        if idle >= IDLE_TICKS_MAX {
            // A touch between the store and the load below is seen by one of them: either it unparks us or we do not park.
            ticks.parked.store(true, Ordering::SeqCst);
            if ticks.touches.load(Ordering::SeqCst) == seen && !ticks.stop.load(Ordering::SeqCst) {
                std::thread::park();
            }
            ticks.parked.store(false, Ordering::SeqCst);
            idle = 0;
        }
    }
}

impl Drop for EpochTicker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the epoch ticker panicked");
            }
        }
    }
}
