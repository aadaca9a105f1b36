//! The two wasmtime engines of a node, and the epoch ticker that interrupts their guests.
//!
//! WASI 0.2 components run faster in an engine without concurrency support, and WASI 0.3 components
//! need concurrency support; each engine rejects the other's artefacts. Both engines share one
//! epoch ticker. The compiling child uses the same configuration with the on-demand allocator: a
//! pooling engine reserves terabytes of address space and cannot start under a memory limit, yet it
//! loads artefacts that the child compiled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use wasmtime::{
    CacheStore, Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig,
    WasmBacktraceDetails,
};
use weir_types::{FunctionKind, Limits};

/// The interval at which a running guest can be interrupted, from the first tick that finds a
/// running guest.
const EPOCH_TICK: Duration = Duration::from_millis(1);
/// The longest interval between ticks that find no running guest: each tick costs a wake-up, which
/// is wasted without a guest to interrupt.
const EPOCH_TICK_MAX: Duration = Duration::from_millis(4);

/// The memory of an instance slot that stays mapped between invocations. Most requests touch less,
/// and page faults cost more than clearing this memory.
const MEMORY_KEEP_RESIDENT_BYTES: usize = 2 << 20;
const TABLE_KEEP_RESIDENT_BYTES: usize = 64 << 10;
const STACK_KEEP_RESIDENT_BYTES: usize = 64 << 10;
/// The limits of core instances, memories and tables in one component.
const CORE_INSTANCES_PER_COMPONENT_MAX: u32 = 40;
const MEMORIES_PER_COMPONENT_MAX: u32 = 8;
const TABLES_PER_COMPONENT_MAX: u32 = 40;
/// The number of slots kept warm for components that are not running; bounds the memory of an idle
/// node.
const WARM_SLOTS_MAX: u32 = 100;

/// Selects one of the two engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Generation {
    /// WASI 0.2, and components without WASI.
    P2,
    /// WASI 0.3: asynchronous component functions.
    P3,
}

impl Generation {
    pub(crate) fn for_kind(kind: FunctionKind) -> Self {
        match kind {
            FunctionKind::Http02 | FunctionKind::Tensor => Self::P2,
            FunctionKind::Http03 => Self::P3,
        }
    }

    /// The name used in file names.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::P2 => "p2",
            Self::P3 => "p3",
        }
    }
}

/// An engine for the compiling child: generates the same code as the node's engine, without a pool.
/// Takes the code of functions that are in `cache` from there.
pub(crate) fn compiling_engine(
    generation: Generation,
    cache: Option<Arc<dyn CacheStore>>,
) -> wasmtime::Result<Engine> {
    let mut config = config(generation);
    if let Some(cache) = cache {
        config.enable_incremental_compilation(cache)?;
    }
    Engine::new(&config)
}

fn config(generation: Generation) -> Config {
    let mut config = Config::new();
    config.epoch_interruption(true);
    config.gc_support(false);
    // `sources` provides source locations, at a limited cost; wasmtime would follow a variable of
    // the node's environment.
    config.wasm_backtrace_details(WasmBacktraceDetails::Disable);
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

/// The node's engines. Dropping this stops the ticker.
pub struct Engines {
    p2: Engine,
    p3: Engine,
    ticker: EpochTicker,
}

impl Engines {
    /// Reserves the pools: address space, not memory.
    pub fn new(instances_max: u32, caps: &Limits) -> wasmtime::Result<Self> {
        let pooled = |generation| {
            let mut config = config(generation);
            config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(instances_max, caps)));
            Engine::new(&config)
        };
        let p2 = pooled(Generation::P2)?;
        let p3 = pooled(Generation::P3)?;
        let ticker = EpochTicker::spawn(vec![p2.clone(), p3.clone()])?;
        Ok(Self { p2, p3, ticker })
    }

    /// The engine that runs components of this generation.
    pub(crate) fn get(&self, generation: Generation) -> &Engine {
        match generation {
            Generation::P2 => &self.p2,
            Generation::P3 => &self.p3,
        }
    }

    /// Keeps the epoch ticking until the guard is dropped. Held by the threads that run guests,
    /// while they run them.
    pub fn ticking(&self) -> Ticking<'_> {
        self.ticker.begin()
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
        // Linux 6.7 and later can report the pages that a guest wrote, so that only those are
        // cleared.
        .pagemap_scan(Enabled::Auto);
    pool
}

/// Raises the epoch every [`EPOCH_TICK`] while guests run, less often while they mostly wait, and
/// stops once no guest has started to run for a while: guests that wait for a model need no ticks.
struct EpochTicker {
    shared: Arc<Ticks>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Ticks {
    /// The number of guests that are being polled.
    running: AtomicU32,
    /// The number of polls started, by which the ticker notices polls between two ticks.
    begun: AtomicU64,
    parked: AtomicBool,
    stop: AtomicBool,
}

/// The number of successive ticks without a guest after which the ticker sleeps: waking it costs as
/// much as several ticks.
const IDLE_TICKS_MAX: u32 = 3;

/// A running guest.
pub struct Ticking<'a>(&'a Ticks);

impl EpochTicker {
    fn spawn(engines: Vec<Engine>) -> std::io::Result<Self> {
        let shared = Arc::new(Ticks::default());
        let ticks = shared.clone();
        let thread =
            std::thread::Builder::new().name("weir-epoch".into()).spawn(move || tick(&engines, &ticks))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    fn begin(&self) -> Ticking<'_> {
        self.shared.running.fetch_add(1, Ordering::Relaxed);
        self.shared.begun.fetch_add(1, Ordering::SeqCst);
        if self.shared.parked.load(Ordering::SeqCst)
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
        Ticking(&self.shared)
    }
}

impl Drop for Ticking<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

fn tick(engines: &[Engine], ticks: &Ticks) {
    let mut pace = Pace::default();
    while !ticks.stop.load(Ordering::Relaxed) {
        std::thread::sleep(pace.interval);
        engines.iter().for_each(Engine::increment_epoch);
        let begun = ticks.begun.load(Ordering::SeqCst);
        pace.ticked(begun, ticks.running.load(Ordering::Relaxed));
        if pace.idle_ticks >= IDLE_TICKS_MAX {
            // A guest that begins between the store and the load below is never missed: either it
            // unparks this thread, or this thread does not park.
            ticks.parked.store(true, Ordering::SeqCst);
            if ticks.begun.load(Ordering::SeqCst) == begun && !ticks.stop.load(Ordering::SeqCst) {
                std::thread::park();
            }
            ticks.parked.store(false, Ordering::SeqCst);
            pace = Pace::default();
        }
    }
}

/// The schedule of ticks.
struct Pace {
    interval: Duration,
    /// The number of successive ticks since a guest ran or began to run.
    idle_ticks: u32,
    begun: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { interval: EPOCH_TICK, idle_ticks: 0, begun: 0 }
    }
}

impl Pace {
    /// Records a tick. `running` is the number of running guests, `begun` the total number of polls
    /// started.
    fn ticked(&mut self, begun: u64, running: u32) {
        self.interval = if running > 0 { EPOCH_TICK } else { (self.interval * 2).min(EPOCH_TICK_MAX) };
        // A guest may run without a new poll, for example in a long host call, and compute after
        // that.
        let is_idle = begun == self.begun && running == 0;
        self.idle_ticks = if is_idle { self.idle_ticks + 1 } else { 0 };
        self.begun = begun;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::component::compatibility_hash;

    #[test]
    fn artefacts_of_other_settings_are_compiled_again() {
        let hash = |generation, change: fn(&mut Config)| {
            let mut config = config(generation);
            change(&mut config);
            compatibility_hash(&Engine::new(&config).unwrap())
        };
        let own = hash(Generation::P2, |_| {});
        assert_eq!(own, hash(Generation::P2, |_| {}));
        assert_ne!(own, hash(Generation::P3, |_| {}));
        let detailed = hash(Generation::P2, |config| {
            config.wasm_backtrace_details(WasmBacktraceDetails::Enable);
        });
        assert_ne!(own, detailed);
        let without_epochs = hash(Generation::P2, |config| {
            config.epoch_interruption(false);
        });
        assert_ne!(own, without_epochs);
    }

    #[test]
    fn ticker_stops_while_guests_wait_and_ticks_while_one_runs() {
        let mut pace = Pace::default();
        let mut idle = |begun, running| {
            pace.ticked(begun, running);
            pace.idle_ticks
        };
        assert_eq!([idle(1, 0), idle(1, 0), idle(1, 0), idle(1, 0)], [0, 1, 2, IDLE_TICKS_MAX]);
        // A new poll, which spends long in a host call.
        assert_eq!([idle(2, 1), idle(2, 1), idle(2, 1), idle(2, 1)], [0; 4]);
        // Successive polls, each over before the next tick.
        assert_eq!([idle(3, 0), idle(4, 0), idle(5, 0), idle(6, 0)], [0; 4]);
    }

    #[test]
    fn ticker_slows_down_without_guests_and_speeds_up_with_one() {
        let mut pace = Pace::default();
        let mut interval = |begun, running| {
            pace.ticked(begun, running);
            pace.interval.as_millis()
        };
        assert_eq!([interval(1, 0), interval(2, 0), interval(3, 0), interval(4, 0)], [2, 4, 4, 4]);
        assert_eq!([interval(5, 1), interval(5, 1), interval(6, 0)], [1, 1, 2]);
    }

    #[test]
    fn guest_wakes_the_parked_ticker() {
        let ticker = EpochTicker::spawn(Vec::new()).unwrap();
        let is_parked = || ticker.shared.parked.load(Ordering::SeqCst);
        let until = |parked| {
            while is_parked() != parked {
                std::thread::yield_now();
            }
        };
        until(true);
        let first = ticker.begin();
        until(false);
        drop(first);
        until(true);
    }
}
