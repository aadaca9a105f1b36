//! Logins: a token, user and password, or a key that signs the server's nonce.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Map, Value};
use std::fmt;

/// Alphabet of base 32 (RFC 4648).
const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
/// First byte of the seed of a key, and of the public key of a user.
const SEED_PREFIX: u8 = 18 << 3;
const USER_PREFIX: u8 = 20 << 3;
/// Length of a decoded seed: two bytes of prefix, the seed, two bytes of checksum.
const SEED_LEN: usize = 36;

/// Proof of who the client is.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    /// No login.
    None,
    /// Token of the server.
    Token(String),
    /// Name and password.
    User(String, String),
    /// Seed of the private key of a user, with the signed claims of the user if the server has accounts.
    Key {
        /// Seed.
        seed: [u8; 32],
        /// JSON web token of the user.
        jwt: Option<String>,
    },
}

/// Reason why a login cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The text of a key is no seed of a user.
    #[error("the seed of the key is damaged, or is not that of a user (SU...)")]
    BadSeed,
    /// The text of a credentials file lacks a part.
    #[error("the credentials file has no {0}")]
    Incomplete(&'static str),
    /// The server does not ask for a signature.
    #[error("the server sends no nonce, so that it does not accept keys")]
    NoNonce,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Token(_) => "Token(..)",
            Self::User(..) => "User(..)",
            Self::Key { .. } => "Key(..)",
        })
    }
}

impl Login {
    /// Reads a login: the contents of a credentials file, the seed of a user's key (`SU...`),
    /// `USER:PASSWORD`, or a token.
    ///
    /// # Errors
    /// If a file or seed is damaged.
    pub fn parse(text: &str) -> Result<Self, LoginError> {
        let text = text.trim();
        if text.contains("-----BEGIN NATS USER JWT-----") {
            let jwt = block(text, "NATS USER JWT").ok_or(LoginError::Incomplete("NATS USER JWT"))?;
            let seed = block(text, "USER NKEY SEED").ok_or(LoginError::Incomplete("USER NKEY SEED"))?;
            return Ok(Self::Key { seed: decode_seed(seed)?, jwt: Some(jwt.to_owned()) });
        }
        if text.starts_with("SU") && text.len() == (SEED_LEN * 8).div_ceil(5) {
            return Ok(Self::Key { seed: decode_seed(text)?, jwt: None });
        }
        Ok(match text.split_once(':') {
            Some((user, password)) => Self::User(user.to_owned(), password.to_owned()),
            None if text.is_empty() => Self::None,
            None => Self::Token(text.to_owned()),
        })
    }

    /// Adds the login to the options of a connection. `nonce` is that of the server.
    pub(crate) fn add_to(
        &self,
        options: &mut Map<String, Value>,
        nonce: Option<&str>,
    ) -> Result<(), LoginError> {
        let mut add = |name: &str, value: &str| options.insert(name.to_owned(), Value::from(value));
        match self {
            Self::None => {}
            Self::Token(token) => {
                add("auth_token", token);
            }
            Self::User(user, password) => {
                add("user", user);
                add("pass", password);
            }
            Self::Key { seed, jwt } => {
                let nonce = nonce.ok_or(LoginError::NoNonce)?;
                let key = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| LoginError::BadSeed)?;
                let signature = key.sign(nonce.as_bytes());
                add("sig", &BASE64_URL_SAFE_NO_PAD.encode(signature.as_ref()));
                match jwt {
                    Some(jwt) => add("jwt", jwt),
                    None => add("nkey", &public_key(key.public_key().as_ref())),
                };
            }
        }
        Ok(())
    }
}

/// The text between `-----BEGIN NAME-----` and the next line of dashes.
fn block<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let found = text.split_once(&format!("-----BEGIN {name}-----"))?.1;
    Some(found.split_once("---")?.0.trim()).filter(|text| !text.is_empty())
}

fn decode_seed(text: &str) -> Result<[u8; 32], LoginError> {
    let bytes =
        base32_decode(text.as_bytes()).filter(|bytes| bytes.len() == SEED_LEN).ok_or(LoginError::BadSeed)?;
    let checked = bytes.split_last_chunk::<2>().filter(|(key, sum)| checksum(key).to_le_bytes() == **sum);
    let (key, _) = checked.ok_or(LoginError::BadSeed)?;
    let (prefix, seed) = key.split_first_chunk::<2>().ok_or(LoginError::BadSeed)?;
    // The prefix of the kind of key is spread over two bytes, five bits later.
    if *prefix != [SEED_PREFIX | (USER_PREFIX >> 5), (USER_PREFIX & 31) << 3] {
        return Err(LoginError::BadSeed);
    }
    seed.try_into().map_err(|_| LoginError::BadSeed)
}

fn public_key(key: &[u8]) -> String {
    let mut bytes = vec![USER_PREFIX];
    bytes.extend_from_slice(key);
    let sum = checksum(&bytes).to_le_bytes();
    bytes.extend_from_slice(&sum);
    base32_encode(&bytes)
}

/// CRC-16 with the polynomial of CCITT, from zero.
fn checksum(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ (u16::from(*byte) << 8), |sum: u16, _| {
            if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 }
        })
    })
}

fn base32_decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut bits: u32 = 0;
    let mut count = 0;
    let mut bytes = Vec::with_capacity(text.len() * 5 / 8);
    for character in text {
        let value = BASE32.iter().position(|known| known == character)?;
        bits = (bits << 5) | u32::try_from(value).ok()?;
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from((bits >> count) & 0xff).ok()?);
        }
    }
    Some(bytes)
}

fn base32_encode(bytes: &[u8]) -> String {
    let digits = (bytes.len() * 8).div_ceil(5);
    let bit = |at: usize| bytes.get(at / 8).is_some_and(|byte| byte & (0x80 >> (at % 8)) != 0);
    let digit = |digit: usize| (0..5).fold(0, |value, at| (value << 1) | usize::from(bit(digit * 5 + at)));
    (0..digits).filter_map(|at| BASE32.get(digit(at))).map(|byte| char::from(*byte)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pair of keys for tests that the tools of NATS made.
    const SEED: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
    const PUBLIC: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";

    fn options(login: &Login, nonce: Option<&str>) -> Result<Map<String, Value>, LoginError> {
        let mut options = Map::new();
        login.add_to(&mut options, nonce)?;
        Ok(options)
    }

    #[test]
    fn logins_are_distinguished_by_their_form() {
        assert_eq!(Login::parse("s3cret\n"), Ok(Login::Token("s3cret".to_owned())));
        assert_eq!(Login::parse("me:a:b"), Ok(Login::User("me".to_owned(), "a:b".to_owned())));
        assert_eq!(Login::parse(" "), Ok(Login::None));
        let Login::Key { seed, jwt: None } = Login::parse(SEED).unwrap() else { panic!() };
        let file = format!(
            "-----BEGIN NATS USER JWT-----\neyJ0.e30.c2ln\n------END NATS USER JWT------\n\n*** IMPORTANT ***\n\
             -----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"
        );
        assert_eq!(Login::parse(&file), Ok(Login::Key { seed, jwt: Some("eyJ0.e30.c2ln".to_owned()) }));
        let cut = file.split_once("-----BEGIN USER").unwrap().0;
        assert_eq!(Login::parse(cut), Err(LoginError::Incomplete("USER NKEY SEED")));
        let damaged = SEED.replace("SUACSS", "SUACST");
        assert_eq!(Login::parse(&damaged), Err(LoginError::BadSeed));
        assert!(!format!("{:?}", Login::parse(SEED)).contains("SUAC"));
    }

    #[test]
    fn keys_sign_the_nonce_of_the_server() {
        let login = Login::parse(SEED).unwrap();
        let sent = options(&login, Some("nonce")).unwrap();
        assert_eq!(sent["nkey"], PUBLIC);
        let signature = BASE64_URL_SAFE_NO_PAD.decode(sent["sig"].as_str().unwrap()).unwrap();
        let public = base32_decode(PUBLIC.as_bytes()).unwrap();
        let verifier = ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, &public[1..33]);
        verifier.verify(b"nonce", &signature).unwrap();
        assert_eq!(options(&login, None), Err(LoginError::NoNonce));
    }
}
