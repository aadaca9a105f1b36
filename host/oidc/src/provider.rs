//! The provider of a node.

use crate::claims::{OidcGrant, check_addressed};
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
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};

/// Interval of the fetches of keys, so that withdrawn keys become unusable.
const REFRESH: Duration = Duration::from_secs(3_600);
/// Shortest time between two fetches that tokens with unknown keys cause.
const REFRESH_MIN: Duration = Duration::from_secs(10);
/// Shortest and longest time between a failed fetch and the next one.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Longest time that a request waits for a fetch.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Largest number of requests that wait for a fetch.
const WAITING_MAX: usize = 64;
/// Time after which keys that could not be fetched again are no longer used.
const KEYS_AGE_MAX: Duration = Duration::from_hours(24);
/// Types of the tokens that are accepted (RFC 9068, section 2.1), in lower case.
const TYPES: [&str; 2] = ["jwt", "at+jwt"];
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
    /// Permits to wait for a fetch.
    waiting: Semaphore,
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").field("issuer", &self.settings.issuer).finish_non_exhaustive()
    }
}

/// State after the last fetch.
#[derive(Clone, Default)]
struct Fetched {
    /// The newest keys, and the time when they were fetched.
    keys: Option<(Arc<ProviderKeys>, Instant)>,
    /// Time of the last fetch, which may have failed.
    at: Option<Instant>,
}

/// The reason why a token was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    /// The token is not valid here.
    #[error("the token of the OpenID Connect provider is not valid here: {0}")]
    Invalid(String),
    /// The node has no keys of the provider.
    #[error("the keys of the OpenID Connect provider could not be fetched; try again")]
    NoKeys,
    /// The token has a key that the provider may have created after the last fetch.
    #[error(
        "the token has a new key of the OpenID Connect provider, which is fetched in a moment; try again"
    )]
    NewKey,
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
        let waiting = Semaphore::new(WAITING_MAX);
        Ok(Some(Arc::new(Self { settings, client, fetched, wanted: Notify::new(), waiting })))
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
            let at = Instant::now();
            let pause = match &result {
                Ok(keys) => {
                    if keys.is_empty() {
                        tracing::warn!(issuer, "the OpenID Connect provider has no usable key");
                    }
                    retry = RETRY_MIN;
                    REFRESH
                }
                Err(error) => {
                    tracing::warn!(
                        issuer,
                        error,
                        again_s = retry.as_secs(),
                        "fetching the keys of the OpenID Connect provider failed; earlier keys stay valid for a day"
                    );
                    let pause = retry;
                    retry = (2 * retry).min(RETRY_MAX);
                    pause
                }
            };
            self.fetched.send_modify(|fetched| {
                fetched.at = Some(at);
                if let Ok(keys) = result {
                    fetched.keys = Some((Arc::new(keys), at));
                }
            });
            self.until_due(at, pause).await;
        }
    }

    /// Waits until `pause` after the fetch at `at`, or until a token with an unknown key comes.
    async fn until_due(&self, at: Instant, pause: Duration) {
        while timeout_at(at + pause, self.wanted.notified()).await.is_ok() {
            // Requests that waited for the last fetch must not cause another.
            if at.elapsed() >= REFRESH_MIN {
                return;
            }
        }
    }

    /// Whether a token claims to be of the provider and for this node. Does not check it.
    #[must_use]
    pub fn is_addressed(&self, token: &str) -> bool {
        token.len() <= TOKEN_BYTES_MAX && check_addressed(token, &self.settings).is_ok()
    }

    /// Checks a token.
    ///
    /// # Errors
    /// The token is not valid, or the node does not have the keys to check it.
    pub async fn verify(&self, token: &str) -> Result<OidcGrant, OidcError> {
        let invalid = |why: &str| OidcError::Invalid(why.to_owned());
        if token.len() > TOKEN_BYTES_MAX {
            return Err(invalid("it is too long"));
        }
        let header = decode_header(token).map_err(|_| invalid("it has no header that can be read"))?;
        if header.crit.is_some() {
            return Err(invalid("it has extensions that must be understood (crit)"));
        }
        let kind = header.typ.as_deref().unwrap_or("JWT").to_ascii_lowercase();
        if !TYPES.contains(&kind.trim_start_matches("application/")) {
            return Err(invalid("it is not an access token (typ)"));
        }
        check_addressed(token, &self.settings).map_err(invalid)?;
        let id = header.kid.as_deref();
        let keys = self.keys_with(id).await?;
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

    /// The newest keys. Waits for a fetch if no key has the name `id`, unless one was made a moment
    /// ago: clients without a valid token must not make the node ask the provider again and again.
    async fn keys_with(&self, id: Option<&str>) -> Result<Arc<ProviderKeys>, OidcError> {
        let mut changes = self.fetched.subscribe();
        let fetched = changes.borrow_and_update().clone();
        let known = fetched.usable_keys();
        // No fetch can help a token that does not name one of several keys.
        let is_enough = |keys: &ProviderKeys| keys.find(id).is_some() || (id.is_none() && !keys.is_empty());
        if let Some(keys) = known.as_ref().filter(|keys| is_enough(keys)) {
            return Ok(keys.clone());
        }
        let unknown = || if known.is_some() { OidcError::NewKey } else { OidcError::NoKeys };
        if fetched.at.is_some_and(|at| at.elapsed() < REFRESH_MIN) {
            return Err(unknown());
        }
        let _waiting = self.waiting.try_acquire().map_err(|_| unknown())?;
        self.wanted.notify_one();
        // Without an answer of the provider, the earlier keys decide.
        let _ = timeout(WAIT_MAX, changes.changed()).await;
        let keys = changes.borrow().usable_keys();
        keys.ok_or(OidcError::NoKeys)
    }
}

impl Fetched {
    /// The keys, unless they are so old that the provider may have withdrawn them long ago.
    fn usable_keys(&self) -> Option<Arc<ProviderKeys>> {
        let (keys, at) = self.keys.as_ref()?;
        (at.elapsed() < KEYS_AGE_MAX).then(|| keys.clone())
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
