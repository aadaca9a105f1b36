//! Enrolment of nodes at a certificate authority over the network.
//!
//! A connection is TLS 1.3 with the application protocol [`PROTOCOL`]. The node sends one request as
//! JSON and closes its side; the authority answers with JSON and closes the connection. A node that
//! joins shows a token in the request, one that renews its certificate shows the present one in the
//! handshake. The node's private key stays on the node.

mod files;
mod token;
mod trust;

pub(super) use files::{EnrolmentFiles, EnrolmentResult};
pub(super) use token::JoinToken;
pub(super) use trust::PinnedAuthority;

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm};
use rustls::crypto::CryptoProvider;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use weir_types::Name;

/// Application protocol of enrolment, in the TLS handshake.
pub(super) const PROTOCOL: &[u8] = b"weir-enrolment/1";
/// Port of an authority, where none is given.
pub(super) const PORT: u16 = 9348;
/// Length limit of a request.
pub(super) const REQUEST_BYTES_MAX: u64 = 16 << 10;
/// Length limit of an answer, which contains the revocation list.
pub(super) const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// A request of a node for certificates.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request")]
pub(super) enum EnrolmentRequest {
    /// A first certificate, for the holder of a token.
    Join {
        token: JoinToken,
        name: Name,
        /// Host names and IP addresses at which other nodes reach the node.
        hosts: Vec<String>,
        public_key: PublicKey,
    },
    /// The revocation list, and with a `public_key` a certificate for the same name and hosts.
    Renew { public_key: Option<PublicKey> },
}

/// The authority's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub(super) enum EnrolmentAnswer {
    /// PEM texts.
    Issued { ca: String, crl: String, certificate: Option<String> },
    /// The reason, and what to do.
    Refused { error: String, hint: Option<String> },
}

/// A node's public key: an uncompressed point of the curve P-256.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct PublicKey(Vec<u8>);

impl PublicKey {
    const BYTES: usize = 65;

    pub(super) fn new(bytes: &[u8]) -> Result<Self> {
        if bytes.len() != Self::BYTES || bytes.first() != Some(&4) {
            bail!("the public key is not an uncompressed point of P-256");
        }
        Ok(Self(bytes.to_vec()))
    }
}

impl TryFrom<String> for PublicKey {
    type Error = anyhow::Error;
    fn try_from(text: String) -> Result<Self> {
        Self::new(&STANDARD.decode(text).context("the public key is not base64")?)
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        STANDARD.encode(key.0)
    }
}

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// Sends a message and closes this side of the connection.
pub(super) async fn send(stream: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> Result<()> {
    stream.write_all(&serde_json::to_vec(message)?).await?;
    stream.shutdown().await?;
    Ok(())
}

/// Receives the message that ends the other side of the connection.
pub(super) async fn receive<M: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
    bytes_max: u64,
) -> Result<M> {
    let mut bytes = Vec::new();
    stream.take(bytes_max + 1).read_to_end(&mut bytes).await?;
    if bytes.len() as u64 > bytes_max {
        bail!("the message has more than {bytes_max} bytes");
    }
    serde_json::from_slice(&bytes).context("the message cannot be read")
}

/// The algorithms of TLS.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
