//! Round-robin iteration over devices.

use super::{PlacementRequest, RoomFinder};
use crate::{DeviceKey, DeviceView, View};

/// A cyclic scan that starts after the device used last.
#[derive(Debug, Default)]
pub(super) struct Cycle {
    last: Option<DeviceKey>,
}

impl Cycle {
    /// The next device that can start `request`, now or after its running invocations have ended.
    pub(super) fn next(
        &self,
        now_ns: u64,
        view: &View,
        placer: &RoomFinder,
        request: &PlacementRequest,
    ) -> Option<DeviceKey> {
        self.turn(view).find(|key| can_hold(now_ns, view, placer, *key, request))
    }

    /// The next device that can start `request` now.
    pub(super) fn next_free(
        &self,
        now_ns: u64,
        view: &View,
        placer: &RoomFinder,
        request: &PlacementRequest,
    ) -> Option<DeviceKey> {
        view.open().next()?;
        self.turn(view).find(|key| placer.can_start(now_ns, view, *key, request))
    }

    pub(super) fn used(&mut self, device: DeviceKey) {
        self.last = Some(device);
    }

    /// Every device once.
    fn turn(&self, view: &View) -> impl Iterator<Item = DeviceKey> {
        let first = view.device_after(self.last);
        let after = move |key: &DeviceKey| view.device_after(Some(*key)).filter(|next| Some(*next) != first);
        std::iter::successors(first, after)
    }
}

/// Whether a device is large enough for `request`, and has room for it now or after its running
/// invocations have ended.
pub(super) fn can_hold(
    now_ns: u64,
    view: &View,
    placer: &RoomFinder,
    key: DeviceKey,
    request: &PlacementRequest,
) -> bool {
    let could_hold =
        |device: &&DeviceView| device.takes(&request.models) && device.is_large_enough(&request.models);
    let Some(device) = view.device(key).filter(could_hold) else {
        return false;
    };
    // An idle device gets no more room, unless the tenant frees memory on other devices.
    device.running() > 0 || placer.fit(now_ns, view, key, request).is_some()
}
