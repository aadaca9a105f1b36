//! The keys with which the provider signs.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

/// Largest number of keys of a provider.
const KEYS_MAX: usize = 64;

/// The usable keys of a provider.
#[derive(Debug, Default)]
pub(crate) struct ProviderKeys(Vec<ProviderKey>);

#[derive(Debug)]
pub(crate) struct ProviderKey {
    id: Option<String>,
    pub(crate) key: DecodingKey,
    /// Algorithms of the signatures that the key may check.
    pub(crate) algorithms: Vec<Algorithm>,
}

/// A JSON Web Key Set. Keys of unknown kinds must not make the others unusable (RFC 7517, section 5).
#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

impl ProviderKeys {
    /// Reads a JSON Web Key Set. A set without usable keys is valid: the provider has withdrawn them.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let set: KeySet = serde_json::from_slice(text).map_err(|error| format!("no key set: {error}"))?;
        if set.keys.len() > KEYS_MAX {
            return Err(format!("{} keys, at most {KEYS_MAX} are accepted", set.keys.len()));
        }
        Ok(Self(set.keys.into_iter().filter_map(ProviderKey::usable).collect()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The key that a token names by `id`. A token may omit the name if there is one key.
    pub(crate) fn find(&self, id: Option<&str>) -> Option<&ProviderKey> {
        match (id, &*self.0) {
            (Some(id), keys) => keys.iter().find(|key| key.id.as_deref() == Some(id)),
            (None, [only]) => Some(only),
            (None, _) => None,
        }
    }
}

impl ProviderKey {
    /// A key for signatures of a public-key algorithm; `None` for others.
    fn usable(value: Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        if jwk.common.public_key_use.as_ref().is_some_and(|purpose| *purpose != PublicKeyUse::Signature) {
            return None;
        }
        let mut algorithms = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => vec![
                Algorithm::RS256,
                Algorithm::RS384,
                Algorithm::RS512,
                Algorithm::PS256,
                Algorithm::PS384,
                Algorithm::PS512,
            ],
            AlgorithmParameters::EllipticCurve(key) => match key.curve {
                EllipticCurve::P256 => vec![Algorithm::ES256],
                EllipticCurve::P384 => vec![Algorithm::ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
                vec![Algorithm::EdDSA]
            }
            // A shared secret would let everyone who can check tokens make them.
            _ => return None,
        };
        if let Some(only) = jwk.common.key_algorithm {
            let only = only.to_string().parse::<Algorithm>().ok()?;
            algorithms.retain(|algorithm| *algorithm == only);
        }
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        (!algorithms.is_empty()).then_some(Self { id: jwk.common.key_id, key, algorithms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(keys: &Value) -> Result<ProviderKeys, String> {
        ProviderKeys::parse(json!({ "keys": keys }).to_string().as_bytes())
    }

    #[test]
    fn only_public_keys_for_signatures_are_usable() {
        let x = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
        let keys = json!([
            {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": x},
            {"kty": "oct", "kid": "secret", "k": "c2VjcmV0"},
            {"kty": "RSA", "kid": "enc", "use": "enc", "n": "AQAB", "e": "AQAB"},
            {"kty": "RSA", "kid": "rsa", "use": "sig", "alg": "RS256", "n": "AQAB", "e": "AQAB"},
            {"kty": "EC", "crv": "secp256k1", "kid": "k1", "x": x, "y": x},
            {"kty": "EC", "crv": "P-256", "kid": "p256", "x": x, "y": x},
            {"kty": "new"},
        ]);
        let found = parse(&keys).unwrap();
        let algorithms = |id: &str| found.find(Some(id)).map(|key| key.algorithms.clone());
        assert_eq!(algorithms("ed"), Some(vec![Algorithm::EdDSA]));
        assert_eq!(algorithms("rsa"), Some(vec![Algorithm::RS256]));
        assert_eq!(algorithms("p256"), Some(vec![Algorithm::ES256]));
        for unusable in ["secret", "enc", "k1"] {
            assert_eq!(algorithms(unusable), None, "{unusable}");
        }
        assert!(found.find(None).is_none(), "a token must name one of several keys");
    }

    #[test]
    fn wrong_key_sets_are_refused() {
        let only = parse(&json!([{"kty": "OKP", "crv": "Ed25519", "x": "AAAA"}])).unwrap();
        assert!(only.find(None).is_some());
        let many = Value::Array(vec![json!({"kty": "new"}); KEYS_MAX + 1]);
        assert!(parse(&json!([])).unwrap().is_empty());
        for (keys, expected) in [(json!(7), "no key set"), (many, "at most 64")] {
            let error = parse(&keys).map(|_| ()).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
