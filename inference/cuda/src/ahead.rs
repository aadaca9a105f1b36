//! Background threads that prepare what later calls use: [`AheadThread`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

/// Thread that repeats a step. It ends when the step returns false or, when this handle is dropped,
/// after the current step.
pub(crate) struct AheadThread {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl AheadThread {
    /// Starts the thread, which repeats `step` until it returns false. Returns `None` if the thread
    /// cannot start; the work is then done at its first use.
    pub(crate) fn start(name: &str, mut step: impl FnMut() -> bool + Send + 'static) -> Option<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let work = move || while !over.load(Ordering::Relaxed) && step() {};
        let thread = Builder::new().name(name.to_owned()).spawn(work).ok()?;
        Some(Self { is_over, thread: Some(thread) })
    }

    /// Waits for the last step.
    #[cfg(test)]
    pub(crate) fn join(mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for AheadThread {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
