//! Verification of the tokens of an OpenID Connect provider.
//!
//! A client of a node may send a token of the provider that the node's operator trusts, instead of
//! a token of the node: a JSON Web Token (RFC 7519), signed by a key that the provider publishes.
//! Claims of the token state the tenant and the permissions of the client.
//!
//! [`Provider::follow`] fetches the provider's keys (OpenID Connect Discovery 1.0, RFC 7517) apart
//! from requests, and [`Provider::verify`] checks a token with the keys in memory. It waits for a
//! fetch only if a token has an unknown key, which the provider may have created since the last
//! fetch.

mod claims;
mod config;
mod fetch;
mod keys;
mod provider;
mod ring_crypto;
#[cfg(test)]
mod tests;

pub use claims::OidcGrant;
pub use config::{OidcConfig, OidcConfigError};
pub use provider::{OidcError, Provider, is_jwt};
