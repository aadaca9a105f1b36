//! Content addresses: hashes of stored bytes.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// SHA-256 hash of stored bytes. Prints as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContentHash([u8; 32]);

/// A string that is not a [`ContentHash`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a content hash is 64 hexadecimal digits, not {0:?}")]
pub struct HashError(String);

impl ContentHash {
    /// Hashes `bytes`.
    #[must_use]
    pub fn from_content(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The first eight bytes, as a short key among hashes from the same source.
    #[must_use]
    pub fn prefix(&self) -> u64 {
        self.0.iter().take(8).fold(0, |prefix, byte| prefix << 8 | u64::from(*byte))
    }
}

/// Incremental hasher for bytes that arrive in pieces.
#[derive(Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Hash of all added pieces.
    #[must_use]
    pub fn finish(self) -> ContentHash {
        ContentHash(self.0.finalize().into())
    }
}

impl std::str::FromStr for ContentHash {
    type Err = HashError;
    fn from_str(text: &str) -> Result<Self, HashError> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| HashError(text.chars().take(80).collect()))?;
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for ContentHash {
    type Error = HashError;
    fn try_from(text: String) -> Result<Self, HashError> {
        text.parse()
    }
}

impl From<ContentHash> for String {
    fn from(hash: ContentHash) -> Self {
        hash.to_string()
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex::encode(&self.0[..6]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_hash_like_the_whole_and_text_round_trips() {
        let mut hasher = Hasher::default();
        hasher.update(b"ab");
        hasher.update(b"c");
        let hash = hasher.finish();
        assert_eq!(hash, ContentHash::from_content(b"abc"));
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_eq!(hash.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!("ba78".parse::<ContentHash>().is_err());
    }
}
