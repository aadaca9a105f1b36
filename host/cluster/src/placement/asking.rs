//! A node that uses the cluster's dispatcher.

use super::clock::now;
use super::driver::PlacementDriver;
use super::state::{Elsewhere, PlacementState, Placer};
use super::{MESSAGES_PER_LOCK, Placements};
use crate::wire::{DispatcherCommand, NodeEvent, RUNNING_PER_MESSAGE, STAGED_PER_MESSAGE};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use weir_scheduler::Action;
use weir_types::DeviceId;

/// The connection to the dispatcher.
pub struct Link {
    pub events: mpsc::Sender<NodeEvent>,
    /// Cancelled when this node cannot keep up with the link.
    pub broken: CancellationToken,
}

impl Link {
    pub(super) fn send(&self, event: NodeEvent) {
        // The next link reports the full state again, so an event lost here does no harm.
        if self.events.try_send(event).is_err() {
            self.broken.cancel();
        }
    }
}

impl Placements {
    /// Switches to the dispatcher at the other end of `link`: introduces this node to it and
    /// announces all waiting invocations.
    pub fn ask(&self, link: Link) {
        let mut state = self.state.lock();
        let mut hello = self.hello(&state);
        let mut rest = hello.running.split_off(hello.running.len().min(RUNNING_PER_MESSAGE));
        hello.has_more = !rest.is_empty();
        let staged = hello.staged.split_off(hello.staged.len().min(STAGED_PER_MESSAGE));
        link.send(NodeEvent::Hello(hello));
        while !rest.is_empty() {
            let more = rest.split_off(rest.len().min(RUNNING_PER_MESSAGE));
            let running = std::mem::replace(&mut rest, more);
            link.send(NodeEvent::Running { running, is_last: rest.is_empty() });
        }
        for models in staged.chunks(STAGED_PER_MESSAGE) {
            link.send(NodeEvent::Staged { models: models.to_vec() });
        }
        self.replace(&mut state, Placer::Dispatcher(link));
        self.wake_at_ns.send_replace(None);
        self.announce_waiting(&mut state);
    }

    /// Switches to this node's own scheduler, if it is not in use already: the dispatcher is lost,
    /// or this node is to be the dispatcher. Without devices, the calls wait until there is a dispatcher.
    pub fn place_alone(&self) {
        let mut state = self.state.lock();
        if matches!(state.placer, Placer::Own(_)) {
            return;
        }
        let hello = self.hello(&state);
        let now_ns = self.time_ns(now());
        let mut driver = PlacementDriver::new(now_ns, hello, &self.scheduler, self.record.is_some());
        if self.devices.is_empty() && self.address.is_some() {
            driver.await_election(now_ns);
        }
        self.replace(&mut state, Placer::Own(Box::new(driver)));
        self.announce_waiting(&mut state);
    }

    /// Carries out decisions of the dispatcher.
    pub fn execute(&self, commands: Vec<DispatcherCommand>) {
        let mut commands = commands.into_iter();
        while commands.len() > 0 {
            let mut state = self.state.lock();
            for command in commands.by_ref().take(MESSAGES_PER_LOCK) {
                self.execute_one(&mut state, command);
            }
        }
    }

    fn execute_one(&self, state: &mut PlacementState, command: DispatcherCommand) {
        match command {
            DispatcherCommand::Start { invocation, node, device, address, evict, why } => {
                let device_id = device.map(|ordinal| DeviceId { node, ordinal });
                let action =
                    Action::Start { invocation, node, device: device_id, evict: Vec::new(), why: *why };
                state.explain(&action);
                let elsewhere = (node != self.node).then_some(Elsewhere(address));
                state.started(invocation, elsewhere, device, evict);
            }
            DispatcherCommand::Reject { invocation, why, estimate, alternatives } => {
                state.explain(&Action::Reject { invocation, why, estimate, alternatives });
                state.rejected(invocation, why, estimate);
            }
            DispatcherCommand::Reserved { invocation } => state.reserved(invocation),
            DispatcherCommand::Abandoned { invocation } => self.end_unknown(state, invocation),
            DispatcherCommand::MayEvict { device, evict } => self.may_evict(state, device, evict),
            DispatcherCommand::Load { device, model, evict } => {
                self.require_here(state, device, model, evict);
            }
            DispatcherCommand::Release { device, model } => {
                self.release_here(state, device, &model);
                self.report_released(state);
            }
            DispatcherCommand::Beat => {}
        }
    }

    fn replace(&self, state: &mut PlacementState, placer: Placer) {
        // The next scheduler requires models again, if it has the list.
        state.residency.release_all_required(now());
        if let (Placer::Own(driver), Some(record)) =
            (&mut std::mem::replace(&mut state.placer, placer), &self.record)
        {
            record.end(driver.take_lines());
        }
    }

    fn announce_waiting(&self, state: &mut PlacementState) {
        let arrivals: Vec<_> = state.waiting.values().filter_map(|waiting| waiting.arrival.clone()).collect();
        for arrival in arrivals {
            self.announce(state, arrival, |state, action| self.carry_out(state, action));
        }
    }
}
