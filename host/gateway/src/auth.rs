//! Authentication by tokens, for nodes that listen beyond loopback.

use super::error::ApiError;
use anyhow::{Context, bail};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use weir_call::headers;
use weir_storage::{PrivateFileError, read_private_file};
use weir_types::{ContentHash, ErrorCode, TenantId};

/// Minimum length of a token, in characters: 64 random bits in hexadecimal.
const TOKEN_LEN_MIN: usize = 16;

/// Length of the part of a token's hash in the audit log, in hexadecimal digits.
const HASH_LEN: usize = 12;

/// Name of the operator in the tenant column of a token file.
const OPERATOR: &str = "*";

/// Tokens of a node; none if every client is tenant `default`.
#[derive(Debug, Clone, Default)]
pub struct Tokens(Option<HashMap<ContentHash, Identity>>);

/// Identity of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Identity {
    /// Any client of a node without tokens: tenant `default`, with full access.
    Anyone,
    /// Client with a token of this tenant.
    Tenant(TenantId),
    /// Operator of a node with tokens: reads the metrics of all tenants, and cannot act for any
    /// tenant.
    Operator,
}

impl Identity {
    /// Returns the tenant on whose behalf the request runs.
    pub(crate) fn tenant(self) -> Result<TenantId, ApiError> {
        match self {
            Self::Anyone => Ok(TenantId::default()),
            Self::Tenant(tenant) => Ok(tenant),
            Self::Operator => {
                let text =
                    "this is the operator's token, which reads /metrics and nothing else; use a tenant's";
                Err(ApiError::new(ErrorCode::NotGranted, text))
            }
        }
    }

    /// Returns the tenant on whose behalf the client acts; none for the operator.
    pub(crate) fn acts_for(&self) -> Option<TenantId> {
        match self {
            Self::Anyone => Some(TenantId::default()),
            Self::Tenant(tenant) => Some(tenant.clone()),
            Self::Operator => None,
        }
    }

    /// Returns the only tenant whose metrics the client may read; none if it may read all metrics.
    pub(crate) fn reads_only(&self) -> Option<&TenantId> {
        match self {
            Self::Tenant(tenant) => Some(tenant),
            Self::Anyone | Self::Operator => None,
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
    #[error("line {line}: {why}; a line is TOKEN or TOKEN TENANT (* for the operator), # starts a comment")]
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

    fn parse(text: &str) -> Result<Self, TokenFileError> {
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
        if tokens.is_empty() { Err(TokenFileError::Empty) } else { Ok(Self(Some(tokens))) }
    }

    /// Identifies the client of a request, and removes its token from the headers, so that
    /// functions do not see the token.
    pub(crate) fn identify(&self, headers: &mut HeaderMap) -> Identified {
        let Some(tokens) = &self.0 else {
            return Identified { identity: Ok(Identity::Anyone), hash: None, is_guess: false };
        };
        let own = headers.remove(headers::TOKEN);
        let given = match own {
            Some(own) => Some(own),
            None => headers.remove(AUTHORIZATION),
        };
        let token = given.as_ref().and_then(|value| value.to_str().ok()).map(|text| {
            text.split_once(' ')
                .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
                .map_or(text, |(_, token)| token.trim())
        });
        let hash = token.map(|token| ContentHash::from_content(token.as_bytes()));
        let identity = hash.as_ref().and_then(|hash| tokens.get(hash));
        let identity = identity.cloned().ok_or_else(|| {
            let text = match token {
                None => "this node needs a token: send `authorization: Bearer TOKEN` (or set WEIR_TOKEN for the command line)",
                Some(_) => "this node does not know the token",
            };
            ApiError::new(ErrorCode::Unauthorized, text)
        });
        // Of tokens that the node does not know, not even a part of the hash is kept.
        let shown = hash.filter(|_| identity.is_ok());
        Identified {
            is_guess: given.is_some() && identity.is_err(),
            hash: shown.map(|hash| hash.to_string().chars().take(HASH_LEN).collect()),
            identity,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn token_identifies_its_tenant_and_is_stripped() {
        let text = "# ours\n0123456789abcdef acme # theirs\nfedcba9876543210\noperator90123456 *\n";
        let tokens = Tokens::parse(text).unwrap();
        let tenant = |header: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header, HeaderValue::from_str(value).unwrap());
            let tenant = tokens.identify(&mut headers).identity.and_then(Identity::tenant);
            assert!(headers.is_empty(), "the token was passed on");
            tenant.map(|tenant| tenant.to_string()).map_err(|error| error.code)
        };
        assert_eq!(tenant("authorization", "Bearer 0123456789abcdef"), Ok("acme".to_owned()));
        assert_eq!(tenant("weir-token", "fedcba9876543210"), Ok("default".to_owned()));
        assert_eq!(tenant("authorization", "Bearer 0123456789abcdeX"), Err(ErrorCode::Unauthorized));
        assert_eq!(tenant("weir-token", "operator90123456"), Err(ErrorCode::NotGranted));
        assert!(tokens.identify(&mut HeaderMap::new()).identity.is_err());
        assert_eq!(Tokens::default().identify(&mut HeaderMap::new()).identity.unwrap(), Identity::Anyone);
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
