//! Canaries and shadows of functions and models: how calls are split between the active version and a
//! canary, which calls are copied to a shadow, how their outcomes are counted, and how both versions
//! are compared. The registries store canaries and shadows.

mod judge;
mod recent;
mod shadow;
mod share;
mod split;
mod trial;

pub use judge::{Reason, Verdict, compare, judge, judge_recent, waits_for};
pub use recent::RecentCalls;
pub use shadow::{CallEnd, ChosenCall, CopyOutcome, ObservedCopies, ShadowCounts, ShadowSlot};
pub use share::{CanaryShare, ShadowShare};
pub(crate) use split::Split;
pub use trial::{CallOutcome, CanaryOf, Observed, TrialCounts, TrialSlot};
