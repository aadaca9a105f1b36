//! Authentication by tokens, for nodes that listen beyond loopback.

use super::error::ApiError;
use super::permission::Grant;
use anyhow::{Context, bail};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use weir_call::headers;
use weir_control::keys::{ApiKeyError, ApiKeys};
use weir_oidc::{OidcError, Provider, is_jwt};
use weir_storage::{PrivateFileError, read_private_file};
use weir_types::{ContentHash, ErrorCode, TenantId};

/// Minimum length of a token, in characters: 64 random bits in hexadecimal.
const TOKEN_LEN_MIN: usize = 16;

/// Length of the part of a token's hash in the audit log, in hexadecimal digits.
const HASH_LEN: usize = 12;

/// Name of the operator in the tenant column of a token file.
const OPERATOR: &str = "*";
/// Name of clients that make backups in the tenant column of a token file.
const BACKUP: &str = "*backup";

/// Tokens that a node accepts; none if every client is tenant `default`.
#[derive(Debug, Clone, Default)]
pub struct Tokens {
    /// Tokens of the token file.
    known: Option<HashMap<ContentHash, Identity>>,
    /// The OpenID Connect provider whose tokens are accepted beside them.
    provider: Option<Arc<Provider>>,
}

/// Identity of a client.
#[derive(Debug, Clone)]
pub(crate) enum Identity {
    /// Any client of a node without tokens: tenant `default`, with full access.
    Anyone,
    /// Client with a token of this tenant from the token file, with full access.
    Tenant(TenantId),
    /// Client with an API key, or with a token of the OpenID Connect provider.
    Granted(Grant),
    /// Operator of a node with tokens: reads the metrics of all tenants, and cannot act for any
    /// tenant.
    Operator,
    /// Client that makes backups of all tenants' data, and can do nothing else.
    Backup,
}

impl Identity {
    /// Returns the tenant on whose behalf the client acts; none for the operator.
    pub(crate) fn acts_for(&self) -> Option<TenantId> {
        match self {
            Self::Anyone => Some(TenantId::default()),
            Self::Tenant(tenant) => Some(tenant.clone()),
            Self::Granted(grant) => Some(grant.tenant().clone()),
            Self::Operator | Self::Backup => None,
        }
    }

    pub(crate) fn is_operator(&self) -> bool {
        matches!(self, Self::Operator)
    }

    /// Returns the client's grant, if it may not do everything of its tenant.
    pub(crate) fn grant(&self) -> Option<&Grant> {
        if let Self::Granted(grant) = self { Some(grant) } else { None }
    }

    /// Returns the only tenant whose metrics the client may read; none if it may read all metrics.
    pub(crate) fn reads_only(&self) -> Option<&TenantId> {
        match self {
            Self::Tenant(tenant) => Some(tenant),
            Self::Granted(grant) => Some(grant.tenant()),
            Self::Anyone | Self::Operator | Self::Backup => None,
        }
    }
}

/// The client of a request.
pub(crate) struct Identified {
    pub(crate) identity: Result<Identity, ApiError>,
    /// Beginning of the hash of the client's token, for the audit log.
    pub(crate) hash: Option<String>,
    /// Whether the request has a token that the node does not know: perhaps a guess.
    pub(crate) is_guess: bool,
}

/// Invalid token file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenFileError {
    #[error(transparent)]
    File(#[from] PrivateFileError),
    #[error(
        "line {line}: {why}; a line is TOKEN or TOKEN TENANT (* for the operator, *backup for backups), # starts a comment"
    )]
    Line { line: usize, why: String },
    #[error("it has no tokens")]
    Empty,
}

impl Tokens {
    /// Loads the tokens of a node that listens on `listen`. Without a token file, returns no tokens
    /// only on loopback, or with `insecure`.
    pub fn load(token_file: Option<&Path>, listen: SocketAddr, insecure: bool) -> anyhow::Result<Self> {
        if let Some(path) = token_file {
            return Self::read(path).with_context(|| format!("cannot use the token file {}", path.display()));
        }
        if !listen.ip().is_loopback() && !insecure {
            bail!(
                "listening on {listen} would let everyone who can reach it deploy code; give --token-file FILE, or --insecure if that is what you want"
            );
        }
        Ok(Self::default())
    }

    /// Reads a token file: one `TOKEN [TENANT]` per line, where the tenant `*` is the operator.
    fn read(path: &Path) -> Result<Self, TokenFileError> {
        Self::parse(&read_private_file(path)?)
    }

    pub(crate) fn parse(text: &str) -> Result<Self, TokenFileError> {
        let mut tokens = HashMap::new();
        for (at, line) in text.lines().enumerate() {
            let bad = |why: String| TokenFileError::Line { line: at + 1, why };
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let Some(token) = words.next() else { continue };
            if token.len() < TOKEN_LEN_MIN {
                return Err(bad(format!("the token has fewer than {TOKEN_LEN_MIN} characters")));
            }
            let identity = match words.next() {
                None => Identity::Tenant(TenantId::default()),
                Some(OPERATOR) => Identity::Operator,
                Some(BACKUP) => Identity::Backup,
                Some(tenant) => {
                    Identity::Tenant(TenantId::new(tenant).map_err(|error| bad(error.to_string()))?)
                }
            };
            if words.next().is_some() {
                return Err(bad("there are more than two words".to_owned()));
            }
            // Tokens are stored and compared as hashes: the time of a lookup reveals nothing about
            // them.
            if tokens.insert(ContentHash::from_content(token.as_bytes()), identity).is_some() {
                return Err(bad("the token is there twice".to_owned()));
            }
        }
        if tokens.is_empty() {
            return Err(TokenFileError::Empty);
        }
        Ok(Self { known: Some(tokens), provider: None })
    }

    /// Also accepts the tokens of `provider`.
    ///
    /// # Errors
    /// The node has no token file, so it would accept requests without a token too.
    pub fn with_provider(self, provider: Option<Arc<Provider>>) -> anyhow::Result<Self> {
        if provider.is_some() && self.known.is_none() {
            bail!(
                "gateway.access.oidc needs --token-file FILE: without tokens, the node accepts every client; the file may have the operator's token alone: TOKEN *"
            );
        }
        Ok(Self { provider, ..self })
    }

    /// Whether a header has a token that claims to be of the OpenID Connect provider, for this node.
    pub(crate) fn is_addressed(&self, authorization: &HeaderValue) -> bool {
        let token = authorization.to_str().ok().map(without_scheme).filter(|token| is_jwt(token));
        token.zip(self.provider.as_ref()).is_some_and(|(token, provider)| provider.is_addressed(token))
    }

    /// The OpenID Connect provider whose tokens the node accepts.
    pub(crate) fn provider(&self) -> Option<&Arc<Provider>> {
        self.provider.as_ref()
    }

    /// Whether clients need a token.
    pub(crate) fn are_needed(&self) -> bool {
        self.known.is_some()
    }

    /// Tenants with a token.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = TenantId> {
        self.known.iter().flat_map(|tokens| tokens.values().filter_map(Identity::acts_for))
    }

    /// Whether all tenants' data is that of `tenant`: its tokens are the only ones of tenants.
    pub(crate) fn serve_only(&self, tenant: &TenantId) -> bool {
        let Some(tokens) = &self.known else { return true };
        if self.provider.is_some() {
            return false;
        }
        let mut tenants = tokens.values().filter_map(Identity::acts_for).peekable();
        tenants.peek().is_some() && tenants.all(|known| known == *tenant)
    }

    /// Identifies the client of a request, and removes its token from the headers, so that
    /// functions do not see the token.
    pub(crate) async fn identify(&self, keys: &ApiKeys, headers: &mut HeaderMap) -> Identified {
        let Some(tokens) = &self.known else {
            return Identified { identity: Ok(Identity::Anyone), hash: None, is_guess: false };
        };
        let given = take_token(headers);
        let Some(token) = given.as_ref().and_then(|value| value.to_str().ok()).map(without_scheme) else {
            let text = "this node needs a token: send `authorization: Bearer TOKEN` (or set WEIR_TOKEN for the command line)";
            let identity = Err(ApiError::new(ErrorCode::Unauthorized, text));
            return Identified { identity, hash: None, is_guess: given.is_some() };
        };
        let hash = ContentHash::from_content(token.as_bytes());
        let identity = match tokens.get(&hash) {
            Some(identity) => Ok(identity.clone()),
            None => self.find_grant(keys, token, &hash).await.map(Identity::Granted),
        };
        // Of tokens that the node does not know, not even a part of the hash is kept.
        let shown = identity.is_ok().then(|| hash.to_string().chars().take(HASH_LEN).collect());
        let is_guess = identity.as_ref().is_err_and(|error| error.code == ErrorCode::Unauthorized);
        Identified { identity, hash: shown, is_guess }
    }

    /// The grant of a token that is not in the token file.
    async fn find_grant(&self, keys: &ApiKeys, token: &str, hash: &ContentHash) -> Result<Grant, ApiError> {
        if let Some(provider) = self.provider.as_ref().filter(|_| is_jwt(token)) {
            return Ok(Grant::Oidc(Arc::new(provider.verify(token).await?)));
        }
        let text = "this node does not know the token, or the token has expired";
        let key = keys.find(token, hash).await?;
        key.map(Grant::Key).ok_or_else(|| ApiError::new(ErrorCode::Unauthorized, text))
    }
}

impl From<OidcError> for ApiError {
    fn from(error: OidcError) -> Self {
        let code = match error {
            OidcError::Invalid(_) => ErrorCode::Unauthorized,
            OidcError::NoKeys | OidcError::NewKey => ErrorCode::Unavailable,
        };
        Self::new(code, error.to_string())
    }
}

/// Removes the token from the headers: of `weir-token`, and otherwise of `authorization`.
fn take_token(headers: &mut HeaderMap) -> Option<HeaderValue> {
    headers.remove(headers::TOKEN).or_else(|| headers.remove(AUTHORIZATION))
}

/// The token of a header, which may begin with `Bearer`.
fn without_scheme(text: &str) -> &str {
    let bearer = text.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    bearer.map_or(text, |(_, token)| token.trim())
}

impl From<ApiKeyError> for ApiError {
    fn from(error: ApiKeyError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_datastore::MemoryStore;
    use weir_oidc::OidcConfig;
    use weir_storage::Changes;

    async fn keys() -> Arc<ApiKeys> {
        ApiKeys::open(Arc::new(MemoryStore::new()), Changes::default(), true).await.unwrap().0
    }

    #[tokio::test]
    async fn token_identifies_its_tenant_and_is_stripped() {
        let text = "# ours\n0123456789abcdef acme # theirs\nfedcba9876543210\noperator90123456 *\n";
        let tokens = Tokens::parse(text).unwrap();
        let keys = keys().await;
        let tenant = async |header: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header, HeaderValue::from_str(value).unwrap());
            let caller = tokens.identify(&keys, &mut headers).await.identity.and_then(Identity::caller);
            assert!(headers.is_empty(), "the token was passed on");
            caller.map(|caller| caller.tenant.to_string()).map_err(|error| error.code)
        };
        assert_eq!(tenant("authorization", "Bearer 0123456789abcdef").await, Ok("acme".to_owned()));
        assert_eq!(tenant("weir-token", "fedcba9876543210").await, Ok("default".to_owned()));
        assert_eq!(tenant("authorization", "Bearer 0123456789abcdeX").await, Err(ErrorCode::Unauthorized));
        assert_eq!(tenant("weir-token", "operator90123456").await, Err(ErrorCode::NotGranted));
        assert!(tokens.identify(&keys, &mut HeaderMap::new()).await.identity.is_err());
        let anyone = Tokens::default().identify(&keys, &mut HeaderMap::new()).await.identity;
        assert!(matches!(anyone, Ok(Identity::Anyone)));
    }

    #[test]
    fn tokens_of_a_provider_need_a_token_file() {
        let config = OidcConfig {
            issuer: Some("https://login.test".into()),
            audience: Some("weir".into()),
            tenants: vec![TenantId::new("acme").unwrap()],
            ..OidcConfig::default()
        };
        let provider = Provider::new(&config).unwrap();
        let error = Tokens::default().with_provider(provider.clone()).unwrap_err().to_string();
        assert!(error.contains("gateway.access.oidc needs --token-file"), "{error}");
        let tokens = Tokens::parse("0123456789abcdef acme").unwrap();
        assert!(tokens.serve_only(&TenantId::new("acme").unwrap()));
        let tokens = tokens.with_provider(provider).unwrap();
        assert!(!tokens.serve_only(&TenantId::new("acme").unwrap()), "the provider may name other tenants");
    }

    #[test]
    fn invalid_token_files_are_rejected() {
        for bad in [
            "",
            "# nothing",
            "short",
            "0123456789abcdef UPPER",
            "0123456789abcdef a b",
            "0123456789abcdef\n0123456789abcdef",
        ] {
            assert!(Tokens::parse(bad).is_err(), "{bad:?}");
        }
    }
}
