//! The next free device, in turn.

use super::cycle::Cycle;
use super::in_order::{DeviceSelector, InOrder};
use super::{PlacementRequest, RoomFinder};
use crate::{DeviceKey, View};

/// `balance` of the KaaS thesis, chapter 6: the oldest waiting invocation goes to the next free
/// device, in turn.
pub type Balance = InOrder<NextFree>;

/// The next device in turn that can start the invocation.
#[derive(Debug, Default)]
pub struct NextFree(Cycle);

impl DeviceSelector for NextFree {
    const NAME: &'static str = "balance";

    fn choose(
        &mut self,
        now_ns: u64,
        view: &View,
        placer: &RoomFinder,
        request: &PlacementRequest,
    ) -> Option<DeviceKey> {
        let device = self.0.next_free(now_ns, view, placer, request)?;
        self.0.used(device);
        Some(device)
    }
}
