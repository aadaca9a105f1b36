//! Configuration.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weir_types::TenantId;

/// The OpenID Connect provider whose tokens the node accepts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OidcConfig {
    /// URL of the provider, exactly as its tokens have it in `iss`. None: the node accepts no
    /// tokens of a provider.
    pub issuer: Option<String>,
    /// The audience of tokens for this node: tokens need it in `aud`.
    pub audience: Option<String>,
    /// Tenants that tokens may name. The list bounds the number of tenants, and keeps the provider
    /// from inventing some.
    pub tenants: Vec<TenantId>,
    /// Name of the claim with the tenant.
    pub tenant_claim: String,
    /// Name of the claim with the permissions: a text with spaces between them, or an array.
    pub scope_claim: String,
    /// Beginning of the permissions that concern Weir, such as `weir:` in `weir:invoke`.
    pub scope_prefix: String,
    /// PEM file with the authorities that the provider's certificate is checked with. None: those of
    /// the system.
    pub ca_file: Option<PathBuf>,
}

impl Default for OidcConfig {
    fn default() -> Self {
        Self {
            issuer: None,
            audience: None,
            tenants: Vec::new(),
            tenant_claim: "weir_tenant".to_owned(),
            scope_claim: "scope".to_owned(),
            scope_prefix: "weir:".to_owned(),
            ca_file: None,
        }
    }
}

/// An invalid configuration of the provider.
#[derive(Debug, thiserror::Error)]
pub enum OidcConfigError {
    /// A key that the other keys need is missing.
    #[error("gateway.access.oidc.{0} is missing: tokens are accepted with an issuer and an audience")]
    Missing(&'static str),
    /// The issuer cannot be asked for its keys, or not without a risk.
    #[error(
        "gateway.access.oidc.issuer = {0:?} is not an https:// URL without query (http:// on loopback only)"
    )]
    Issuer(String),
    /// The name of a claim is empty.
    #[error("gateway.access.oidc.{0} is empty")]
    Empty(&'static str),
    /// The authorities cannot be read.
    #[error("cannot read gateway.access.oidc.ca_file {path}: {source}", path = .path.display())]
    CaFile {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The HTTP client cannot be set up, such as for a file without certificates.
    #[error("cannot set up the client of the OpenID Connect provider: {0}")]
    Client(String),
}

/// A complete configuration.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) issuer: String,
    pub(crate) audience: String,
    pub(crate) tenants: Vec<TenantId>,
    pub(crate) tenant_claim: String,
    pub(crate) scope_claim: String,
    pub(crate) scope_prefix: String,
}

impl OidcConfig {
    /// Whether the node accepts tokens of a provider.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.issuer.is_some()
    }

    /// The settings; `None` if the node accepts no tokens of a provider.
    pub(crate) fn settings(&self) -> Result<Option<Settings>, OidcConfigError> {
        let Self { issuer, audience, tenants, tenant_claim, scope_claim, scope_prefix, .. } = self;
        let (issuer, audience) = match (issuer, audience) {
            (None, None) => return Ok(None),
            (None, Some(_)) => return Err(OidcConfigError::Missing("issuer")),
            (Some(_), None) => return Err(OidcConfigError::Missing("audience")),
            (Some(issuer), Some(audience)) => (issuer.clone(), audience.clone()),
        };
        if !is_safe(&issuer) {
            return Err(OidcConfigError::Issuer(issuer));
        }
        for (key, value) in
            [("audience", &audience), ("tenant_claim", tenant_claim), ("scope_claim", scope_claim)]
        {
            if value.is_empty() {
                return Err(OidcConfigError::Empty(key));
            }
        }
        if tenants.is_empty() {
            return Err(OidcConfigError::Empty("tenants"));
        }
        Ok(Some(Settings {
            issuer,
            audience,
            tenants: tenants.clone(),
            tenant_claim: tenant_claim.clone(),
            scope_claim: scope_claim.clone(),
            scope_prefix: scope_prefix.clone(),
        }))
    }
}

/// Whether no third party between the node and the provider can replace the answer at the URL.
pub(crate) fn is_safe(url: &str) -> bool {
    let Ok(parsed) = reqwest::Url::parse(url) else { return false };
    let is_loopback = match parsed.host_str() {
        Some("localhost" | "[::1]") => true,
        Some(host) => host.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback()),
        None => return false,
    };
    let scheme = parsed.scheme();
    (scheme == "https" || scheme == "http" && is_loopback)
        && parsed.query().is_none()
        && parsed.fragment().is_none()
        && parsed.username().is_empty()
        && parsed.password().is_none()
}
