//! Which models a device gives up to make room.

mod least_recently_used;
pub use least_recently_used::LeastRecentlyUsed;

mod least_loss;
pub use least_loss::LeastLoss;
pub(crate) use least_loss::loss_ns;

use crate::{DeviceKey, Freeing, ModelKey, View};
use smallvec::SmallVec;

/// The choice of victims.
pub trait VictimPolicy: Send {
    /// Models that make room (`freeing`), beside what it has already, for at least `bytes`; none if there are not enough. Only
    /// [`candidates`](crate::DeviceView::candidates) of `device` may be chosen, and none for which `keep` holds.
    fn choose(
        &self,
        now_ns: u64,
        view: &View,
        device: DeviceKey,
        bytes: u64,
        freeing: Freeing<'_>,
        keep: &dyn Fn(ModelKey) -> bool,
    ) -> Option<Victims>;
}

/// Models that a device gives up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Victims {
    /// First to go first.
    pub models: SmallVec<[ModelKey; 4]>,
    /// Models of the same tenant that other devices give up, so that it keeps to its part of memory.
    pub elsewhere: SmallVec<[(DeviceKey, ModelKey); 1]>,
    /// What giving them up is expected to cost later, in the time of loads. 0 from those who do not count.
    pub loss_ns: u64,
}
