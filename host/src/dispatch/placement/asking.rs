//! A node that asks the cluster's dispatcher.

use super::Placements;
use super::driver::Driver;
use super::state::{Elsewhere, Placer, State};
use crate::cluster::wire::{News, Order};
use std::time::Instant;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// The way to the dispatcher.
pub(crate) struct Link {
    pub(crate) news: mpsc::Sender<News>,
    /// Cancelled when the link cannot be kept up with.
    pub(crate) broken: CancellationToken,
}

impl Link {
    pub(super) fn send(&self, news: News) {
        // What one link has missed is told over the next.
        if self.news.try_send(news).is_err() {
            self.broken.cancel();
        }
    }
}

impl Placements {
    /// Ask the dispatcher at the other end of `link` from now on, which is told of this node and of everything that waits.
    pub(crate) fn ask(&self, link: Link) {
        let mut state = self.lock();
        let hello = self.hello(&state.books);
        link.send(News::Hello(hello));
        self.replace(&mut state, Placer::Dispatcher(link));
        self.wake_at_ns.send_replace(None);
        self.announce_waiting(&mut state);
    }

    /// Place by itself from now on, if it did not do so before: the dispatcher is lost, or it is to be this node.
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

    /// The dispatcher has decided.
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
