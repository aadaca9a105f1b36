//! Grants for named objects.

use crate::{Name, NameError};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Named objects that a function may use. The default grants none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObjectGrants {
    /// Objects that the function may read.
    pub read: Vec<NamePattern>,
    /// Objects that the function may put and delete.
    pub write: Vec<NamePattern>,
}

impl ObjectGrants {
    /// Whether the grants are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.read.is_empty() && self.write.is_empty()
    }
}

/// An exact name, or a prefix followed by `*`: `thresholds`, `session-*`, `*`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NamePattern(String);

/// Text that is not a [`NamePattern`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is neither a name nor a prefix of names that ends with '*': {why}")]
pub struct NamePatternError {
    text: String,
    why: NameError,
}

impl NamePattern {
    /// Whether the pattern matches `name`.
    #[must_use]
    pub fn covers(&self, name: &Name) -> bool {
        match self.0.strip_suffix('*') {
            Some(beginning) => name.as_str().starts_with(beginning),
            None => name.as_str() == self.0,
        }
    }
}

impl TryFrom<String> for NamePattern {
    type Error = NamePatternError;
    fn try_from(text: String) -> Result<Self, NamePatternError> {
        let name = text.strip_suffix('*').unwrap_or(&text);
        let is_all = text == "*";
        match Name::new(name) {
            Err(why) if !is_all => Err(NamePatternError { text: text.chars().take(80).collect(), why }),
            _ => Ok(Self(text)),
        }
    }
}

impl std::str::FromStr for NamePattern {
    type Err = NamePatternError;
    fn from_str(text: &str) -> Result<Self, NamePatternError> {
        text.to_owned().try_into()
    }
}

impl From<NamePattern> for String {
    fn from(pattern: NamePattern) -> Self {
        pattern.0
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_name_or_the_beginning_of_some() {
        let covered = |pattern: &str, name: &str| {
            pattern.parse::<NamePattern>().unwrap().covers(&Name::new(name).unwrap())
        };
        assert!(
            covered("scores", "scores") && !covered("scores", "scores2") && !covered("scores2", "scores")
        );
        assert!(covered("session-*", "session-7") && !covered("session-*", "sessions"));
        assert!(covered("*", "anything"));
        for wrong in ["", "a*b", "**", "A", "../x", "a/b"] {
            let error = wrong.parse::<NamePattern>().unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }
}
