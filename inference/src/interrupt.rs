//! Stopping a run from outside.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

/// Stop signal for one run, with the reason. Fires at most once.
#[derive(Default)]
pub struct Interrupt {
    state: Mutex<InterruptState>,
    fired: Condvar,
}

/// Why a run is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// Its deadline passed.
    Deadline,
    /// Its caller cancelled it.
    Cancelled,
    /// The device is shutting down.
    ShutDown,
    /// The device was lost.
    DeviceLost,
}

type Hook = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct InterruptState {
    reason: Option<StopReason>,
    hook: Option<Hook>,
}

impl Interrupt {
    /// Why the run was stopped, if it was.
    #[must_use]
    pub fn reason(&self) -> Option<StopReason> {
        self.state.lock().reason
    }

    /// Registers `hook`, called once from another thread if the interrupt fires before the guard
    /// drops. If it has already fired, calls `hook` immediately.
    pub fn hook(&self, hook: impl Fn() + Send + Sync + 'static) -> HookGuard<'_> {
        let mut state = self.state.lock();
        if state.reason.is_none() {
            state.hook = Some(Arc::new(hook));
        } else {
            drop(state);
            hook();
        }
        HookGuard(self)
    }

    /// Waits at most `timeout` for the interrupt to fire, and returns whether it did.
    #[must_use]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        let mut state = self.state.lock();
        self.fired.wait_while_for(&mut state, |state| state.reason.is_none(), timeout);
        state.reason.is_some()
    }

    /// Fires the interrupt. Only the first call has an effect.
    pub fn fire(&self, reason: StopReason) {
        let mut state = self.state.lock();
        if state.reason.is_some() {
            return;
        }
        state.reason = Some(reason);
        let hook = state.hook.take();
        drop(state);
        self.fired.notify_all();
        if let Some(hook) = hook {
            hook();
        }
    }
}

/// Removes the hook on drop.
#[must_use = "the hook is taken away when the guard drops"]
pub struct HookGuard<'a>(&'a Interrupt);

impl Drop for HookGuard<'_> {
    fn drop(&mut self) {
        self.0.state.lock().hook = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn hook_is_called_once_if_set_before_or_after_firing() {
        let calls = Arc::new(AtomicU32::new(0));
        let count = |calls: &Arc<AtomicU32>| {
            let calls = calls.clone();
            move || _ = calls.fetch_add(1, Ordering::Relaxed)
        };
        let interrupt = Interrupt::default();
        drop(interrupt.hook(count(&calls)));
        let guard = interrupt.hook(count(&calls));
        interrupt.fire(StopReason::Deadline);
        interrupt.fire(StopReason::Cancelled);
        drop(guard);
        assert_eq!((calls.load(Ordering::Relaxed), interrupt.reason()), (1, Some(StopReason::Deadline)));
        drop(interrupt.hook(count(&calls)));
        assert_eq!(calls.load(Ordering::Relaxed), 2, "a hook set after the fact is called at once");
    }

    #[test]
    fn wait_timeout_returns_when_interrupt_fires() {
        let interrupt = Interrupt::default();
        assert!(!interrupt.wait_timeout(Duration::ZERO));
        std::thread::scope(|scope| {
            scope.spawn(|| interrupt.fire(StopReason::Cancelled));
            assert!(interrupt.wait_timeout(Duration::from_secs(3600)));
        });
    }
}
