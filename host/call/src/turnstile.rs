//! Limits concurrent work, such as compilations, with fair turns for tenants.

use crate::Fault;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::oneshot;
use weir_types::{ErrorCode, TenantId};

/// Grants a bounded number of concurrent turns. Tenants with waiters are served round-robin; the
/// waiters of one tenant are served in order.
#[derive(Clone)]
pub struct Turnstile(Arc<TurnstileShared>);

/// A turn, until dropped.
pub struct Turn {
    /// `None` once the turn was passed to the next waiter.
    shared: Option<Arc<TurnstileShared>>,
}

struct TurnstileShared {
    /// Noun for the turns in error messages, in the plural.
    what: &'static str,
    tenant_waiting_max: usize,
    line: Mutex<Line>,
}

/// Free turns, and waiters by tenant. While a turn is free, there are no waiters.
struct Line {
    free: usize,
    /// Tenants with an entry in `waiting`, the next one first.
    order: VecDeque<TenantId>,
    waiting: HashMap<TenantId, VecDeque<oneshot::Sender<Turn>>>,
}

impl Turnstile {
    /// Creates a turnstile with `turns_max` concurrent turns and at most `tenant_waiting_max`
    /// waiters of each tenant. `what` is the noun for the turns in error messages, in the plural.
    #[must_use]
    pub fn new(what: &'static str, turns_max: usize, tenant_waiting_max: usize) -> Self {
        let line = Line { free: turns_max.max(1), order: VecDeque::new(), waiting: HashMap::new() };
        Self(Arc::new(TurnstileShared { what, tenant_waiting_max, line: Mutex::new(line) }))
    }

    /// Takes a turn if one is free.
    #[must_use]
    pub fn try_turn(&self) -> Option<Turn> {
        let mut line = self.0.line.lock();
        line.free = line.free.checked_sub(1)?;
        Some(Turn { shared: Some(self.0.clone()) })
    }

    /// Number of free turns.
    #[must_use]
    pub fn free(&self) -> usize {
        self.0.line.lock().free
    }

    /// Waits for a turn. Dropping the future ends the wait.
    ///
    /// # Errors
    /// `tenant_waiting_max` calls of the tenant already wait.
    pub async fn turn(&self, tenant: &TenantId) -> Result<Turn, Fault> {
        let turn = {
            let mut line = self.0.line.lock();
            if let Some(free) = line.free.checked_sub(1) {
                line.free = free;
                return Ok(Turn { shared: Some(self.0.clone()) });
            }
            line.wait(tenant, self.0.tenant_waiting_max)
        };
        let turn = turn.ok_or_else(|| {
            let TurnstileShared { what, tenant_waiting_max, .. } = &*self.0;
            let text = format!("{tenant_waiting_max} {what} of this tenant wait already; try again later");
            Fault::new(ErrorCode::QueueFull, text)
        })?;
        // A sender is only dropped with its turnstile, which `self` keeps.
        turn.await.map_err(|_| Fault::new(ErrorCode::Unavailable, "the node is shutting down"))
    }
}

impl Line {
    /// Adds a waiter of the tenant. `None` if too many calls of the tenant wait.
    fn wait(&mut self, tenant: &TenantId, waiting_max: usize) -> Option<oneshot::Receiver<Turn>> {
        let waiting = self.waiting.entry(tenant.clone()).or_default();
        if waiting.is_empty() {
            self.order.push_back(tenant.clone());
        }
        if waiting.len() >= waiting_max {
            // Removes cancelled waiters, which still count here.
            waiting.retain(|waiter| !waiter.is_closed());
        }
        // On return, the tenant may be in the order without waiters. `next` skips such tenants.
        if waiting.len() >= waiting_max {
            return None;
        }
        let (sender, turn) = oneshot::channel();
        waiting.push_back(sender);
        Some(turn)
    }

    /// Removes and returns the next waiter. Its tenant moves to the end of the order.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        while let Some(tenant) = self.order.pop_front() {
            let Some(waiting) = self.waiting.get_mut(&tenant) else { continue };
            // Cancelled waiters do not take the turn of their tenant.
            let mut next = waiting.pop_front();
            while next.as_ref().is_some_and(oneshot::Sender::is_closed) {
                next = waiting.pop_front();
            }
            if waiting.is_empty() {
                self.waiting.remove(&tenant);
            } else {
                self.order.push_back(tenant);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        loop {
            let next = {
                let mut line = shared.line.lock();
                match line.next() {
                    Some(next) => next,
                    None => {
                        line.free += 1;
                        return;
                    }
                }
            };
            match next.send(Turn { shared: Some(shared.clone()) }) {
                Ok(()) => return,
                // The waiter has given up, so the turn goes to the next waiter.
                Err(mut turn) => turn.shared = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use proptest::prelude::*;

    type Waiting = BoxFuture<'static, Result<Turn, Fault>>;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    /// Requests a turn. Returns the turn if one was free.
    fn join(turnstile: &Turnstile, name: &str) -> (Waiting, Option<Result<Turn, Fault>>) {
        let turnstile = turnstile.clone();
        let tenant = tenant(name);
        let mut waiting = async move { turnstile.turn(&tenant).await }.boxed();
        let now = (&mut waiting).now_or_never();
        (waiting, now)
    }

    fn turn(turnstile: &Turnstile, name: &str) -> Turn {
        join(turnstile, name).1.unwrap().unwrap()
    }

    #[test]
    fn try_turn_takes_only_free_turns() {
        let turnstile = Turnstile::new("tests", 2, 10);
        let turns = [turnstile.try_turn(), turnstile.try_turn()];
        assert!(turns.iter().all(Option::is_some) && turnstile.try_turn().is_none());
        let (mut waiting, _) = join(&turnstile, "a");
        drop(turns);
        assert!(turnstile.try_turn().is_some(), "the waiter needs only one of two turns");
        assert!((&mut waiting).now_or_never().is_some());
        assert_eq!(turnstile.0.line.lock().free, 2);
    }

    #[test]
    fn tenants_take_turns() {
        let turnstile = Turnstile::new("tests", 1, 10);
        let mut current = turn(&turnstile, "a");
        let names = ["a", "a", "a", "b", "b", "c"];
        let mut line: Vec<_> = names.map(|name| (name, join(&turnstile, name).0)).into();
        let mut order = Vec::new();
        while !line.is_empty() {
            drop(current);
            let ready = |(_, waiting): &mut (_, Waiting)| waiting.now_or_never();
            let (at, turn) =
                line.iter_mut().map(ready).enumerate().find_map(|(at, turn)| Some((at, turn?))).unwrap();
            current = turn.unwrap();
            order.push(line.remove(at).0);
        }
        assert_eq!(order, ["a", "b", "c", "a", "b", "a"]);
        drop(current);
        assert_eq!(turnstile.0.line.lock().free, 1);
    }

    #[test]
    fn line_of_a_tenant_is_bounded_and_leaving_makes_room() {
        let turnstile = Turnstile::new("compilations", 1, 2);
        let current = turn(&turnstile, "a");
        let (first, _) = join(&turnstile, "a");
        let (mut second, _) = join(&turnstile, "a");
        let Some(Err(fault)) = join(&turnstile, "a").1 else { panic!("it was not refused") };
        assert_eq!(fault.code, ErrorCode::QueueFull);
        assert!(fault.text.starts_with("2 compilations of this tenant wait"), "{}", fault.text);
        let (mut other, refused) = join(&turnstile, "b");
        assert!(refused.is_none());
        drop(first);
        let (_third, refused) = join(&turnstile, "a");
        assert!(refused.is_none(), "one has left the line");
        drop(current);
        let next = (&mut second).now_or_never().unwrap().unwrap();
        assert!((&mut other).now_or_never().is_none());
        drop(next);
        assert!((&mut other).now_or_never().is_some());
    }

    #[test]
    fn turn_of_one_who_has_left_goes_to_the_next() {
        let turnstile = Turnstile::new("tests", 1, 10);
        let current = turn(&turnstile, "a");
        let (left, _) = join(&turnstile, "b");
        let (mut stays, _) = join(&turnstile, "c");
        drop(left);
        drop(current);
        let stays = (&mut stays).now_or_never().unwrap();
        drop(stays);
        // A turn that was given, but not received.
        let current = turn(&turnstile, "a");
        let (given, _) = join(&turnstile, "b");
        drop(current);
        drop(given);
        assert_eq!(turnstile.0.line.lock().free, 1);
        assert!(turnstile.0.line.lock().waiting.is_empty());
    }

    proptest! {
        /// With any number of waiters, a tenant gets a turn after at most one turn of each other
        /// tenant, and no turn is lost.
        #[test]
        fn every_tenant_in_line_is_served_in_each_round(
            turns in 1_usize..3,
            joining in prop::collection::vec(0_usize..4, 1..60),
            leaving in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        ) {
            let names = ["a", "b", "c", "d"];
            let turnstile = Turnstile::new("tests", turns, 1_000);
            let mut held: Vec<_> = (0..turns).map(|_| turn(&turnstile, "z")).collect();
            let mut line: Vec<_> = joining.iter().map(|at| (*at, join(&turnstile, names[*at]).0)).collect();
            for index in leaving {
                if !line.is_empty() {
                    drop(line.remove(index.index(line.len())));
                }
            }
            let mut since = [0_usize; 4];
            while !line.is_empty() {
                held.remove(0);
                let ready = |(_, waiting): &mut (_, Waiting)| waiting.now_or_never();
                let next = line.iter_mut().map(ready).enumerate().find_map(|(at, turn)| Some((at, turn?)));
                let (at, turn) = next.unwrap();
                held.push(turn.unwrap());
                let (served, _) = line.remove(at);
                for (tenant, since) in since.iter_mut().enumerate() {
                    let waits = line.iter().any(|(other, _)| *other == tenant);
                    *since = if tenant == served || !waits { 0 } else { *since + 1 };
                    prop_assert!(*since <= 4, "{tenant} waits for {since} turns");
                }
            }
            drop(held);
            prop_assert_eq!(turnstile.0.line.lock().free, turns);
        }
    }
}
