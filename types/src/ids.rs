//! Names and identifiers. Each type is ordered, hashable and printable; values from outside are
//! checked on construction.

use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::fmt;
use std::sync::{Arc, LazyLock};

/// Longest [`Name`], in bytes: the length of a DNS label, so that a name can become a host name.
const NAME_LEN_MAX: usize = 63;

/// Name of a function, model or workflow: 1 to 63 of `a-z`, `0-9`, `-`, `_`, `.`, starting with a
/// letter or digit, without `..`.
///
/// Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Arc<str>);

/// Reason why a string is not a [`Name`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The string is empty.
    #[error("a name must not be empty")]
    Empty,
    /// The string is longer than 63 bytes.
    #[error("a name has at most {NAME_LEN_MAX} characters, this one has {0}")]
    TooLong(usize),
    /// The string does not start with a letter or digit.
    #[error("a name starts with a lower-case letter or a digit")]
    BadStart,
    /// The string has a character outside the allowed set.
    #[error("a name holds only a-z, 0-9, '-', '_' and '.', not {0:?}")]
    BadCharacter(char),
    /// The string has two dots in a row.
    #[error("a name must not contain '..'")]
    DotDot,
}

impl Name {
    /// Checks `text` and creates a name.
    pub fn new(text: &str) -> Result<Self, NameError> {
        let first = text.chars().next().ok_or(NameError::Empty)?;
        if text.len() > NAME_LEN_MAX {
            return Err(NameError::TooLong(text.len()));
        }
        if let Some(bad) = text.chars().find(|c| !matches!(c, 'a'..='z' | '0'..='9' | '-' | '_' | '.')) {
            return Err(NameError::BadCharacter(bad));
        }
        if !first.is_ascii_alphanumeric() {
            return Err(NameError::BadStart);
        }
        if text.contains("..") {
            return Err(NameError::DotDot);
        }
        Ok(Self(text.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        Self::new(&text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0.as_ref().to_owned()
    }
}

impl std::str::FromStr for Name {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// Tenant: the owner of names and the payer of calls. Follows the rules of [`Name`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TenantId(Name);

impl TenantId {
    /// Checks `text` and creates a tenant ID.
    pub fn new(text: &str) -> Result<Self, NameError> {
        Name::new(text).map(Self)
    }

    /// The tenant as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The tenant as a name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.0
    }
}

impl From<Name> for TenantId {
    fn from(name: Name) -> Self {
        Self(name)
    }
}

impl Default for TenantId {
    /// `default`: the tenant of a node without configured tenants.
    fn default() -> Self {
        static DEFAULT: LazyLock<Name> = LazyLock::new(|| Name(Arc::from("default")));
        Self(DEFAULT.clone())
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Version of a function, model or workflow, counted from 1. Versions are immutable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(pub u32);

impl Version {
    /// The next version; `None` after the last number.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! versioned_id {
    ($(#[$doc:meta])* $id:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $id {
            /// Owner.
            pub tenant: TenantId,
            /// Name.
            pub name: Name,
            /// Version.
            pub version: Version,
        }

        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}/{}:{}", self.tenant, self.name, self.version)
            }
        }
    };
}

versioned_id!(
    /// One version of one tenant's function.
    FunctionId
);
versioned_id!(
    /// One version of one tenant's model.
    ModelId
);

versioned_id!(
    /// One version of one tenant's workflow.
    WorkflowId
);

/// ID of a call, unique on the node that accepted it. Printed as 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InvocationId(pub u64);

impl InvocationId {
    /// The printed digits, without the overhead of `fmt`: every call has an ID to print.
    #[must_use]
    pub fn digits(self) -> [u8; 16] {
        std::array::from_fn(|at| b"0123456789abcdef"[(self.0 >> (60 - 4 * at)) as usize & 15])
    }
}

/// An [`InvocationId`] as its digits: JavaScript cannot read the number exactly. For
/// `#[serde(with)]`.
pub mod invocation_digits {
    use super::InvocationId;
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    /// Writes the digits.
    pub fn serialize<S: Serializer>(id: &InvocationId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(id)
    }

    /// Reads the digits.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<InvocationId, D::Error> {
        let digits = String::deserialize(deserializer)?;
        u64::from_str_radix(&digits, 16).map(InvocationId).map_err(de::Error::custom)
    }
}

impl fmt::Display for InvocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// ID of an asynchronous invocation, unique in the cluster over all time. Printed as 32 hexadecimal
/// digits. IDs of later invocations sort first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AsyncId(u128);

/// A string that is not an [`AsyncId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an asynchronous invocation is called by 32 hexadecimal digits, not {0:?}")]
pub struct AsyncIdError(String);

/// Random bits of an [`AsyncId`]. The other bits are the bitwise complement of the acceptance time,
/// in Unix milliseconds.
const CHANCE_BITS: u32 = 80;

impl AsyncId {
    /// Creates an ID from the acceptance time `at_ms` and the random bits `chance`, which
    /// distinguish invocations of the same millisecond.
    #[must_use]
    pub fn new(at_ms: u64, chance: u128) -> Self {
        Self((!u128::from(at_ms)) << CHANCE_BITS | chance & ((1 << CHANCE_BITS) - 1))
    }

    /// Acceptance time, in Unix milliseconds.
    #[must_use]
    pub fn accepted_at_ms(self) -> u64 {
        (!self.0 >> CHANCE_BITS) as u64
    }
}

impl std::str::FromStr for AsyncId {
    type Err = AsyncIdError;
    fn from_str(text: &str) -> Result<Self, AsyncIdError> {
        let is_one = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = is_one.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or_else(|| AsyncIdError(text.chars().take(80).collect()))
    }
}

impl TryFrom<String> for AsyncId {
    type Error = AsyncIdError;
    fn try_from(text: String) -> Result<Self, AsyncIdError> {
        text.parse()
    }
}

impl From<AsyncId> for String {
    fn from(id: AsyncId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for AsyncId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for AsyncId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A Weir process that can run functions, by its index in the scheduler's view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// A device's index among the devices of its node.
pub type Ordinal = u32;

/// A device of a node: a GPU, or the node's CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceId {
    /// The node that owns it.
    pub node: NodeId,
    /// Index among the node's devices.
    pub ordinal: Ordinal,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_could_leave_their_folder_are_refused() {
        for bad in [
            "",
            "..",
            "a..b",
            "a/b",
            "a\0b",
            ".hidden",
            "-x",
            "Upper",
            "ä",
            &"a".repeat(64),
            &"a".repeat(10_240),
        ] {
            assert!(Name::new(bad).is_err(), "{bad:?} was accepted");
        }
        for good in ["a", "digits", "all-minilm-l6-v2", "0x", "a.b_c", &"a".repeat(63)] {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
    }

    proptest! {
        #[test]
        fn an_invocations_digits_are_what_is_printed(id: u64) {
            let id = InvocationId(id);
            let printed = id.to_string();
            prop_assert_eq!(printed.as_bytes(), id.digits());
        }

        #[test]
        fn the_ids_of_later_invocations_come_first(at_ms in 0_u64..1 << 48, later in 1_u64..1 << 40, chance: [u128; 2]) {
            let first = AsyncId::new(at_ms, chance[0]);
            let second = AsyncId::new((at_ms + later) & ((1 << 48) - 1), chance[1]);
            prop_assert_eq!(first.accepted_at_ms(), at_ms);
            prop_assert_eq!(first.to_string().parse(), Ok(first));
            prop_assert_eq!(first.to_string() > second.to_string(), first > second);
            if at_ms + later < 1 << 48 {
                prop_assert!(second < first);
            }
        }

        #[test]
        fn what_is_not_32_digits_is_no_id(text in ".*|[0-9a-fA-F+]{32}") {
            prop_assert_eq!(text.parse::<AsyncId>().map(|id| id.to_string()).unwrap_or(text.clone()), text);
        }

        #[test]
        fn an_accepted_name_is_one_safe_path_component(text in ".*") {
            if let Ok(name) = Name::new(&text) {
                let path = std::path::Path::new(name.as_str());
                prop_assert_eq!(path.components().count(), 1);
                prop_assert!(matches!(path.components().next(), Some(std::path::Component::Normal(_))));
            }
        }
    }
}
