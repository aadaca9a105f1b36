//! Aliases of versions: resolution and changes. Pure. The heads of functions, workflows and models
//! contain them, so that each change is one transaction, and every node follows it.

use weir_types::api::{AliasTarget, Aliases};
use weir_types::{Alias, Version, VersionRef};

/// The versions of a name to which its aliases refer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AliasView<'a> {
    /// The aliases that were set.
    pub(crate) set: &'a Aliases,
    /// The active version.
    pub(crate) active: Option<Version>,
    /// The canary.
    pub(crate) canary: Option<Version>,
}

/// Why an alias has no version, or was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AliasError {
    /// The alias names no version.
    #[error("{name} has no alias {alias}; it has {have}")]
    Unknown {
        /// The function, model or workflow.
        name: String,
        /// The alias.
        alias: Alias,
        /// The existing aliases, separated by commas.
        have: String,
    },
    /// A rollback or a removal was requested of a built-in alias that is not set.
    #[error("alias {alias} of {name} is not set: it follows the active version or the canary by default")]
    NotSet {
        /// The function, model or workflow.
        name: String,
        /// The alias.
        alias: Alias,
    },
    /// A rollback was requested, and the alias named no version before that still exists.
    #[error("alias {alias} of {name} has no earlier version to roll back to; set it to a version")]
    NothingBefore {
        /// The function, model or workflow.
        name: String,
        /// The alias.
        alias: Alias,
    },
    /// The name has reached the limit of aliases.
    #[error("{0} has {max} aliases; remove one first", max = Alias::COUNT_MAX)]
    TooMany(String),
    /// The deletion of a version was requested that an alias names.
    #[error(
        "version {version} of {name} has the alias {alias}; remove the alias or set it to another version first"
    )]
    InUse {
        /// The function, model or workflow.
        name: String,
        /// The version.
        version: Version,
        /// An alias of the version.
        alias: Alias,
    },
}

impl AliasView<'_> {
    /// The number of a version; `None` without a version. `name` is for the error.
    pub(crate) fn resolve(
        self,
        name: &str,
        version: Option<&VersionRef>,
    ) -> Result<Option<Version>, AliasError> {
        let alias = match version {
            None => return Ok(None),
            Some(VersionRef::Number(version)) => return Ok(Some(*version)),
            Some(VersionRef::Alias(alias)) => alias,
        };
        let set = self.set.get(alias).map(|target| target.version);
        let found = set.or_else(|| match alias.as_str() {
            Alias::STABLE => self.active,
            Alias::CANARY => self.canary,
            _ => None,
        });
        found.map(Some).ok_or_else(|| unknown(name, alias, &self.names()))
    }

    /// The aliases that name a version now.
    fn names(self) -> Vec<String> {
        let built_in = [(Alias::STABLE, self.active), (Alias::CANARY, self.canary)];
        let built_in = built_in
            .into_iter()
            .filter(|(alias, version)| version.is_some() && !self.set.contains_key(*alias));
        self.set.keys().map(ToString::to_string).chain(built_in.map(|(alias, _)| alias.to_owned())).collect()
    }
}

fn unknown(name: &str, alias: &Alias, have: &[String]) -> AliasError {
    let have = if have.is_empty() { "none".to_owned() } else { have.join(", ") };
    AliasError::Unknown { name: name.to_owned(), alias: alias.clone(), have }
}

/// A change of the aliases of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AliasChange {
    /// Names a version.
    Set(Version),
    /// Returns to the version that the alias named before.
    RollBack,
    /// Removes the alias.
    Remove,
}

impl AliasChange {
    /// The aliases after the change of `alias`, with the version that it names then. The caller checks
    /// that a version to set exists. An unchanged alias keeps the version before.
    pub(crate) fn apply(
        &self,
        name: &str,
        alias: &Alias,
        aliases: &Aliases,
        exists: impl Fn(Version) -> bool,
        now_ms: u64,
    ) -> Result<(Aliases, Option<AliasTarget>), AliasError> {
        let mut aliases = aliases.clone();
        let known: Vec<String> = aliases.keys().map(ToString::to_string).collect();
        let missing = || match alias.as_str() {
            Alias::STABLE | Alias::CANARY => {
                AliasError::NotSet { name: name.to_owned(), alias: alias.clone() }
            }
            _ => unknown(name, alias, &known),
        };
        let before = aliases.get(alias).copied();
        let version = match self {
            Self::Set(version) => *version,
            Self::RollBack => {
                let before = before.ok_or_else(missing)?;
                let nothing = || AliasError::NothingBefore { name: name.to_owned(), alias: alias.clone() };
                before.previous.filter(|previous| exists(*previous)).ok_or_else(nothing)?
            }
            Self::Remove => {
                before.ok_or_else(missing)?;
                aliases.remove(alias);
                return Ok((aliases, None));
            }
        };
        if let Some(same) = before.filter(|before| before.version == version) {
            return Ok((aliases, Some(same)));
        }
        if before.is_none() && aliases.len() >= Alias::COUNT_MAX {
            return Err(AliasError::TooMany(name.to_owned()));
        }
        let previous = before.map(|before| before.version);
        let target = AliasTarget { version, previous, changed_at_ms: now_ms };
        aliases.insert(alias.clone(), target);
        Ok((aliases, Some(target)))
    }
}

/// Refuses the deletion of a version that an alias names.
pub(crate) fn check_unused(name: &str, aliases: &Aliases, version: Version) -> Result<(), AliasError> {
    match aliases.iter().find(|(_, target)| target.version == version) {
        None => Ok(()),
        Some((alias, _)) => Err(AliasError::InUse { name: name.to_owned(), version, alias: alias.clone() }),
    }
}

/// Whether an alias names `version`.
pub(crate) fn is_named(aliases: &Aliases, version: Version) -> bool {
    aliases.values().any(|target| target.version == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alias(text: &str) -> Alias {
        Alias::new(text).unwrap()
    }

    fn resolve(aliases: &Aliases, canary: Option<u32>, text: &str) -> Result<Option<Version>, AliasError> {
        let view = AliasView { set: aliases, active: Some(Version(5)), canary: canary.map(Version) };
        view.resolve("digits", Some(&text.parse().unwrap()))
    }

    fn apply(aliases: &Aliases, of: &str, change: &AliasChange) -> Result<Aliases, AliasError> {
        change.apply("digits", &alias(of), aliases, |version| version.0 > 1, 7).map(|(aliases, _)| aliases)
    }

    #[test]
    fn stable_and_canary_follow_the_release_until_they_are_set() {
        let none = Aliases::new();
        assert_eq!(resolve(&none, None, "stable"), Ok(Some(Version(5))));
        assert_eq!(resolve(&none, Some(6), "canary"), Ok(Some(Version(6))));
        assert_eq!(resolve(&none, None, "3"), Ok(Some(Version(3))));
        let error = resolve(&none, None, "canary").unwrap_err().to_string();
        assert_eq!(error, "digits has no alias canary; it has stable");
        let set = apply(&none, "stable", &AliasChange::Set(Version(2))).unwrap();
        assert_eq!(resolve(&set, None, "stable"), Ok(Some(Version(2))));
    }

    #[test]
    fn rollback_exchanges_an_alias_and_its_previous_version() {
        let first = apply(&Aliases::new(), "eu", &AliasChange::Set(Version(2))).unwrap();
        assert!(matches!(apply(&first, "eu", &AliasChange::RollBack), Err(AliasError::NothingBefore { .. })));
        let second = apply(&first, "eu", &AliasChange::Set(Version(3))).unwrap();
        assert_eq!(apply(&second, "eu", &AliasChange::Set(Version(3))).unwrap(), second, "unchanged");
        let back = apply(&second, "eu", &AliasChange::RollBack).unwrap();
        let expected = AliasTarget { version: Version(2), previous: Some(Version(3)), changed_at_ms: 7 };
        assert_eq!(back[&alias("eu")], expected);
        let gone = apply(&Aliases::new(), "eu", &AliasChange::Set(Version(1))).unwrap();
        let gone = apply(&gone, "eu", &AliasChange::Set(Version(2))).unwrap();
        assert!(apply(&gone, "eu", &AliasChange::RollBack).is_err(), "version 1 was removed");
        assert_eq!(apply(&back, "eu", &AliasChange::Remove).unwrap(), Aliases::new());
        assert!(apply(&Aliases::new(), "eu", &AliasChange::Remove).is_err());
    }

    #[test]
    fn aliases_of_a_name_are_limited() {
        let mut aliases = Aliases::new();
        for n in 0..Alias::COUNT_MAX {
            aliases = apply(&aliases, &format!("a{n}"), &AliasChange::Set(Version(2))).unwrap();
        }
        let more = apply(&aliases, "more", &AliasChange::Set(Version(2)));
        assert_eq!(more, Err(AliasError::TooMany("digits".to_owned())));
        assert!(apply(&aliases, "a0", &AliasChange::Set(Version(3))).is_ok(), "an existing alias may change");
        assert!(check_unused("digits", &aliases, Version(2)).is_err());
        assert!(check_unused("digits", &aliases, Version(3)).is_ok());
    }
}
