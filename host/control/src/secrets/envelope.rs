//! Authenticated encryption: a random data key encrypts each value, and a master key encrypts the
//! data key. A new master key therefore needs new ciphertext of the data keys only.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use weir_types::ContentHash;
use zeroize::Zeroizing;

/// Length of master keys and of data keys, in bytes.
pub(super) const KEY_BYTES: usize = 32;
/// Bytes by which a sealed text is longer than the plain text.
pub(super) const OVERHEAD_BYTES: usize = NONCE_LEN + 16;
/// Length of the ids of master keys, in hexadecimal digits.
const ID_LEN: usize = 16;

/// A text was not encrypted, or is not the text that was encrypted with this key for this place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CipherError {
    /// The system has no random numbers.
    #[error("the system provides no random numbers")]
    Random,
    /// The ciphertext was altered, or belongs to another place.
    #[error("the ciphertext was altered, or belongs to another secret")]
    Altered,
}

/// A key that encrypts the keys of secrets.
pub(super) struct MasterKey {
    id: String,
    cipher: Cipher,
}

impl MasterKey {
    /// Reads a line of a key file: 32 bytes in base64. `None` if the line is something else.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let bytes = Zeroizing::new(BASE64_STANDARD.decode(line).ok()?);
        let key: &[u8; KEY_BYTES] = bytes.as_slice().try_into().ok()?;
        let mut labelled = Zeroizing::new(b"weir secrets: id of a master key\0".to_vec());
        labelled.extend_from_slice(key);
        let mut id = ContentHash::from_content(&labelled).to_string();
        id.truncate(ID_LEN);
        Some(Self { id, cipher: Cipher::new(key).ok()? })
    }

    /// Makes a line of a key file with a random key.
    pub(super) fn generate() -> Result<Zeroizing<String>, CipherError> {
        Ok(Zeroizing::new(BASE64_STANDARD.encode(*random::<KEY_BYTES>()?)))
    }

    /// Identifies the key without revealing it.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Encrypts a data key for the place that `context` describes.
    pub(super) fn wrap(&self, key: &DataKey, context: &[u8]) -> Result<Vec<u8>, CipherError> {
        self.cipher.seal(&*key.0, context)
    }

    /// Decrypts a data key.
    pub(super) fn unwrap(&self, wrapped: &[u8], context: &[u8]) -> Result<DataKey, CipherError> {
        let bytes = self.cipher.open(wrapped, context)?;
        let key = <[u8; KEY_BYTES]>::try_from(&bytes[..]).map_err(|_| CipherError::Altered)?;
        Ok(DataKey(Zeroizing::new(key)))
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MasterKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The key that encrypts one value.
pub(super) struct DataKey(Zeroizing<[u8; KEY_BYTES]>);

impl DataKey {
    pub(super) fn generate() -> Result<Self, CipherError> {
        random().map(Self)
    }

    /// Encrypts a value for the place that `context` describes.
    pub(super) fn seal(&self, value: &[u8], context: &[u8]) -> Result<Vec<u8>, CipherError> {
        Cipher::new(&self.0)?.seal(value, context)
    }

    /// Decrypts a value.
    pub(super) fn open(&self, sealed: &[u8], context: &[u8]) -> Result<Zeroizing<Vec<u8>>, CipherError> {
        Cipher::new(&self.0)?.open(sealed, context)
    }
}

/// ChaCha20-Poly1305 with random nonces, which precede the ciphertext.
struct Cipher(LessSafeKey);

impl Cipher {
    fn new(key: &[u8; KEY_BYTES]) -> Result<Self, CipherError> {
        let key = UnboundKey::new(&CHACHA20_POLY1305, key).map_err(|_| CipherError::Altered)?;
        Ok(Self(LessSafeKey::new(key)))
    }

    fn seal(&self, text: &[u8], context: &[u8]) -> Result<Vec<u8>, CipherError> {
        let nonce = *random::<NONCE_LEN>()?;
        // Of the final length, so that no copy of the text remains in memory that is freed.
        let mut sealed = Zeroizing::new(Vec::with_capacity(OVERHEAD_BYTES + text.len()));
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(text);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let encrypted =
            self.0.seal_in_place_separate_tag(nonce, Aad::from(context), &mut sealed[NONCE_LEN..]);
        let tag = encrypted.map_err(|_| CipherError::Altered)?;
        sealed.extend_from_slice(tag.as_ref());
        Ok(std::mem::take(&mut *sealed))
    }

    fn open(&self, sealed: &[u8], context: &[u8]) -> Result<Zeroizing<Vec<u8>>, CipherError> {
        let altered = |_| CipherError::Altered;
        let head = sealed.first_chunk::<NONCE_LEN>().ok_or(CipherError::Altered)?;
        let nonce = Nonce::assume_unique_for_key(*head);
        let mut text = Zeroizing::new(sealed[NONCE_LEN..].to_vec());
        let len = self.0.open_in_place(nonce, Aad::from(context), &mut text).map_err(altered)?.len();
        text.truncate(len);
        Ok(text)
    }
}

fn random<const LEN: usize>() -> Result<Zeroizing<[u8; LEN]>, CipherError> {
    let mut bytes = Zeroizing::new([0; LEN]);
    SystemRandom::new().fill(&mut *bytes).map_err(|_| CipherError::Random)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_text_opens_only_with_its_key_and_its_context() {
        let key = DataKey::generate().unwrap();
        let sealed = key.seal(b"value", b"here").unwrap();
        assert_eq!(sealed.len(), b"value".len() + OVERHEAD_BYTES);
        assert_eq!(&**key.open(&sealed, b"here").unwrap(), b"value");
        assert_eq!(key.open(&sealed, b"there").unwrap_err(), CipherError::Altered);
        assert!(DataKey::generate().unwrap().open(&sealed, b"here").is_err());
        for at in 0..sealed.len() {
            let mut altered = sealed.clone();
            altered[at] ^= 1;
            assert!(key.open(&altered, b"here").is_err(), "byte {at}");
            assert!(key.open(&sealed[..at], b"here").is_err(), "{at} bytes");
        }
        assert_ne!(sealed, key.seal(b"value", b"here").unwrap(), "the nonce is not random");
    }

    #[test]
    fn master_keys_are_lines_of_base64_with_an_id() {
        let line = MasterKey::generate().unwrap();
        let key = MasterKey::parse(&line).unwrap();
        assert_eq!(key.id(), MasterKey::parse(&line).unwrap().id());
        assert_ne!(key.id(), MasterKey::parse(&MasterKey::generate().unwrap()).unwrap().id());
        assert!(!format!("{key:?}").contains(&**line));
        let short = BASE64_STANDARD.encode([1; 31]);
        let long = BASE64_STANDARD.encode([1; 33]);
        for wrong in ["", "key", &short, &long] {
            assert!(MasterKey::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn data_key_moves_from_one_master_key_to_another() {
        let [old, new] = [(), ()].map(|()| MasterKey::parse(&MasterKey::generate().unwrap()).unwrap());
        let key = DataKey::generate().unwrap();
        let sealed = key.seal(b"value", b"value").unwrap();
        let wrapped = old.wrap(&key, b"key").unwrap();
        assert!(new.unwrap(&wrapped, b"key").is_err());
        let moved = new.wrap(&old.unwrap(&wrapped, b"key").unwrap(), b"key").unwrap();
        assert_eq!(&**new.unwrap(&moved, b"key").unwrap().open(&sealed, b"value").unwrap(), b"value");
    }
}
