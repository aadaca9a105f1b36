//! Victim selection: which models a device evicts to make room.

mod least_recently_used;
pub use least_recently_used::LeastRecentlyUsed;

mod least_loss;
pub use least_loss::LeastLoss;
pub(crate) use least_loss::loss_ns;

use crate::{DeviceKey, Freeing, ModelKey, View};
use smallvec::SmallVec;

/// A victim selection policy.
pub trait VictimPolicy: Send {
    /// Chooses models that bring the freed bytes, including those that `freeing` has already, to at
    /// least `bytes`; `None` if the candidates do not suffice. Victims are
    /// [`candidates`](crate::DeviceView::candidates) of `device` for which `keep` is false.
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

/// Models that a device evicts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Victims {
    /// In order of eviction.
    pub models: SmallVec<[ModelKey; 4]>,
    /// Models of the same tenant that other devices evict, so that the tenant stays within its
    /// memory limit.
    pub elsewhere: SmallVec<[(DeviceKey, ModelKey); 1]>,
    /// Expected cost of the evictions, in load time; 0 from policies without an estimate.
    pub loss_ns: u64,
}
