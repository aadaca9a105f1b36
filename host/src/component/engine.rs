//! The two wasmtime engines of a node, and the clock that interrupts their guests.
//!
//! WASI 0.2 components run faster in an engine without concurrency support, and WASI 0.3 components need it; each engine rejects the
//! other's artefacts. Both share one epoch ticker. The same configuration, with the on-demand allocator, serves the compiling child: a
//! pooling engine reserves terabytes of address space and cannot start under a memory limit, yet loads what the other compiled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};
use weir_types::{FunctionKind, Limits};

/// How often a running guest can be interrupted, from the first tick that finds one running.
const EPOCH_TICK: Duration = Duration::from_millis(1);
/// How far apart ticks get that find none: each costs a wake-up, and whoever finds nothing to interrupt did not have to come.
const EPOCH_TICK_MAX: Duration = Duration::from_millis(4);

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

    /// Have the epochs tick for as long as the guard lives: on the threads where guests run, while they do.
    pub(crate) fn ticking(&self) -> Ticking<'_> {
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
        // Linux 6.7 and later tell which pages a guest wrote, so that only those are cleared.
        .pagemap_scan(Enabled::Auto);
    pool
}

/// Raises the epoch every [`EPOCH_TICK`] while guests run, less often while they mostly wait, and not at all once none has begun for a while:
/// guests that wait for a model need no clock.
struct EpochTicker {
    shared: Arc<Ticks>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Ticks {
    /// Guests that are being polled.
    running: AtomicU32,
    /// How often one began to be, so that the ticker sees whether any did since the last tick.
    begun: AtomicU64,
    parked: AtomicBool,
    stop: AtomicBool,
}

/// Ticks in a row without a guest after which the ticker sleeps: waking it costs as much as some ticks do.
const IDLE_TICKS_MAX: u32 = 3;

/// A guest that runs.
pub(crate) struct Ticking<'a>(&'a Ticks);

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
            // Of a guest that begins between the store and the load below, one of the two sides hears: either it unparks us, or we do not park.
            ticks.parked.store(true, Ordering::SeqCst);
            if ticks.begun.load(Ordering::SeqCst) == begun && !ticks.stop.load(Ordering::SeqCst) {
                std::thread::park();
            }
            ticks.parked.store(false, Ordering::SeqCst);
            pace = Pace::default();
        }
    }
}

/// When the next tick is due.
struct Pace {
    interval: Duration,
    /// Ticks in a row since a guest ran or began to.
    idle_ticks: u32,
    begun: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { interval: EPOCH_TICK, idle_ticks: 0, begun: 0 }
    }
}

impl Pace {
    /// Count a tick, at which `running` guests ran and `begun` had begun to in all.
    fn ticked(&mut self, begun: u64, running: u32) {
        self.interval = if running > 0 { EPOCH_TICK } else { (self.interval * 2).min(EPOCH_TICK_MAX) };
        // A guest may run without beginning anew, as in a long host call, and compute after that.
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

    #[test]
    fn the_clock_stops_for_guests_that_wait_and_not_for_one_that_runs() {
        let mut pace = Pace::default();
        let mut idle = |begun, running| {
            pace.ticked(begun, running);
            pace.idle_ticks
        };
        assert_eq!([idle(1, 0), idle(1, 0), idle(1, 0), idle(1, 0)], [0, 1, 2, IDLE_TICKS_MAX]);
        // It has begun anew, and is in a host call for long.
        assert_eq!([idle(2, 1), idle(2, 1), idle(2, 1), idle(2, 1)], [0; 4]);
        // One after the other, each over before the tick.
        assert_eq!([idle(3, 0), idle(4, 0), idle(5, 0), idle(6, 0)], [0; 4]);
    }

    #[test]
    fn the_clock_is_slow_while_ticks_find_no_guest_and_fast_once_one_does() {
        let mut pace = Pace::default();
        let mut interval = |begun, running| {
            pace.ticked(begun, running);
            pace.interval.as_millis()
        };
        assert_eq!([interval(1, 0), interval(2, 0), interval(3, 0), interval(4, 0)], [2, 4, 4, 4]);
        assert_eq!([interval(5, 1), interval(5, 1), interval(6, 0)], [1, 1, 2]);
    }

    #[test]
    fn a_guest_wakes_the_clock_that_has_stopped() {
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
