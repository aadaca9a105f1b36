//! Kernels of chains of elementwise operations, compiled where NVRTC is there: a tier above the kernel that interprets them. Nobody waits for it.
//!
//! ```text
//!   a program is made ready ──ask──► table ──queue──► a thread: source ──NVRTC──► cubin ──driver──► function
//!   its runs ──ask──►                table            until then, or for good, the interpreter runs
//! ```
//!
//! Both give the same bits (`kernels/cuda/elementwise.cuh`), so a model may change over while it serves. The thread ends with the device. It is the compiler of Weir's own
//! sources alone, in which only numbers differ; what users bring is compiled in a child.

mod compiler;
mod table;

use super::libraries::LibraryState;
use compiler::Compiler;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use table::{Found, Table};
use weir_device::cuda::{Context, Function, Nvrtc};
use weir_kernels::Chain;

/// From how many instructions on a chain is compiled: one alone costs the interpreter next to nothing beside what it loads and stores. By reasoning, and not measured.
pub(super) const INSTRUCTIONS_MIN: usize = 2;

/// How often at least somebody who waits for the compiler asks again.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The compiler that is to be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CompilerConfig {
    /// The file of NVRTC. Found by the node, which has the environment that says where to look; opened by whoever holds the device.
    pub(super) path: PathBuf,
    /// From how many instructions on a chain is compiled.
    pub(super) instructions_min: usize,
}

/// The chains of a device.
pub(super) struct Chains {
    state: LibraryState,
    instructions_min: usize,
    /// None without a compiler.
    shared: Option<Arc<Shared>>,
    thread: Option<JoinHandle<()>>,
}

/// Between who asks and the thread that compiles.
#[derive(Default)]
struct Shared {
    table: Mutex<Table<Function>>,
    changed: Condvar,
}

/// What runs a chain.
#[derive(Debug, Clone)]
pub(super) enum ChainKernel {
    /// A kernel of its own.
    Compiled(Function),
    /// The interpreter, for now.
    Pending,
    /// The interpreter, for good.
    Interpreted,
}

impl Chains {
    /// Set the compiler up, if there is one, and start its thread.
    pub(super) fn open(
        config: Option<&CompilerConfig>,
        context: &Arc<Context>,
        compute_capability: u32,
    ) -> Self {
        let none = |state| Self { state, instructions_min: 0, shared: None, thread: None };
        let Some(CompilerConfig { path, instructions_min }) = config else { return none(LibraryState::None) };
        let unusable = |why| none(LibraryState::Unusable(why));
        let nvrtc = match Nvrtc::open(path) {
            Ok(nvrtc) => nvrtc,
            Err(why) => return unusable(why.to_string()),
        };
        let version = nvrtc.version();
        let compiler = match Compiler::new(nvrtc, context, compute_capability) {
            Ok(compiler) => compiler,
            Err(why) => return unusable(format!("{}: {why}", path.display())),
        };
        let shared = Arc::new(Shared::default());
        let work = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("weir-nvrtc".to_owned());
        match thread.spawn(move || work.compile(&compiler)) {
            Ok(thread) => Self {
                state: LibraryState::Used(version),
                instructions_min: *instructions_min,
                shared: Some(shared),
                thread: Some(thread),
            },
            Err(error) => unusable(format!("its thread does not start: {error}")),
        }
    }

    /// What became of the compiler.
    pub(super) fn state(&self) -> &LibraryState {
        &self.state
    }

    /// What runs a chain now. Asked for the first time, it is compiled as soon as the compiler gets there.
    pub(super) fn ask(&self, chain: &Arc<Chain>) -> ChainKernel {
        let Some(shared) = self.shared.as_ref().filter(|_| chain.len() >= self.instructions_min) else {
            return ChainKernel::Interpreted;
        };
        let mut table = shared.lock();
        if table.end_if_stuck(Instant::now()) {
            tell(
                "NVRTC does not come back, and is done without: chains that it has not compiled are interpreted until the device is opened again",
            );
            shared.changed.notify_all();
        }
        let (found, forgotten) = (table.ask(chain), table.forgotten());
        drop(table);
        drop(forgotten);
        match found {
            Found::Kernel(function) => ChainKernel::Compiled(function),
            Found::Refused => ChainKernel::Interpreted,
            Found::Pending => {
                shared.changed.notify_all();
                ChainKernel::Pending
            }
        }
    }

    /// Wait until `is_settled`, which is asked whenever something was compiled. For checks; runs never wait.
    pub(super) fn wait_until(&self, mut is_settled: impl FnMut() -> bool) {
        let Some(shared) = &self.shared else { return };
        loop {
            let compiled = shared.lock().compiled();
            if is_settled() {
                return;
            }
            let unchanged = |table: &mut Table<Function>| table.compiled() == compiled && !table.has_ended();
            // Asking finds out a compiler that does not come back.
            let waited = shared.changed.wait_timeout_while(shared.lock(), ASK_EVERY, unchanged);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Shared {
    /// Compile what is asked for, until the end.
    fn compile(&self, compiler: &Compiler) {
        let mut has_told = false;
        while let Some(chain) = self.next() {
            let made = compiler.compile(&chain);
            if let (Err(why), false) = (&made, has_told) {
                has_told = true;
                tell(&format!(
                    "NVRTC fails, and chains that it fails for are interpreted, of which the first is told: {why}"
                ));
            }
            self.lock().done(&chain, made.ok());
            self.changed.notify_all();
        }
    }

    /// Wait for the next; none at the end.
    fn next(&self) -> Option<Arc<Chain>> {
        let mut table = self.lock();
        loop {
            if table.has_ended() {
                return None;
            }
            if let Some(chain) = table.next(Instant::now()) {
                return Some(chain);
            }
            table = self.changed.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table<Function>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Chains {
    fn drop(&mut self) {
        let Some(shared) = &self.shared else { return };
        let mut table = shared.lock();
        table.end();
        let is_stuck = table.is_stuck(Instant::now());
        drop(table);
        shared.changed.notify_all();
        // It ends after the compilation that is under way; one that does not come back ends with the process.
        if let (Some(thread), false) = (self.thread.take(), is_stuck) {
            let _ = thread.join();
        }
    }
}

/// A worker has no log but what it says to its node's.
fn tell(what: &str) {
    eprintln!("the worker of a device: {what}");
}
