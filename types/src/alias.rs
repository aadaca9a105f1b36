//! Aliases of versions, and references to a version by number or alias.

use crate::{Name, Version};
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::fmt;

/// Another name of one version of a function, model or workflow, such as `stable`. Follows the rules
/// of [`Name`], and starts with a letter, so that it cannot be confused with a number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Alias(Name);

/// Reason why a string is not an [`Alias`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an alias: an alias starts with a letter and has up to 63 of a-z, 0-9, '-', '_' and '.'"
)]
pub struct AliasError(String);

impl Alias {
    /// The alias that names the active version until it is set.
    pub const STABLE: &'static str = "stable";
    /// The alias that names the canary until it is set.
    pub const CANARY: &'static str = "canary";
    /// Maximum number of aliases of one function, model or workflow.
    pub const COUNT_MAX: usize = 32;

    /// Checks `text` and creates an alias.
    pub fn new(text: &str) -> Result<Self, AliasError> {
        let error = || AliasError(text.chars().take(80).collect());
        let name = Name::new(text).map_err(|_| error())?;
        if text.starts_with(|c: char| c.is_ascii_lowercase()) { Ok(Self(name)) } else { Err(error()) }
    }

    /// The alias as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl std::str::FromStr for Alias {
    type Err = AliasError;
    fn from_str(text: &str) -> Result<Self, AliasError> {
        Self::new(text)
    }
}

impl TryFrom<String> for Alias {
    type Error = AliasError;
    fn try_from(text: String) -> Result<Self, AliasError> {
        Self::new(&text)
    }
}

impl From<Alias> for String {
    fn from(alias: Alias) -> Self {
        alias.0.into()
    }
}

impl Borrow<str> for Alias {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Alias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A version by its number, or by an alias that is resolved when the version is used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VersionRef {
    /// The number.
    Number(Version),
    /// An alias.
    Alias(Alias),
}

/// Reason why a string is not a [`VersionRef`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a version: a version is a number from 1 up, or an alias such as stable")]
pub struct VersionRefError(String);

impl VersionRef {
    /// The number; `None` for an alias.
    #[must_use]
    pub fn number(&self) -> Option<Version> {
        match self {
            Self::Number(version) => Some(*version),
            Self::Alias(_) => None,
        }
    }
}

impl From<Version> for VersionRef {
    fn from(version: Version) -> Self {
        Self::Number(version)
    }
}

impl std::str::FromStr for VersionRef {
    type Err = VersionRefError;
    fn from_str(text: &str) -> Result<Self, VersionRefError> {
        if let Some(number) = text.parse().ok().filter(|number| *number > 0) {
            return Ok(Self::Number(Version(number)));
        }
        Alias::new(text).map(Self::Alias).map_err(|_| VersionRefError(text.chars().take(80).collect()))
    }
}

impl fmt::Display for VersionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(version) => version.fmt(f),
            Self::Alias(alias) => alias.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_a_number_or_an_alias() {
        assert_eq!("7".parse(), Ok(VersionRef::Number(Version(7))));
        assert_eq!("stable".parse(), Ok(VersionRef::Alias(Alias::new("stable").unwrap())));
        for bad in ["", "0", "-1", "4294967296", "1a", "Stable", "a b", "_a", "a..b"] {
            assert!(bad.parse::<VersionRef>().is_err(), "{bad:?} was accepted");
        }
        for version in ["7", "stable", "eu-west.1"] {
            assert_eq!(version.parse::<VersionRef>().unwrap().to_string(), version);
        }
    }
}
