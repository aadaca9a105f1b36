//! Ending a run from outside.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Tells one run to stop, and why. Fires at most once.
#[derive(Default)]
pub struct Interrupt {
    state: Mutex<State>,
    fired: Condvar,
}

/// Why a run is told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Its deadline passed.
    Deadline,
    /// Nobody waits for it any more.
    Cancelled,
    /// The device is shutting down.
    ShutDown,
    /// The device was lost.
    DeviceLost,
}

type Hook = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct State {
    reason: Option<Reason>,
    hook: Option<Hook>,
}

impl Interrupt {
    /// Why the run was told to stop, if it was.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        self.lock().reason
    }

    /// Have `hook` called once, from another thread, if the run is told to stop before the guard drops; at once if it was already.
    pub fn hook(&self, hook: impl Fn() + Send + Sync + 'static) -> HookGuard<'_> {
        let mut state = self.lock();
        if state.reason.is_none() {
            state.hook = Some(Arc::new(hook));
        } else {
            drop(state);
            hook();
        }
        HookGuard(self)
    }

    /// Wait until the run is told to stop, but no longer than `timeout`; says whether it was.
    #[must_use]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        let waited = self.fired.wait_timeout_while(self.lock(), timeout, |state| state.reason.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.reason.is_some()
    }

    /// Tell the run to stop.
    pub(crate) fn fire(&self, reason: Reason) {
        let mut state = self.lock();
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

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that runs under the lock can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a hook away again on drop.
#[must_use = "the hook is taken away when the guard drops"]
pub struct HookGuard<'a>(&'a Interrupt);

impl Drop for HookGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().hook = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_hook_is_called_once_whenever_it_is_set() {
        let calls = Arc::new(AtomicU32::new(0));
        let count = |calls: &Arc<AtomicU32>| {
            let calls = Arc::clone(calls);
            move || _ = calls.fetch_add(1, Ordering::Relaxed)
        };
        let interrupt = Interrupt::default();
        drop(interrupt.hook(count(&calls)));
        let guard = interrupt.hook(count(&calls));
        interrupt.fire(Reason::Deadline);
        interrupt.fire(Reason::Cancelled);
        drop(guard);
        assert_eq!((calls.load(Ordering::Relaxed), interrupt.reason()), (1, Some(Reason::Deadline)));
        drop(interrupt.hook(count(&calls)));
        assert_eq!(calls.load(Ordering::Relaxed), 2, "a hook set after the fact is called at once");
    }

    #[test]
    fn waiting_ends_when_it_fires() {
        let interrupt = Interrupt::default();
        assert!(!interrupt.wait_timeout(Duration::ZERO));
        std::thread::scope(|scope| {
            scope.spawn(|| interrupt.fire(Reason::Cancelled));
            assert!(interrupt.wait_timeout(Duration::from_secs(3600)));
        });
    }
}
