//! Compiled kernels for chains of elementwise operations: an optional tier above the interpreter
//! kernel, used if NVRTC is installed. Runs never wait for the compiler.
//!
//! ```text
//!   bind a program ──ask──► table ──queue──► thread: source ──NVRTC──► cubin ──driver──► function
//!   run a program  ──ask──► table            runs use the interpreter until then, or permanently
//! ```
//!
//! Both tiers compute the same bits (`kernels/cuda/elementwise.cuh`), so a model can switch while
//! it serves requests. The thread ends with the device. This compiler sees only Weir's own sources,
//! in which only numbers vary; users' sources are compiled in a child process.

mod compiler;
mod table;

use crate::libraries::LibraryState;
use compiler::Compiler;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use table::{ChainState, ChainTable};
use weir_device::cuda::{Context, Function, Nvrtc};
use weir_kernels::Chain;

/// Minimum number of instructions of a compiled chain. A single instruction adds little to the
/// interpreter's loads and stores. This value is an estimate; it has not been measured.
pub const INSTRUCTIONS_MIN: usize = 2;

/// Maximum interval between two polls of a thread that waits for the compiler.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Configuration of the compiler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompilerConfig {
    /// Path of NVRTC. The node finds the file, because only the node has the environment with the
    /// search path; the process that owns the device opens the file.
    pub path: PathBuf,
    /// Minimum number of instructions of a compiled chain.
    pub instructions_min: usize,
}

/// Compiled chains of a device.
pub struct Chains {
    state: LibraryState,
    instructions_min: usize,
    /// `None` without a compiler.
    shared: Option<Arc<ChainsShared>>,
    thread: Option<JoinHandle<()>>,
}

/// State shared between callers and the compiler thread.
#[derive(Default)]
struct ChainsShared {
    table: Mutex<ChainTable<Function>>,
    changed: Condvar,
}

/// Kernel that runs a chain.
#[derive(Debug, Clone)]
pub(crate) enum ChainKernel {
    /// Kernel compiled for the chain.
    Compiled(Function),
    /// The interpreter, while the compilation is pending.
    Pending,
    /// The interpreter, permanently.
    Interpreted,
}

impl Chains {
    /// Opens the compiler, if configured, and starts its thread.
    pub(crate) fn open(
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
        let shared = Arc::new(ChainsShared::default());
        let work = shared.clone();
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

    /// Returns the state of the compiler.
    pub fn state(&self) -> &LibraryState {
        &self.state
    }

    /// Returns the kernel that runs a chain now. The first call queues the chain for compilation.
    pub(crate) fn ask(&self, chain: &Arc<Chain>) -> ChainKernel {
        let Some(shared) = self.shared.as_ref().filter(|_| chain.len() >= self.instructions_min) else {
            return ChainKernel::Interpreted;
        };
        let mut table = shared.table.lock();
        if table.end_if_stuck(Instant::now()) {
            tell(
                "NVRTC does not return, and is no longer used: chains that it has not compiled are interpreted until the device is opened again",
            );
            shared.changed.notify_all();
        }
        let found = table.ask(chain);
        let forgotten = table.forgotten();
        drop(table);
        drop(forgotten);
        match found {
            ChainState::Kernel(function) => ChainKernel::Compiled(function),
            ChainState::Refused => ChainKernel::Interpreted,
            ChainState::Pending => {
                shared.changed.notify_all();
                ChainKernel::Pending
            }
        }
    }

    /// Blocks until `is_settled` returns true. `is_settled` is called after every compilation. For
    /// checks only; runs never wait.
    pub(crate) fn wait_until(&self, mut is_settled: impl FnMut() -> bool) {
        let Some(shared) = &self.shared else { return };
        loop {
            let compiled = shared.table.lock().compiled();
            if is_settled() {
                return;
            }
            let unchanged =
                |table: &mut ChainTable<Function>| table.compiled() == compiled && !table.has_ended();
            // Polling detects a compiler that hangs.
            shared.changed.wait_while_for(&mut shared.table.lock(), unchanged, ASK_EVERY);
        }
    }
}

impl ChainsShared {
    /// Compiles queued chains until the table ends.
    fn compile(&self, compiler: &Compiler) {
        let mut has_told = false;
        while let Some(chain) = self.next() {
            let made = compiler.compile(&chain);
            if let (Err(why), false) = (&made, has_told) {
                has_told = true;
                tell(&format!(
                    "NVRTC fails, so the chain is interpreted; later failures are not logged: {why}"
                ));
            }
            self.table.lock().done(&chain, made.ok());
            self.changed.notify_all();
        }
    }

    /// Waits for the next chain; returns `None` at the end.
    fn next(&self) -> Option<Arc<Chain>> {
        let mut table = self.table.lock();
        loop {
            if table.has_ended() {
                return None;
            }
            if let Some(chain) = table.next(Instant::now()) {
                return Some(chain);
            }
            self.changed.wait(&mut table);
        }
    }
}

impl Drop for Chains {
    fn drop(&mut self) {
        let Some(shared) = &self.shared else { return };
        let mut table = shared.table.lock();
        table.end();
        let is_stuck = table.is_stuck(Instant::now());
        drop(table);
        shared.changed.notify_all();
        // The thread ends after the current compilation. A thread that hangs ends with the process.
        if let (Some(thread), false) = (self.thread.take(), is_stuck) {
            let _ = thread.join();
        }
    }
}

/// Reports a message on stderr, which the node adds to its log.
fn tell(what: &str) {
    eprintln!("the worker of a device: {what}");
}
