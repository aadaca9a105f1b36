//! API keys: tokens with scopes and an expiry, which a tenant creates and revokes.

use crate::Name;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Permission of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Call functions, models and workflows, and use objects and asynchronous invocations.
    Invoke,
    /// Deploy, roll back and remove functions, models, kernel graphs and workflows.
    Deploy,
    /// Read deployments, logs, usage and metrics.
    Read,
    /// Create and revoke API keys, and everything else.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 4] = [Self::Invoke, Self::Deploy, Self::Read, Self::Admin];

    /// The scope as sent.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invoke => "invoke",
            Self::Deploy => "deploy",
            Self::Read => "read",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Body of `PUT /v1/keys/{name}`: the API key to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewApiKey {
    /// Permissions of the key's holder.
    pub scopes: Vec<Scope>,
    /// Functions that the key is limited to; empty for everything of the tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<Name>,
    /// Time until the key expires, in milliseconds; `None` for [`KEY_TTL_MS_DEFAULT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

/// An API key, without its token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKey {
    /// Name of the key, unique within its tenant.
    pub name: Name,
    /// Permissions of the key's holder.
    pub scopes: Vec<Scope>,
    /// Functions that the key is limited to; empty for everything of the tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<Name>,
    /// Time of the creation, in Unix milliseconds.
    pub created_at_ms: u64,
    /// Time from which the key is refused, in Unix milliseconds.
    pub expires_at_ms: u64,
}

/// A new API key with its token, which the node does not keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatedApiKey {
    /// The key.
    #[serde(flatten)]
    pub key: ApiKey,
    /// The secret that the holder sends as a bearer token.
    pub token: String,
}

/// Time to live of an API key whose request sets none: 90 days.
pub const KEY_TTL_MS_DEFAULT: u64 = 90 * 24 * 3_600_000;
/// Longest time to live of an API key: 366 days.
pub const KEY_TTL_MS_MAX: u64 = 366 * 24 * 3_600_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_sent_by_name() {
        for scope in Scope::ALL {
            assert_eq!(serde_json::to_value(scope).unwrap(), scope.as_str());
        }
        let key: NewApiKey = serde_json::from_str(r#"{"scopes":["invoke"]}"#).unwrap();
        assert_eq!((key.scopes, key.functions, key.ttl_ms), (vec![Scope::Invoke], vec![], None));
        assert!(serde_json::from_str::<NewApiKey>(r#"{"scopes":["invoke"],"function":"f"}"#).is_err());
    }
}
