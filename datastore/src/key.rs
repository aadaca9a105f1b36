//! Keys and prefixes: paths of printable segments, and the folders that contain them.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// Longest [`Key`], in bytes.
pub const KEY_LEN_MAX: usize = 512;

/// Key of an entry: segments of printable ASCII separated by single slashes, like
/// `functions/default/hello/active`.
///
/// Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// Prefix that selects every key below a folder: empty for all keys, otherwise a key and a slash,
/// so that `a/` does not match `ab/c`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix(Arc<str>);

/// Reason why a string is neither a [`Key`] nor a [`Prefix`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The string is longer than [`KEY_LEN_MAX`].
    #[error("a key has at most {KEY_LEN_MAX} bytes, this one has {0}")]
    TooLong(usize),
    /// The string is empty, starts or ends with a slash, or has two slashes in a row.
    #[error("a key is made of segments with single slashes between them, not {0:?}")]
    EmptySegment(String),
    /// The string has a character outside printable ASCII.
    #[error("a key holds only printable ASCII, not {0:?}")]
    BadCharacter(char),
    /// The prefix does not end with a slash.
    #[error("a prefix is empty or ends with '/', unlike {0:?}")]
    OpenPrefix(String),
}

impl Key {
    /// Checks `text` and creates a key.
    pub fn new(text: &str) -> Result<Self, KeyError> {
        if text.len() > KEY_LEN_MAX {
            return Err(KeyError::TooLong(text.len()));
        }
        if let Some(bad) = text.chars().find(|c| !c.is_ascii_graphic()) {
            return Err(KeyError::BadCharacter(bad));
        }
        if text.split('/').any(str::is_empty) {
            return Err(KeyError::EmptySegment(text.to_owned()));
        }
        Ok(Self(text.into()))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The rest of the key after `prefix`; `None` if the key does not lie below `prefix`.
    #[must_use]
    pub fn below(&self, prefix: &Prefix) -> Option<&str> {
        self.0.strip_prefix(&*prefix.0)
    }

    /// Creates a key from text that a backend stored earlier, without checks.
    pub(crate) fn trusted(text: &str) -> Self {
        Self(text.into())
    }
}

impl Prefix {
    /// The prefix of all keys.
    #[must_use]
    pub fn all() -> Self {
        Self(Arc::from(""))
    }

    /// Checks `text` and creates a prefix.
    pub fn new(text: &str) -> Result<Self, KeyError> {
        if text.is_empty() {
            return Ok(Self::all());
        }
        let folder =
            text.strip_suffix('/').ok_or_else(|| KeyError::OpenPrefix(text.chars().take(80).collect()))?;
        Key::new(folder)?;
        Ok(Self(text.into()))
    }

    /// The prefix as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `key` lies below the prefix.
    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        key.below(self).is_some()
    }

    /// The string range of the keys below the prefix after `after`: inclusive start, exclusive end
    /// (`None`: unbounded). Returns `None` if the range is empty.
    pub(crate) fn range(&self, after: Option<&Key>) -> Option<(String, Option<String>)> {
        // '0' follows '/' in ASCII, and no string lies between a string and the same string with a
        // NUL appended.
        let end = self.0.strip_suffix('/').map(|folder| format!("{folder}0"));
        let start = after
            .map(|after| format!("{after}\0"))
            .filter(|start| **start > *self.0)
            .unwrap_or_else(|| (*self.0).to_owned());
        let empty = end.as_ref().is_some_and(|end| *end <= start);
        (!empty).then_some((start, end))
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for Key {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::new(text)
    }
}

impl std::str::FromStr for Prefix {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::new(text)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_are_validated_as_paths() {
        for bad in ["", "/a", "a/", "a//b", "a b", "a\0", "ä", &"a".repeat(513)] {
            assert!(Key::new(bad).is_err(), "{bad:?} was accepted as a key");
        }
        for bad in ["/", "a", "a//", "/a/", "a b/"] {
            assert!(Prefix::new(bad).is_err(), "{bad:?} was accepted as a prefix");
        }
        let key = Key::new("functions/default/hello").unwrap();
        assert_eq!(key.below(&Prefix::new("functions/default/").unwrap()), Some("hello"));
        assert_eq!(key.below(&Prefix::new("functions/def/").unwrap()), None);
        assert_eq!(key.below(&Prefix::all()), Some("functions/default/hello"));
    }

    proptest! {
        /// Backends read a prefix as a range of strings; both must select the same keys.
        #[test]
        fn prefix_range_selects_exactly_its_keys(folder in "[a-c0./]{0,3}", key in "[a-c0./]{1,4}", after in "[a-c0./]{1,4}") {
            let (Ok(prefix), Ok(key)) = (Prefix::new(&folder), Key::new(&key)) else { return Ok(()) };
            let after = Key::new(&after).ok();
            let in_range = prefix.range(after.as_ref()).is_some_and(|(start, end)| {
                assert!(end.as_ref().is_none_or(|end| start < *end));
                *key.as_str() >= *start && end.is_none_or(|end| *key.as_str() < *end)
            });
            prop_assert_eq!(in_range, prefix.contains(&key) && after.is_none_or(|after| key > after));
        }
    }
}
