//! A node that uses the cluster's dispatcher.

use super::Placements;
use super::driver::Driver;
use super::state::{Elsewhere, Placer, State};
use crate::cluster::wire::{News, Order};
use std::time::Instant;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// The connection to the dispatcher.
pub(crate) struct Link {
    pub(crate) news: mpsc::Sender<News>,
    /// Cancelled when this node cannot keep up with the link.
    pub(crate) broken: CancellationToken,
}

impl Link {
    pub(super) fn send(&self, news: News) {
        // The next link reports the full state again, so an event lost here does no harm.
        if self.news.try_send(news).is_err() {
            self.broken.cancel();
        }
    }
}

impl Placements {
    /// Switches to the dispatcher at the other end of `link`: introduces this node to it and
    /// announces all waiting invocations.
    pub(crate) fn ask(&self, link: Link) {
        let mut state = self.lock();
        let hello = self.hello(&state.books);
        link.send(News::Hello(hello));
        self.replace(&mut state, Placer::Dispatcher(link));
        self.wake_at_ns.send_replace(None);
        self.announce_waiting(&mut state);
    }

    /// Switches to this node's own scheduler, if it is not in use already: the dispatcher is lost,
    /// or this node is to be the dispatcher.
    pub(crate) fn place_alone(&self) {
        let mut state = self.lock();
        if matches!(state.placer, Placer::Own(_)) {
            return;
        }
        let hello = self.hello(&state.books);
        let now_ns = self.time_ns(Instant::now());
        let driver = Driver::new(now_ns, hello, &self.scheduler, self.record.is_some());
        self.replace(&mut state, Placer::Own(Box::new(driver)));
        self.announce_waiting(&mut state);
    }

    /// Carries out a decision of the dispatcher.
    pub(crate) fn order(&self, order: Order) {
        let mut state = self.lock();
        match order {
            Order::Start { invocation, node, device, address, evict } => {
                let elsewhere = (node != self.node).then_some(Elsewhere(address));
                state.started(invocation, elsewhere, device, evict);
            }
            Order::Reject { invocation, why, estimate } => state.rejected(invocation, why, estimate),
            Order::MayEvict { device, evict } => self.may_evict(&mut state, device, evict),
            Order::Beat => {}
        }
    }

    fn replace(&self, state: &mut State, placer: Placer) {
        if let (Placer::Own(driver), Some(record)) =
            (&mut std::mem::replace(&mut state.placer, placer), &self.record)
        {
            record.end(driver.take_lines());
        }
    }

    fn announce_waiting(&self, state: &mut State) {
        let arrivals: Vec<_> = state.waiting.values().filter_map(|waiting| waiting.arrival.clone()).collect();
        for arrival in arrivals {
            self.announce(state, arrival, |state, action| self.carry_out(state, action));
        }
    }
}
