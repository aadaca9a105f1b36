//! The provider of a node.

use crate::claims::OidcGrant;
use crate::config::{OidcConfig, OidcConfigError, Settings};
use crate::fetch::{KeySource, ProviderClient};
use crate::keys::ProviderKeys;
use crate::ring_crypto;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use serde_json::{Map, Value};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Interval of the fetches of keys, so that withdrawn keys become unusable.
const REFRESH: Duration = Duration::from_secs(3_600);
/// Shortest time between two fetches that tokens with unknown keys cause.
const REFRESH_MIN: Duration = Duration::from_secs(10);
/// Shortest and longest time between a failed fetch and the next one.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Longest time that a request waits for a fetch.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Largest size of a token.
const TOKEN_BYTES_MAX: usize = 16 * 1024;
/// Difference between the clocks of the provider and the node that is tolerated.
const LEEWAY_S: u64 = 60;

/// The OpenID Connect provider that a node trusts.
pub struct Provider {
    settings: Settings,
    client: ProviderClient,
    fetched: watch::Sender<Fetched>,
    /// Wakes [`follow`](Self::follow) for a fetch.
    wanted: Notify,
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").field("issuer", &self.settings.issuer).finish_non_exhaustive()
    }
}

/// State after the last fetch.
#[derive(Clone, Default)]
struct Fetched {
    /// The newest keys.
    keys: Option<Arc<ProviderKeys>>,
    /// Time of the last fetch, which may have failed.
    at: Option<Instant>,
}

/// The reason why a token was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    /// The token is not valid here.
    #[error("the token of the OpenID Connect provider is not valid here: {0}")]
    Invalid(String),
    /// The node has no keys of the provider yet.
    #[error("the keys of the OpenID Connect provider could not be fetched yet; try again")]
    NoKeys,
}

/// Whether a token has the form of a JSON Web Token.
#[must_use]
pub fn is_jwt(token: &str) -> bool {
    token.starts_with("eyJ") && token.split('.').count() == 3
}

impl Provider {
    /// The provider of a configuration; `None` if there is none. Does not contact the provider.
    pub fn new(config: &OidcConfig) -> Result<Option<Arc<Self>>, OidcConfigError> {
        let Some(settings) = config.settings()? else { return Ok(None) };
        ring_crypto::install();
        let client = ProviderClient::new(config)?;
        let fetched = watch::Sender::new(Fetched::default());
        Ok(Some(Arc::new(Self { settings, client, fetched, wanted: Notify::new() })))
    }

    /// Keeps the keys current, until it is dropped.
    pub async fn follow(self: Arc<Self>) {
        self.follow_source(&self.client).await;
    }

    /// Keeps the keys current with those of `source`.
    pub(crate) async fn follow_source(&self, source: &impl KeySource) {
        let issuer = &*self.settings.issuer;
        let mut retry = RETRY_MIN;
        loop {
            let result = source.keys(issuer).await;
            let failure = result.as_ref().err().cloned();
            self.fetched.send_modify(|fetched| {
                fetched.at = Some(Instant::now());
                if let Ok(keys) = result {
                    fetched.keys = Some(Arc::new(keys));
                }
            });
            let Some(error) = failure else {
                retry = RETRY_MIN;
                self.until_due().await;
                continue;
            };
            tracing::warn!(
                issuer,
                error,
                again_s = retry.as_secs(),
                "fetching the keys of the OpenID Connect provider failed; earlier keys stay valid"
            );
            sleep(retry).await;
            retry = (2 * retry).min(RETRY_MAX);
        }
    }

    /// Waits until the keys of a fetch a moment ago are old, or a token with an unknown key comes.
    async fn until_due(&self) {
        let fetched_at = Instant::now();
        while timeout_at(fetched_at + REFRESH, self.wanted.notified()).await.is_ok() {
            // Requests that waited for the last fetch must not cause another.
            if fetched_at.elapsed() >= REFRESH_MIN {
                return;
            }
        }
    }

    /// Checks a token.
    ///
    /// # Errors
    /// The token is not valid, or the node has no keys of the provider.
    pub async fn verify(&self, token: &str) -> Result<OidcGrant, OidcError> {
        let invalid = |why: &str| OidcError::Invalid(why.to_owned());
        if token.len() > TOKEN_BYTES_MAX {
            return Err(invalid("it is too long"));
        }
        let header = decode_header(token).map_err(|_| invalid("it has no header that can be read"))?;
        let id = header.kid.as_deref();
        let keys = self.keys_with(id).await.ok_or(OidcError::NoKeys)?;
        let key = keys.find(id).ok_or_else(|| invalid("the provider has no such key"))?;
        if !key.algorithms.contains(&header.alg) {
            return Err(invalid("its algorithm is not that of the key"));
        }
        let mut validation = Validation::new(header.alg);
        validation.leeway = LEEWAY_S;
        validation.validate_nbf = true;
        validation.set_issuer(&[&self.settings.issuer]);
        validation.set_audience(&[&self.settings.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        let decoded = decode::<Map<String, Value>>(token, &key.key, &validation);
        let claims = decoded.map_err(|error| OidcError::Invalid(described(error.kind())))?.claims;
        OidcGrant::from_claims(&claims, &self.settings).map_err(OidcError::Invalid)
    }

    /// The newest keys. Waits for a fetch if no key has the name `id`, unless one was made a moment ago:
    /// clients without a valid token must not make the node ask the provider again and again.
    async fn keys_with(&self, id: Option<&str>) -> Option<Arc<ProviderKeys>> {
        let mut changes = self.fetched.subscribe();
        let Fetched { keys, at } = changes.borrow_and_update().clone();
        let has_key = keys.as_ref().is_some_and(|keys| keys.find(id).is_some());
        if has_key || at.is_some_and(|at| at.elapsed() < REFRESH_MIN) {
            return keys;
        }
        self.wanted.notify_one();
        // Without an answer of the provider, the earlier keys decide.
        let _ = timeout(WAIT_MAX, changes.changed()).await;
        changes.borrow().keys.clone()
    }
}

/// The fault of a token, for its holder.
fn described(kind: &ErrorKind) -> String {
    let text = match kind {
        ErrorKind::InvalidSignature => "its signature is wrong",
        ErrorKind::ExpiredSignature => "it has expired",
        ErrorKind::ImmatureSignature => "it is not valid yet",
        ErrorKind::InvalidIssuer => "it is of another issuer",
        ErrorKind::InvalidAudience => "it is for another audience",
        ErrorKind::MissingRequiredClaim(claim) => return format!("it has no claim {claim}"),
        ErrorKind::InvalidClaimFormat(claim) => return format!("its claim {claim} has a wrong form"),
        _ => "it cannot be read",
    };
    text.to_owned()
}
