//! Tokens that a provider signs, and its keys over time.

use crate::fetch::KeySource;
use crate::keys::ProviderKeys;
use crate::{OidcConfig, OidcError, OidcGrant, Provider, is_jwt};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinHandle;
use weir_types::TenantId;

const ISSUER: &str = "https://login.test/realms/weir";

fn encode(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A key of the provider.
struct Signer {
    id: &'static str,
    pair: Ed25519KeyPair,
}

impl Signer {
    fn new(id: &'static str) -> Self {
        let seed = id.repeat(32).into_bytes();
        Self { id, pair: Ed25519KeyPair::from_seed_unchecked(&seed[..32]).unwrap() }
    }

    fn public(&self) -> Value {
        let x = URL_SAFE_NO_PAD.encode(self.pair.public_key());
        json!({"kty": "OKP", "crv": "Ed25519", "kid": self.id, "use": "sig", "alg": "EdDSA", "x": x})
    }

    fn sign(&self, claims: &Value) -> String {
        self.sign_with(&json!({"alg": "EdDSA", "kid": self.id}), claims)
    }

    fn sign_with(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", encode(header), encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(self.pair.sign(message.as_bytes()));
        format!("{message}.{signature}")
    }
}

/// Claims of a valid token, changed by those in `other`; null removes a claim.
fn claims(other: &Value) -> Value {
    let mut claims = json!({
        "iss": ISSUER, "aud": ["other", "weir"], "sub": "u1", "exp": now_s() + 300,
        "weir_tenant": "acme", "scope": "openid weir:invoke",
    });
    for (name, value) in other.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    claims
}

/// Keys that the test sets.
struct FakeSource {
    keys: Mutex<Result<Vec<Value>, String>>,
    fetches: AtomicUsize,
}

impl KeySource for FakeSource {
    async fn keys(&self, issuer: &str) -> Result<ProviderKeys, String> {
        assert_eq!(issuer, ISSUER);
        self.fetches.fetch_add(1, Ordering::Relaxed);
        let keys = self.keys.lock().clone()?;
        ProviderKeys::parse(json!({ "keys": keys }).to_string().as_bytes())
    }
}

/// A provider whose keys the test sets. Its task ends with it.
struct Fixture {
    provider: Arc<Provider>,
    source: Arc<FakeSource>,
    following: JoinHandle<()>,
}

impl Fixture {
    fn new(keys: Vec<Value>) -> Self {
        let config = OidcConfig {
            issuer: Some(ISSUER.into()),
            audience: Some("weir".into()),
            tenants: vec![TenantId::new("acme").unwrap()],
            ..OidcConfig::default()
        };
        let provider = Provider::new(&config).unwrap().unwrap();
        let source = Arc::new(FakeSource { keys: Mutex::new(Ok(keys)), fetches: AtomicUsize::new(0) });
        let followed = (provider.clone(), source.clone());
        let following = tokio::spawn(async move { followed.0.follow_source(&*followed.1).await });
        Self { provider, source, following }
    }

    async fn verify(&self, token: &str) -> Result<OidcGrant, String> {
        self.provider.verify(token).await.map_err(|error| error.to_string())
    }

    fn fetches(&self) -> usize {
        self.source.fetches.load(Ordering::Relaxed)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.following.abort();
    }
}

#[tokio::test]
async fn valid_token_states_its_holder() {
    let signer = Signer::new("a");
    let fixture = Fixture::new(vec![signer.public()]);
    let token = signer.sign(&claims(&json!({})));
    assert!(is_jwt(&token) && !is_jwt("weir_0123") && !is_jwt("eyJhIjox"));
    let grant = fixture.verify(&token).await.unwrap();
    assert_eq!((grant.tenant.as_str(), &*grant.subject), ("acme", "u1"));
    let single = signer.sign(&claims(&json!({"aud": "weir"})));
    assert!(fixture.verify(&single).await.is_ok());
    let slow_clock = signer.sign(&claims(&json!({"exp": now_s() - 30})));
    assert!(fixture.verify(&slow_clock).await.is_ok());
}

#[tokio::test]
async fn signatures_on_the_curve_p256_are_checked() {
    let random = SystemRandom::new();
    let scheme = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(scheme, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(scheme, pkcs8.as_ref(), &random).unwrap();
    let point = pair.public_key().as_ref()[1..].to_vec();
    let (x, y) = point.split_at(32);
    let [x, y] = [x, y].map(|half| URL_SAFE_NO_PAD.encode(half));
    let fixture = Fixture::new(vec![json!({"kty": "EC", "crv": "P-256", "x": x, "y": y})]);
    let message = format!("{}.{}", encode(&json!({"alg": "ES256"})), encode(&claims(&json!({}))));
    let mut signature = pair.sign(&random, message.as_bytes()).unwrap().as_ref().to_vec();
    let token = |signature: &[u8]| format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature));
    assert!(fixture.verify(&token(&signature)).await.is_ok());
    signature[7] ^= 1;
    assert!(fixture.verify(&token(&signature)).await.unwrap_err().ends_with("its signature is wrong"));
}

#[tokio::test]
async fn invalid_tokens_are_refused_with_the_reason() {
    let signer = Signer::new("a");
    let fixture = Fixture::new(vec![signer.public()]);
    for (other, expected) in [
        (json!({"exp": now_s() - 90}), "it has expired"),
        (json!({"exp": null}), "it has no claim exp"),
        (json!({"exp": "tomorrow"}), "it has no claim exp"),
        (json!({"nbf": now_s() + 90}), "it is not valid yet"),
        (json!({"nbf": "tomorrow"}), "its claim nbf has a wrong form"),
        (json!({"iss": "https://evil.test"}), "it is of another issuer"),
        (json!({"iss": null}), "it has no claims iss and aud that can be read"),
        (json!({"aud": "other"}), "it is for another audience"),
        (json!({"aud": null}), "it has no claims iss and aud that can be read"),
        (json!({"sub": null}), "it has no claim sub"),
        (json!({"weir_tenant": null}), "it has no claim weir_tenant with a tenant"),
    ] {
        let error = fixture.verify(&signer.sign(&claims(&other))).await.unwrap_err();
        assert!(error.ends_with(expected), "{other}: {error}");
    }
    let valid = claims(&json!({}));
    let good = signer.sign(&valid);
    let (message, signature) = good.rsplit_once('.').unwrap();
    let forged = format!(
        "{}.{}",
        encode(&json!({"alg": "EdDSA", "kid": "a"})),
        encode(&claims(&json!({"weir_tenant": "b"})))
    );
    // The public key as a shared secret, which is a known attack.
    let confused = signer.sign_with(&json!({"alg": "HS256", "kid": "a"}), &valid);
    let unsigned = format!("{}.{}.", encode(&json!({"alg": "none", "kid": "a"})), encode(&valid));
    let other_key = Signer::new("b").sign_with(&json!({"alg": "EdDSA", "kid": "a"}), &valid);
    for (token, expected) in [
        (format!("{forged}.{signature}"), "its signature is wrong"),
        (other_key, "its signature is wrong"),
        (confused, "its algorithm is not that of the key"),
        (unsigned, "it has no header that can be read"),
        (format!("{message}."), "its signature is wrong"),
        ("eyJ.eyJ.x".to_owned(), "it has no header that can be read"),
        (format!("{good}{}", "x".repeat(20_000)), "it is too long"),
    ] {
        let error = fixture.verify(&token).await.unwrap_err();
        assert!(error.ends_with(expected), "{token}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_key_is_fetched_when_a_token_has_it() {
    let [old, new] = [Signer::new("a"), Signer::new("b")];
    let fixture = Fixture::new(vec![old.public()]);
    let valid = claims(&json!({}));
    assert!(fixture.verify(&old.sign(&valid)).await.is_ok());
    assert_eq!(fixture.fetches(), 1);
    tokio::time::sleep(Duration::from_secs(20)).await;
    *fixture.source.keys.lock() = Ok(vec![new.public()]);
    assert!(fixture.verify(&new.sign(&valid)).await.is_ok());
    assert_eq!(fixture.fetches(), 2);
    assert!(fixture.verify(&old.sign(&valid)).await.is_err(), "the provider withdrew it");
    // Tokens with unknown keys do not make the node ask again at once.
    let unknown = Signer::new("c").sign(&valid);
    for _ in 0..10 {
        assert!(matches!(fixture.provider.verify(&unknown).await, Err(OidcError::NewKey)));
    }
    assert_eq!(fixture.fetches(), 2);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(fixture.verify(&unknown).await.unwrap_err().ends_with("the provider has no such key"));
    assert_eq!(fixture.fetches(), 3);
}

#[tokio::test(start_paused = true)]
async fn tokens_of_others_cause_no_fetch_and_no_wait() {
    let [ours, other] = [Signer::new("a"), Signer::new("b")];
    let fixture = Fixture::new(vec![ours.public()]);
    assert!(fixture.verify(&ours.sign(&claims(&json!({})))).await.is_ok());
    tokio::time::sleep(Duration::from_secs(60)).await;
    let began = tokio::time::Instant::now();
    for claim in [json!({"iss": "https://other.test"}), json!({"aud": "other"})] {
        let token = other.sign(&claims(&claim));
        assert!(!fixture.provider.is_addressed(&token));
        assert!(fixture.verify(&token).await.is_err());
    }
    assert_eq!((fixture.fetches(), began.elapsed()), (1, Duration::ZERO));
    assert!(fixture.provider.is_addressed(&other.sign(&claims(&json!({})))), "whatever its signature");
}

#[tokio::test]
async fn extensions_and_other_types_of_tokens_are_refused() {
    let signer = Signer::new("a");
    let fixture = Fixture::new(vec![signer.public()]);
    let valid = claims(&json!({}));
    for (extra, expected) in [
        (json!({"typ": "at+jwt"}), None),
        (json!({"typ": "application/at+JWT"}), None),
        (json!({"typ": "dpop+jwt"}), Some("it is not an access token (typ)")),
        (json!({"crit": ["b64"]}), Some("(crit)")),
    ] {
        let mut header = json!({"alg": "EdDSA", "kid": "a"});
        header.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let result = fixture.verify(&signer.sign_with(&header, &valid)).await;
        match expected {
            None => assert!(result.is_ok(), "{extra}: {result:?}"),
            Some(expected) => assert!(result.unwrap_err().ends_with(expected), "{extra}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn empty_key_set_withdraws_the_keys() {
    let signer = Signer::new("a");
    let fixture = Fixture::new(vec![signer.public()]);
    let token = signer.sign(&claims(&json!({})));
    assert!(fixture.verify(&token).await.is_ok());
    *fixture.source.keys.lock() = Ok(Vec::new());
    tokio::time::sleep(Duration::from_secs(3_700)).await;
    assert!(fixture.verify(&token).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn withdrawn_keys_become_unusable_without_a_new_token() {
    let signer = Signer::new("a");
    let fixture = Fixture::new(vec![signer.public()]);
    let valid = claims(&json!({}));
    assert!(fixture.verify(&signer.sign(&valid)).await.is_ok());
    *fixture.source.keys.lock() = Ok(vec![Signer::new("b").public()]);
    tokio::time::sleep(Duration::from_secs(3_700)).await;
    assert!(fixture.verify(&signer.sign(&valid)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn keys_outlast_a_provider_that_is_down() {
    let signer = Signer::new("a");
    let fixture = Fixture::new(Vec::new());
    *fixture.source.keys.lock() = Err("refused".into());
    let token = signer.sign(&claims(&json!({})));
    assert!(matches!(fixture.provider.verify(&token).await, Err(OidcError::NoKeys)));
    *fixture.source.keys.lock() = Ok(vec![signer.public()]);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(fixture.verify(&token).await.is_ok());
    *fixture.source.keys.lock() = Err("refused".into());
    tokio::time::sleep(Duration::from_secs(7_200)).await;
    let token = signer.sign(&claims(&json!({"exp": now_s() + 10_000})));
    assert!(fixture.verify(&token).await.is_ok());
    // The provider may have withdrawn them since.
    tokio::time::sleep(Duration::from_secs(24 * 3_600)).await;
    assert!(matches!(fixture.provider.verify(&token).await, Err(OidcError::NoKeys)));
}

#[tokio::test(start_paused = true)]
async fn provider_that_returns_is_asked_at_the_next_token() {
    let signer = Signer::new("a");
    let fixture = Fixture::new(Vec::new());
    *fixture.source.keys.lock() = Err("refused".into());
    // By now, the node asks once a minute.
    tokio::time::sleep(Duration::from_secs(600)).await;
    *fixture.source.keys.lock() = Ok(vec![signer.public()]);
    tokio::time::sleep(Duration::from_secs(11)).await;
    let began = tokio::time::Instant::now();
    assert!(fixture.verify(&signer.sign(&claims(&json!({})))).await.is_ok());
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[test]
fn incomplete_or_unsafe_configurations_are_refused() {
    let error = |issuer: Option<&str>, audience: Option<&str>| {
        let config = OidcConfig {
            issuer: issuer.map(Into::into),
            audience: audience.map(Into::into),
            tenants: vec![TenantId::new("acme").unwrap()],
            ..OidcConfig::default()
        };
        Provider::new(&config).map(|provider| provider.is_some()).map_err(|error| error.to_string())
    };
    assert_eq!(error(None, None), Ok(false));
    assert_eq!(error(Some("http://127.0.0.1:8080/realm"), Some("weir")), Ok(true));
    assert!(error(Some(ISSUER), None).unwrap_err().contains("gateway.access.oidc.audience is missing"));
    assert!(error(None, Some("weir")).unwrap_err().contains("gateway.access.oidc.issuer is missing"));
    assert!(error(Some(ISSUER), Some("")).unwrap_err().contains("gateway.access.oidc.audience is empty"));
    for issuer in
        ["http://login.test", "ftp://login.test", "login.test", "https://u:p@login.test", "https://l.test/?a"]
    {
        assert!(
            error(Some(issuer), Some("weir")).unwrap_err().contains("is not an https:// URL"),
            "{issuer}"
        );
    }
}
