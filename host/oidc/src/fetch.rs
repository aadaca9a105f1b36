//! Fetches the keys of the provider.

use crate::config::{OidcConfig, OidcConfigError, is_safe};
use crate::keys::ProviderKeys;
use http_body_util::{BodyExt as _, Limited};
use serde::Deserialize;
use std::error::Error;
use std::time::Duration;

/// Longest time of a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest size of a document of the provider.
const DOCUMENT_BYTES_MAX: usize = 256 * 1024;

/// Something that knows the newest keys of a provider.
pub(crate) trait KeySource: Sync {
    /// The keys of the provider `issuer`.
    fn keys(&self, issuer: &str) -> impl Future<Output = Result<ProviderKeys, String>> + Send;
}

/// A client of the provider.
pub(crate) struct ProviderClient(reqwest::Client);

/// The provider's description of itself (OpenID Connect Discovery 1.0, section 3).
#[derive(Deserialize)]
struct Description {
    issuer: String,
    jwks_uri: String,
}

impl ProviderClient {
    pub(crate) fn new(config: &OidcConfig) -> Result<Self, OidcConfigError> {
        // The provider of this process. Another part of the node may have set it before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let unusable = |error: reqwest::Error| OidcConfigError::Client(with_causes(&error));
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .timeout(TIMEOUT);
        if let Some(path) = &config.ca_file {
            let pem = std::fs::read(path)
                .map_err(|source| OidcConfigError::CaFile { path: path.clone(), source })?;
            let authorities = reqwest::Certificate::from_pem_bundle(&pem).map_err(unusable)?;
            builder = builder.tls_certs_only(authorities);
        } else if config.issuer.as_deref().is_some_and(|issuer| issuer.starts_with("http:")) {
            // A machine without authorities can still use plain HTTP. A proxy could replace the keys.
            builder = builder.tls_certs_only([]).no_proxy();
        }
        builder.build().map(Self).map_err(unusable)
    }

    async fn document(&self, url: &str) -> Result<Vec<u8>, String> {
        let sent = self.0.get(url).send().await.map_err(|error| with_causes(&error))?;
        let response = http::Response::<reqwest::Body>::from(sent);
        if !response.status().is_success() {
            return Err(format!("{url} answered with status {}", response.status()));
        }
        let body = Limited::new(response.into_body(), DOCUMENT_BYTES_MAX).collect().await;
        Ok(body.map_err(|error| format!("{url}: {}", with_causes(&*error)))?.to_bytes().to_vec())
    }
}

impl KeySource for ProviderClient {
    async fn keys(&self, issuer: &str) -> Result<ProviderKeys, String> {
        let url = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let found = self.document(&url).await?;
        let found: Description = serde_json::from_slice(&found).map_err(|error| format!("{url}: {error}"))?;
        if found.issuer != issuer {
            return Err(format!("{url} describes the issuer {:?}, not {issuer:?}", found.issuer));
        }
        if !is_safe_document(&found.jwks_uri, issuer) {
            return Err(format!("{url} has an unsafe address of its keys: {:?}", found.jwks_uri));
        }
        let keys = self.document(&found.jwks_uri).await?;
        ProviderKeys::parse(&keys).map_err(|why| format!("{}: {why}", found.jwks_uri))
    }
}

/// Whether the address of the keys of `issuer` is as safe as the issuer. It may have a query.
fn is_safe_document(url: &str, issuer: &str) -> bool {
    let is_as_safe = url.starts_with("https:") || issuer.starts_with("http:");
    is_as_safe && is_safe(url.split_once('?').map_or(url, |(base, _)| base))
}

fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
