//! The scheduler's timer.

use super::Placements;
use std::sync::Weak;
use std::time::Duration;
use tokio::sync::watch;
use weir_scheduler::Event;

/// Wakes the scheduler at the times that it requests, until the placements are dropped.
pub(super) async fn wake(placements: Weak<Placements>, mut wake_at_ns: watch::Receiver<Option<u64>>) {
    loop {
        let at_ns = *wake_at_ns.borrow_and_update();
        let Some(epoch) = placements.upgrade().map(|placements| placements.epoch) else { return };
        let due = async {
            match at_ns {
                Some(at_ns) => tokio::time::sleep_until((epoch + Duration::from_nanos(at_ns)).into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {
                let Some(placements) = placements.upgrade() else { return };
                placements.wake_at_ns.send_if_modified(|wanted| {
                    if *wanted == at_ns {
                        *wanted = None;
                    }
                    false
                });
                let mut state = placements.state.lock();
                placements.decide_all(&mut state, vec![Event::Woken]);
            }
            changed = wake_at_ns.changed() => if changed.is_err() { return },
        }
    }
}
