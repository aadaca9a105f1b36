//! Errors of certificates and keys.

use std::path::PathBuf;
use weir_storage::PrivateFileError;

/// Unusable files or settings of TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Only one of the two files is configured.
    #[error("TLS needs a certificate and its key: give {0} too")]
    Incomplete(&'static str),
    /// A file of a node's identity is not configured.
    #[error("TLS between nodes needs an authority, a certificate and its key: give {0} too")]
    IncompleteNode(&'static str),
    /// A file of certificates cannot be read.
    #[error("cannot read the certificate {}: {why}", .path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A file of certificates has none.
    #[error("{} has no certificate: it must be a PEM file with `-----BEGIN CERTIFICATE-----`", .0.display())]
    NoCertificate(PathBuf),
    /// The key file cannot be read, or other users can.
    #[error("cannot use the key file {}: {source}", .path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: PrivateFileError,
    },
    /// The key file has no key.
    #[error("{} has no private key: it must be a PEM file with `-----BEGIN PRIVATE KEY-----`, not encrypted", .0.display())]
    NoKey(PathBuf),
    /// The key is not that of the certificate, or of an unknown kind.
    #[error("the key {} does not fit the certificate {}: {source}", .key.display(), .certificate.display())]
    Mismatch {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        certificate: PathBuf,
        /// The reason.
        source: rustls::Error,
    },
    /// The cryptography lacks a protocol version.
    #[error("TLS cannot be set up: {0}")]
    Protocol(rustls::Error),
}
