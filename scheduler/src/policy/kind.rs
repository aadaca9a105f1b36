//! Policies by name.

use super::{
    Balance, BusyChoice, Clockwork, Exclusive, ExclusiveOptions, FinishFirst, LoadBalancing, Locality, Mlfqs,
    Policy, RoomFinder, RoundRobin, Srtf,
};
use crate::{LeastLoss, LeastRecentlyUsed};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The scheduling policies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PolicyKind {
    /// Weir's own policy.
    #[default]
    FinishFirst,
    /// First come, first served; the baseline of the LALB paper.
    Lb,
    /// Locality-aware load balancing, of the LALB paper.
    Lalb,
    /// Locality-aware load balancing with out-of-order dispatch, of the LALB paper.
    LalbO3,
    /// Devices strictly in turn; the baseline of the KaaS thesis.
    RoundRobin,
    /// The next free device, of the KaaS thesis.
    Balance,
    /// Shortest run time first, of the KaaS thesis.
    Srtf,
    /// A random choice among levels of run times, of the KaaS thesis.
    Mlfqs,
    /// Devices partitioned by model, of the KaaS thesis.
    Exclusive,
    /// Clockwork: earliest due time first, among the resident models.
    Clockwork,
}

/// Options of policies. Each policy reads the options that concern it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyOptions {
    /// Visits after which `lalb-o3` places an invocation regardless of cost.
    pub o3_limit: u32,
    /// Which busy device `lalb` and `lalb-o3` choose.
    pub busy_choice: BusyChoice,
    /// How `exclusive` partitions devices.
    pub exclusive: ExclusiveOptions,
    /// The random seed of `mlfqs`.
    pub seed: u64,
    /// The victim selection; `None` selects the policy's default.
    pub victims: Option<VictimKind>,
}

/// The victim selection policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VictimKind {
    /// [`LeastRecentlyUsed`]
    LeastRecentlyUsed,
    /// [`LeastLoss`]
    LeastLoss,
}

impl Default for PolicyOptions {
    fn default() -> Self {
        Self {
            o3_limit: Locality::LIMIT,
            busy_choice: BusyChoice::First,
            exclusive: ExclusiveOptions::default(),
            seed: 0,
            victims: None,
        }
    }
}

/// An error for an unknown policy name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy {name:?}; there are: {}", PolicyKind::names())]
pub struct UnknownPolicy {
    name: String,
}

impl PolicyKind {
    /// All policies.
    pub const ALL: [Self; 10] = [
        Self::FinishFirst,
        Self::Lb,
        Self::Lalb,
        Self::LalbO3,
        Self::RoundRobin,
        Self::Balance,
        Self::Srtf,
        Self::Mlfqs,
        Self::Exclusive,
        Self::Clockwork,
    ];

    /// The policy's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FinishFirst => "finish-first",
            Self::Lb => "lb",
            Self::Lalb => "lalb",
            Self::LalbO3 => "lalb-o3",
            Self::RoundRobin => "round-robin",
            Self::Balance => "balance",
            Self::Srtf => "srtf",
            Self::Mlfqs => "mlfqs",
            Self::Exclusive => "exclusive",
            Self::Clockwork => "clockwork",
        }
    }

    /// Builds the policy.
    #[must_use]
    pub fn build(self, options: &PolicyOptions) -> Box<dyn Policy> {
        let busy = options.busy_choice;
        let known_for =
            if self == Self::FinishFirst { VictimKind::LeastLoss } else { VictimKind::LeastRecentlyUsed };
        let placer = options.victims.unwrap_or(known_for).placer();
        match self {
            Self::FinishFirst => Box::new(FinishFirst::new(placer)),
            Self::Lb => Box::new(LoadBalancing::new(placer)),
            Self::Lalb => Box::new(Locality::in_order(busy, placer)),
            Self::LalbO3 => Box::new(Locality::out_of_order(options.o3_limit, busy, placer)),
            Self::RoundRobin => Box::new(RoundRobin::new(placer)),
            Self::Balance => Box::new(Balance::new(placer)),
            Self::Srtf => Box::new(Srtf::new(placer)),
            Self::Mlfqs => Box::new(Mlfqs::new(placer, options.seed)),
            Self::Exclusive => Box::new(Exclusive::new(placer, options.exclusive)),
            Self::Clockwork => Box::new(Clockwork::new(placer)),
        }
    }

    fn names() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}

impl VictimKind {
    /// A placer with this victim selection.
    pub(crate) fn placer(self) -> RoomFinder {
        match self {
            Self::LeastRecentlyUsed => RoomFinder::new(Box::new(LeastRecentlyUsed)),
            Self::LeastLoss => RoomFinder::new(Box::new(LeastLoss)),
        }
    }
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;
    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let unknown = || UnknownPolicy { name: name.chars().take(80).collect() };
        Self::ALL.into_iter().find(|kind| kind.as_str() == name).ok_or_else(unknown)
    }
}

impl TryFrom<String> for PolicyKind {
    type Error = UnknownPolicy;
    fn try_from(name: String) -> Result<Self, UnknownPolicy> {
        name.parse()
    }
}

impl From<PolicyKind> for String {
    fn from(kind: PolicyKind) -> Self {
        kind.as_str().into()
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
