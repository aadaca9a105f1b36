//! Loading all modules before they are asked for.

use super::modules::Modules;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

/// The thread that loads them. It ends with the last module, with the first that cannot be loaded, or with this, after the module that is under way.
pub(super) struct Ahead {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ahead {
    /// Begin. None if the thread does not start: modules are loaded by their first users then.
    pub(super) fn start(modules: &Arc<Modules>) -> Option<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (modules, over) = (Arc::clone(modules), Arc::clone(&is_over));
        let load = move || {
            // A failure is told to whoever needs the module.
            let _ = modules
                .all()
                .take_while(|_| !over.load(Ordering::Relaxed))
                .try_for_each(|module| modules.get(module).map(drop));
        };
        let thread = Builder::new().name("weir-kernels".to_owned()).spawn(load).ok()?;
        Some(Self { is_over, thread: Some(thread) })
    }

    /// Wait for the last module.
    #[cfg(test)]
    pub(super) fn join(mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
