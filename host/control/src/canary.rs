//! Canaries of functions and models: how calls are split between the active version and a canary, how
//! their outcomes are counted, and how both versions are compared. The registries store canaries.

mod judge;
mod recent;
mod share;
mod split;
mod trial;

pub use judge::{Reason, Verdict, compare, judge, judge_recent, waits_for};
pub use recent::RecentCalls;
pub use share::CanaryShare;
pub(crate) use split::Split;
pub use trial::{CallOutcome, CanaryOf, Observed, TrialCounts, TrialSlot};
