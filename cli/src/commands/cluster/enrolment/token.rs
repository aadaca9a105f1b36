//! Tokens by which nodes join a cluster.

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;
use weir_types::ContentHash;

/// First characters of a token, by which scanners of leaked secrets can find it.
const PREFIX: &str = "weir-join-";

/// A token: proves to the authority that its holder may join, and to the holder which authority it
/// talks to.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(in super::super) struct JoinToken {
    /// SHA-256 of the authority's certificate.
    authority: [u8; 32],
    id: [u8; 6],
    secret: [u8; 24],
}

impl JoinToken {
    const BYTES: usize = 32 + 6 + 24;

    /// Creates a token for the authority with this certificate.
    pub(in super::super) fn random(authority: &CertificateDer<'_>) -> Self {
        Self { authority: fingerprint(authority), id: rand::random(), secret: rand::random() }
    }

    /// Name of the token, which is no secret.
    pub(in super::super) fn id(&self) -> String {
        self.id.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Hash of the secret, which the authority stores instead of the secret.
    pub(in super::super) fn secret_hash(&self) -> ContentHash {
        ContentHash::from_content(&self.secret)
    }

    /// Whether `certificate` is that of the token's authority.
    pub(in super::super) fn is_of(&self, certificate: &CertificateDer<'_>) -> bool {
        self.authority == fingerprint(certificate)
    }
}

fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 32] {
    Sha256::digest(certificate).into()
}

impl FromStr for JoinToken {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        const WHAT: &str = "this is not a join token, which starts with `weir-join-`";
        let encoded = text.trim().strip_prefix(PREFIX).context(WHAT)?;
        let bytes = URL_SAFE_NO_PAD.decode(encoded).ok().filter(|bytes| bytes.len() == Self::BYTES);
        let Some((authority, rest)) = bytes.as_deref().and_then(<[u8]>::split_first_chunk) else {
            bail!("the join token is incomplete or has a wrong character");
        };
        let (id, secret) = rest.split_first_chunk().context(WHAT)?;
        Ok(Self { authority: *authority, id: *id, secret: secret.try_into()? })
    }
}

impl TryFrom<String> for JoinToken {
    type Error = anyhow::Error;
    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<JoinToken> for String {
    fn from(token: JoinToken) -> Self {
        token.to_string()
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = [&self.authority[..], &self.id[..], &self.secret[..]].concat();
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

/// Without the secret.
impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}...({})", self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_survives_its_text_and_knows_its_authority() {
        let [ours, other] = [b"ours", b"othe"].map(|der| CertificateDer::from(&der[..]));
        let token = JoinToken::random(&ours);
        let text = token.to_string();
        assert_eq!(format!("{text}\n").parse::<JoinToken>().unwrap(), token);
        assert!(token.is_of(&ours) && !token.is_of(&other));
        assert!(!format!("{token:?}").contains(&text[60..]));
        for wrong in
            ["", "weir-join-", &text[1..], &text[..text.len() - 1], &format!("{text}A"), "weir-join-ä"]
        {
            assert!(wrong.parse::<JoinToken>().is_err(), "{wrong}");
        }
    }
}
