//! Background loading of all modules.

use super::modules::Modules;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

/// Loader thread. It ends after the last module, at the first module that fails to load, or, when
/// this handle is dropped, after the current module.
pub(super) struct ModuleLoader {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ModuleLoader {
    /// Starts the thread. Returns `None` if the thread cannot start; modules are then loaded on
    /// first use.
    pub(super) fn start(modules: &Arc<Modules>) -> Option<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let modules = modules.clone();
        let over = is_over.clone();
        let load = move || {
            // The first use of the module reports the failure.
            let _ = modules
                .all()
                .take_while(|_| !over.load(Ordering::Relaxed))
                .try_for_each(|module| modules.get(module).map(drop));
        };
        let thread = Builder::new().name("weir-kernels".to_owned()).spawn(load).ok()?;
        Some(Self { is_over, thread: Some(thread) })
    }

    /// Waits for the last module.
    #[cfg(test)]
    pub(super) fn join(mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for ModuleLoader {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
