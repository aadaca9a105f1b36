//! Which models a device gives up to make room.

mod least_recently_used;
pub use least_recently_used::LeastRecentlyUsed;

use crate::DeviceView;
use weir_types::ModelId;

/// The choice of victims.
pub trait VictimPolicy: Send {
    /// Put models that together take at least `bytes` into `victims`, first to go first. Only
    /// [`candidates`](DeviceView::candidates) of `device` may be chosen, and none for which `keep` holds. False if they are not
    /// enough; `victims` is then left in any state.
    fn choose(
        &self,
        device: &DeviceView,
        bytes: u64,
        keep: &dyn Fn(&ModelId) -> bool,
        victims: &mut Vec<ModelId>,
    ) -> bool;
}
