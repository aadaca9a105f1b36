//! Secrets of functions: their names, and the grants in manifests.

use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Longest name of a secret, and of an environment variable with a secret, in bytes.
const NAME_LEN_MAX: usize = 63;

/// Most secrets that a manifest may grant. The node decrypts all of them for each new instance.
pub const SECRET_GRANTS_MAX: usize = 32;

/// Largest value of a secret, in bytes.
pub const SECRET_BYTES_MAX: usize = 64 << 10;

/// Name of a secret: 1 to 63 of `A-Z`, `a-z`, `0-9`, `-`, `_`, `.`, starting with a letter or `_`.
///
/// Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SecretName(Arc<str>);

/// Reason why a text is not the name of a secret, or of an environment variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretNameError {
    /// The text is empty or too long.
    #[error("a name has 1 to {NAME_LEN_MAX} characters, this one has {0}")]
    Length(usize),
    /// The text has another start.
    #[error("a name starts with a letter or '_'")]
    BadStart,
    /// The text has a character that names of secrets do not have.
    #[error("the name of a secret holds only A-Z, a-z, 0-9, '-', '_' and '.', not {0:?}")]
    BadCharacter(char),
    /// The text has a character that names of environment variables do not have.
    #[error(
        "an environment variable holds only A-Z, a-z, 0-9 and '_', not {character:?}: name another variable for the secret, as in secrets = {{ {variable} = {name:?} }}"
    )]
    BadVariable {
        /// The name.
        name: String,
        /// The character.
        character: char,
        /// A similar name that a variable may have.
        variable: String,
    },
}

impl SecretName {
    /// Checks `text` and creates a name.
    pub fn new(text: &str) -> Result<Self, SecretNameError> {
        check_start(text)?;
        match text.chars().find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_' | '.')) {
            Some(bad) => Err(SecretNameError::BadCharacter(bad)),
            None => Ok(Self(text.into())),
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check_start(text: &str) -> Result<(), SecretNameError> {
    if text.is_empty() || text.len() > NAME_LEN_MAX {
        return Err(SecretNameError::Length(text.len()));
    }
    let is_good = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    if is_good { Ok(()) } else { Err(SecretNameError::BadStart) }
}

impl TryFrom<String> for SecretName {
    type Error = SecretNameError;
    fn try_from(text: String) -> Result<Self, SecretNameError> {
        Self::new(&text)
    }
}

impl From<SecretName> for String {
    fn from(name: SecretName) -> Self {
        name.0.as_ref().to_owned()
    }
}

impl std::str::FromStr for SecretName {
    type Err = SecretNameError;
    fn from_str(text: &str) -> Result<Self, SecretNameError> {
        Self::new(text)
    }
}

impl Borrow<str> for SecretName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// Secrets that a function gets, by the names of its environment variables. Read from such a table,
/// or from a list of secrets whose names are also the names of the variables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct SecretGrants(BTreeMap<String, SecretName>);

impl SecretGrants {
    /// Whether there are no grants.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of grants.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The variables with their secrets, sorted by variable.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &SecretName)> {
        self.0.iter().map(|(variable, name)| (variable.as_str(), name))
    }

    /// Whether `name` is granted.
    #[must_use]
    pub fn grants(&self, name: &SecretName) -> bool {
        self.0.values().any(|granted| granted == name)
    }

    /// Whether the environment variable `variable` has a secret.
    #[must_use]
    pub fn sets(&self, variable: &str) -> bool {
        self.0.contains_key(variable)
    }

    /// Grants `name` in the environment variable `variable`, or in the variable with the same
    /// name. Replaces the secret that the variable had.
    ///
    /// # Errors
    /// If a variable cannot have that name.
    pub fn grant(&mut self, variable: Option<&str>, name: SecretName) -> Result<(), SecretNameError> {
        let variable = variable.unwrap_or(name.as_str()).to_owned();
        check_variable(&variable)?;
        self.0.insert(variable, name);
        Ok(())
    }
}

fn check_variable(name: &str) -> Result<(), SecretNameError> {
    check_start(name)?;
    let is_bad = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    match name.chars().find(|c| is_bad(*c)) {
        None => Ok(()),
        Some(character) => {
            let variable = name.replace(is_bad, "_").to_ascii_uppercase();
            Err(SecretNameError::BadVariable { name: name.to_owned(), character, variable })
        }
    }
}

impl<'de> Deserialize<'de> for SecretGrants {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ListOrTable;
        impl<'de> Visitor<'de> for ListOrTable {
            type Value = SecretGrants;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of secrets, or a table of secrets by environment variable")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<SecretGrants, A::Error> {
                let mut grants = SecretGrants::default();
                while let Some(name) = list.next_element()? {
                    grants.grant(None, name).map_err(A::Error::custom)?;
                    check_len::<A::Error>(&grants)?;
                }
                Ok(grants)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<SecretGrants, A::Error> {
                let mut grants = SecretGrants::default();
                while let Some(variable) = table.next_key::<String>()? {
                    grants.grant(Some(&variable), table.next_value()?).map_err(A::Error::custom)?;
                    check_len::<A::Error>(&grants)?;
                }
                Ok(grants)
            }
        }
        from.deserialize_any(ListOrTable)
    }
}

fn check_len<E: serde::de::Error>(grants: &SecretGrants) -> Result<(), E> {
    if grants.len() <= SECRET_GRANTS_MAX {
        return Ok(());
    }
    Err(E::custom(format!("a function gets at most {SECRET_GRANTS_MAX} secrets")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<SecretGrants, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn names_of_secrets_are_checked() {
        for good in ["API_KEY", "api-key", "a.b", "_x", "A"] {
            assert_eq!(SecretName::new(good).unwrap().as_str(), good);
        }
        let long = "a".repeat(64);
        for bad in ["", "1A", "-a", ".", "a/b", "a b", "é", "a=b", &long] {
            assert!(SecretName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn grants_are_a_list_or_a_table() {
        let list = read(r#"["API_KEY", "DB_URL"]"#).unwrap();
        assert_eq!(list, read(r#"{"API_KEY": "API_KEY", "DB_URL": "DB_URL"}"#).unwrap());
        let table = read(r#"{"TOKEN": "api-key"}"#).unwrap();
        let api_key = SecretName::new("api-key").unwrap();
        assert_eq!(table.iter().collect::<Vec<_>>(), [("TOKEN", &api_key)]);
        assert!(table.grants(&api_key) && table.sets("TOKEN") && !table.sets("api-key"));
        assert_eq!(read(&serde_json::to_string(&table).unwrap()).unwrap(), table);
        let error = read(r#"["api-key"]"#).unwrap_err();
        assert!(error.contains(r#"secrets = { API_KEY = "api-key" }"#), "{error}");
        for wrong in [r#""A""#, r#"{"A=B": "a"}"#, r#"{"": "a"}"#, r#"{"A": 7}"#, "7"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn number_of_grants_is_limited() {
        let many = |len: usize| {
            let names: Vec<_> = (0..len).map(|number| format!("S{number}")).collect();
            serde_json::to_string(&names).unwrap()
        };
        assert_eq!(read(&many(SECRET_GRANTS_MAX)).unwrap().len(), SECRET_GRANTS_MAX);
        assert!(read(&many(SECRET_GRANTS_MAX + 1)).unwrap_err().contains("at most 32 secrets"));
    }
}
