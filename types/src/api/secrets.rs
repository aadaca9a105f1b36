//! Secrets of functions, without their values.

use crate::{Name, SecretName, Version};
use serde::{Deserialize, Serialize};

/// A secret, without its value, which the API never returns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret {
    /// Name of the secret, unique within its tenant.
    pub name: SecretName,
    /// Number of the value, counted from 1.
    pub version: Version,
    /// Size of the value, in bytes.
    pub value_bytes: u64,
    /// Time at which the secret got its first value, in Unix milliseconds.
    pub created_at_ms: u64,
    /// Time at which the secret got its current value, in Unix milliseconds.
    pub updated_at_ms: u64,
    /// Id of the master key with which the value is encrypted.
    pub key_id: String,
    /// Whether the node that answers has this master key.
    pub usable: bool,
    /// Functions of which a version in use gets the secret.
    pub functions: Vec<Name>,
}

/// Result of `POST /v1/secret-keys/rotate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRotation {
    /// Id of the master key with which the node encrypts.
    pub key_id: String,
    /// Secrets of the tenant that were encrypted with another key, and now are with this one.
    pub rotated: u64,
    /// Secrets of the tenant whose key the node lacks, and which stay as they are.
    pub unusable: u64,
}
