//! Devices strictly in turn.

use super::cycle::Cycle;
use super::in_order::{DeviceSelector, InOrder};
use super::{PlacementRequest, RoomFinder};
use crate::{DeviceKey, View};

/// `round-robin` of the KaaS thesis, chapter 6: the oldest waiting invocation waits for the next
/// device in turn, even if other devices are free.
pub type RoundRobin = InOrder<NextInTurn>;

/// The next device in turn that is large enough, once it can start the invocation.
#[derive(Debug, Default)]
pub struct NextInTurn(Cycle);

impl DeviceSelector for NextInTurn {
    const NAME: &'static str = "round-robin";

    fn choose(
        &mut self,
        now_ns: u64,
        view: &View,
        placer: &RoomFinder,
        request: &PlacementRequest,
    ) -> Option<DeviceKey> {
        let device = self.0.next(now_ns, view, placer, request)?;
        if !placer.can_start(now_ns, view, device, request) {
            return None;
        }
        self.0.used(device);
        Some(device)
    }
}
