//! The requested share of a canary, and the requested percentage of a shadow.

use weir_types::Version;
use weir_types::api::{Canary, Shadow};

/// The share of a canary to start, and when to promote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CanaryShare {
    /// Its percentage of the calls.
    pub percent: u8,
    /// Time after which the node promotes it; `None`: only a request does.
    pub promote_after_ms: Option<u64>,
}

impl CanaryShare {
    /// Whether `canary` has this share already.
    pub fn is_of(self, canary: Canary) -> bool {
        self.percent == canary.percent && self.promote_after_ms == canary.promote_after_ms
    }

    /// The canary `version` that starts with this share.
    pub(crate) fn start(self, version: Version, now_ms: u64) -> Canary {
        let Self { percent, promote_after_ms } = self;
        Canary { version, percent, started_at_ms: now_ms, promote_after_ms }
    }
}

/// The percentage of the calls to copy to a shadow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShadowShare {
    /// The percentage.
    pub percent: u8,
}

impl ShadowShare {
    /// Whether `shadow` has this percentage already.
    pub fn is_of(self, shadow: Shadow) -> bool {
        self.percent == shadow.percent
    }

    /// The shadow `version` that starts with this percentage.
    pub(crate) fn start(self, version: Version, now_ms: u64) -> Shadow {
        Shadow { version, percent: self.percent, started_at_ms: now_ms }
    }
}
