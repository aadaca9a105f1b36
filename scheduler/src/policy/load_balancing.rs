//! First come, first served, as on today's platforms: the oldest waiting invocation goes to a free
//! device.

use super::in_order::{DeviceSelector, InOrder};
use super::{PlacementRequest, RoomFinder};
use crate::{DeviceKey, View};

/// `lb` of the LALB paper: in the order of arrival, ignoring resident models.
///
/// Of several free devices, the device with the most dispatches is chosen. An invocation that fits
/// on no device blocks all later invocations.
pub type LoadBalancing = InOrder<AnyFree>;

/// The first free device, whatever models it holds.
#[derive(Debug, Default)]
pub struct AnyFree;

impl DeviceSelector for AnyFree {
    const NAME: &'static str = "lb";

    fn choose(
        &mut self,
        now_ns: u64,
        view: &View,
        placer: &RoomFinder,
        request: &PlacementRequest,
    ) -> Option<DeviceKey> {
        view.open().find(|device| placer.can_start(now_ns, view, *device, request))
    }
}
