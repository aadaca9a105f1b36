//! The version of a model that runs use if they name none, and the canary beside it. Pure.
//!
//! Without a [`ModelHead`], the newest version is active. A head exists from the first canary of a
//! model on. A version that is newer than all versions that the head knows is active, whatever the
//! head says: a push without a canary therefore needs no change of the head. The first alias also
//! creates a head, with the newest version as the active one.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Bound;
use weir_types::Version;
use weir_types::api::{Aliases, Canary, Shadow};

/// The datastore's record of the active version and the aliases of a model that has or had a canary
/// or an alias.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ModelHead {
    /// The active version, unless there is a version above `newest`.
    pub(super) active: Version,
    /// The newest version when this was written.
    pub(super) newest: Version,
    /// The version that was active before, to roll back to. It may be removed by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) previous: Option<Version>,
    /// The version that gets a share of the runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) canary: Option<Canary>,
    /// The version that gets copies of inferences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) shadow: Option<Shadow>,
    /// Other names of versions.
    #[serde(default, skip_serializing_if = "Aliases::is_empty")]
    pub(super) aliases: Aliases,
}

/// The versions of a model with a role.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModelRoles {
    /// The version that runs use if they name none.
    pub active: Option<Version>,
    /// The version to roll back to.
    pub previous: Option<Version>,
    /// The version that gets a share of the runs.
    pub canary: Option<Canary>,
    /// The version that gets copies of inferences.
    pub shadow: Option<Shadow>,
}

impl ModelRoles {
    /// The roles of the versions that a node knows.
    pub(crate) fn new<T>(versions: &BTreeMap<Version, T>, head: Option<&ModelHead>) -> Self {
        let Some((newest, _)) = versions.last_key_value() else { return Self::default() };
        let newest = *newest;
        let is_known = |version: &Version| versions.contains_key(version);
        let between = |after: Version, before: Version| {
            let within = (Bound::Excluded(after), Bound::Excluded(before));
            (after < before)
                .then(|| versions.range(within).next_back())
                .flatten()
                .map(|(version, _)| *version)
        };
        let below = |version| between(Version(0), version);
        let Some(head) = head else {
            return Self { active: Some(newest), previous: below(newest), canary: None, shadow: None };
        };
        let recorded = Some(head.active).filter(is_known);
        if newest > head.newest {
            let previous = between(head.newest, newest).or(recorded).or_else(|| below(newest));
            return Self { active: Some(newest), previous, canary: None, shadow: None };
        }
        let previous = head.previous.filter(is_known);
        let active = recorded.or(previous).or_else(|| below(head.active));
        let previous = previous.filter(|_| recorded.is_some()).or_else(|| below(active?));
        Self { active, previous, canary: head.canary, shadow: head.shadow }
    }

    /// Whether runs without a version may use `version`.
    pub fn answers(&self, version: Version) -> bool {
        self.active == Some(version) || self.canary.is_some_and(|canary| canary.version == version)
    }

    /// Whether runs without a version, or copies of them, may use `version`.
    pub fn serves(&self, version: Version) -> bool {
        self.answers(version) || self.shadow.is_some_and(|shadow| shadow.version == version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canary(version: u32) -> Canary {
        Canary { version: Version(version), percent: 10, started_at_ms: 1, promote_after_ms: None }
    }

    fn head(active: u32, newest: u32, previous: Option<u32>, with: Option<u32>) -> ModelHead {
        let previous = previous.map(Version);
        ModelHead {
            active: Version(active),
            newest: Version(newest),
            previous,
            canary: with.map(canary),
            shadow: None,
            aliases: Aliases::new(),
        }
    }

    /// The active version, the one to roll back to, and the canary.
    fn roles(versions: &[u32], head: Option<&ModelHead>) -> (Option<u32>, Option<u32>, Option<u32>) {
        let versions = versions.iter().map(|version| (Version(*version), ())).collect();
        let ModelRoles { active, previous, canary, .. } = ModelRoles::new(&versions, head);
        let number = |version: Option<Version>| version.map(|version| version.0);
        (number(active), number(previous), number(canary.map(|canary| canary.version)))
    }

    #[test]
    fn newest_version_is_active_without_a_head() {
        assert_eq!(roles(&[], None), (None, None, None));
        assert_eq!(roles(&[3], None), (Some(3), None, None));
        assert_eq!(roles(&[1, 2, 5], None), (Some(5), Some(2), None));
    }

    #[test]
    fn head_keeps_the_active_version_beside_a_canary_and_after_it() {
        assert_eq!(roles(&[1, 2, 3], Some(&head(2, 3, Some(1), Some(3)))), (Some(2), Some(1), Some(3)));
        assert_eq!(roles(&[1, 2, 3], Some(&head(2, 3, Some(1), None))), (Some(2), Some(1), None));
        assert_eq!(roles(&[1, 2, 3], Some(&head(3, 3, Some(2), None))), (Some(3), Some(2), None));
        // This node cannot read the canary yet.
        assert_eq!(roles(&[1, 2], Some(&head(2, 3, Some(1), Some(3)))), (Some(2), Some(1), Some(3)));
    }

    #[test]
    fn later_push_replaces_the_active_version_and_the_canary() {
        let rolled_back = head(2, 3, Some(1), None);
        assert_eq!(roles(&[1, 2, 3, 4], Some(&rolled_back)), (Some(4), Some(2), None), "not the canary");
        assert_eq!(roles(&[1, 2, 3, 4, 5], Some(&rolled_back)), (Some(5), Some(4), None));
        assert_eq!(roles(&[1, 2, 3, 4], Some(&head(2, 3, None, Some(3)))), (Some(4), Some(2), None));
        assert_eq!(roles(&[3, 4], Some(&head(2, 3, None, None))), (Some(4), Some(3), None), "2 is removed");
    }

    #[test]
    fn version_before_it_replaces_a_removed_active_version() {
        let promoted = head(4, 4, Some(2), None);
        assert_eq!(roles(&[1, 2, 3], Some(&promoted)), (Some(2), Some(1), None), "3 was rolled back");
        assert_eq!(roles(&[1, 3], Some(&promoted)), (Some(3), Some(1), None));
        assert_eq!(roles(&[3], Some(&head(2, 3, None, None))), (None, None, None));
    }
}
