//! A certificate with its key, which follows its files.
//!
//! New contents apply to new connections. Contents that cannot be used are reported, and the old
//! ones stay in use.

use crate::files::{Stamp, read_certificates, read_key, validity_of};
use crate::{TlsConfig, TlsError, provider};
use parking_lot::Mutex;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Files of a certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// PEM file of the certificate and of those between it and the root.
    pub certificate: PathBuf,
    /// PEM file of the private key.
    pub key: PathBuf,
}

/// A certificate with its key, replaced when its files change. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Certificate(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    files: CertificateFiles,
    current: Mutex<Current>,
}

#[derive(Debug, Clone)]
struct Current {
    key: Arc<CertifiedKey>,
    /// State of the files when they were last looked at, usable or not.
    stamp: Stamp,
}

impl CertificateFiles {
    /// The files that a configuration names; `None` if it names none.
    ///
    /// # Errors
    /// [`TlsError::Incomplete`] if it names only one of the two.
    pub fn from_config(config: &TlsConfig) -> Result<Option<Self>, TlsError> {
        match (&config.certificate, &config.key) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => {
                Ok(Some(Self { certificate: certificate.clone(), key: key.clone() }))
            }
            (Some(_), None) => Err(TlsError::Incomplete("--tls-key FILE (gateway.tls.key)")),
            (None, Some(_)) => Err(TlsError::Incomplete("--tls-cert FILE (gateway.tls.certificate)")),
        }
    }

    fn paths(&self) -> [PathBuf; 2] {
        [self.certificate.clone(), self.key.clone()]
    }

    fn read(&self) -> Result<Arc<CertifiedKey>, TlsError> {
        let chain = read_certificates(&self.certificate)?;
        let key = CertifiedKey::from_der(chain, read_key(&self.key)?, &provider());
        key.map(Arc::new).map_err(|source| TlsError::Mismatch {
            key: self.key.clone(),
            certificate: self.certificate.clone(),
            source,
        })
    }
}

impl Certificate {
    /// Reads a certificate and its key. Blocks.
    ///
    /// # Errors
    /// If a file cannot be used, or if the key is not that of the certificate.
    pub fn load(files: CertificateFiles) -> Result<Self, TlsError> {
        // Before the files are read: a change meanwhile is noticed by the next look.
        let stamp = Stamp::take(&files.paths());
        let key = files.read()?;
        Ok(Self(Arc::new(Shared { files, current: Mutex::new(Current { key, stamp }) })))
    }

    /// Reads the files if they have changed since the last look, or in any case with `force`. Returns
    /// whether another certificate is in use. Blocks.
    ///
    /// # Errors
    /// If the new contents cannot be used; the old ones stay in use.
    pub fn reload(&self, force: bool) -> Result<bool, TlsError> {
        let stamp = Stamp::take(&self.0.files.paths());
        if !force && self.0.current.lock().stamp == stamp {
            return Ok(false);
        }
        // Between the renames of the two files, the key is that of another certificate. The second
        // rename changes the stamp again.
        let read = self.0.files.read();
        let mut current = self.0.current.lock();
        current.stamp = stamp;
        let key = read?;
        let is_new = current.key.cert != key.cert;
        current.key = key;
        Ok(is_new)
    }

    /// The files.
    #[must_use]
    pub fn files(&self) -> &CertificateFiles {
        &self.0.files
    }

    /// End of the certificate's validity, in seconds since 1970.
    #[must_use]
    pub fn expiry(&self) -> i64 {
        self.validity().end
    }

    /// The certificate's validity, in seconds since 1970.
    #[must_use]
    pub fn validity(&self) -> Range<i64> {
        self.current().cert.first().and_then(validity_of).unwrap_or(0..0)
    }

    pub(crate) fn current(&self) -> Arc<CertifiedKey> {
        self.0.current.lock().key.clone()
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    /// Writes a certificate for `name` and its key.
    fn write(folder: &Path, name: &str) -> CertificateFiles {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let files = CertificateFiles { certificate: folder.join("cert.pem"), key: folder.join("key.pem") };
        write_private(&files.key, &made.signing_key.serialize_pem());
        fs::write(&files.certificate, made.cert.pem()).unwrap();
        files
    }

    /// Replaces a file by a rename, as tools that renew certificates do.
    fn write_private(path: &Path, text: &str) {
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, Permissions::from_mode(0o600)).unwrap();
        fs::rename(new, path).unwrap();
    }

    #[test]
    fn new_files_apply_and_unusable_ones_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let files = write(folder.path(), "old.example");
        let certificate = Certificate::load(files.clone()).unwrap();
        let old = certificate.current().cert.clone();
        assert!(!certificate.reload(false).unwrap(), "nothing has changed");
        write(folder.path(), "new.example");
        assert!(certificate.reload(false).unwrap());
        let new = certificate.current().cert.clone();
        assert_ne!(old, new);

        // A key of another certificate.
        let other = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap();
        write_private(&files.key, &other.signing_key.serialize_pem());
        let error = certificate.reload(false).unwrap_err();
        assert!(matches!(error, TlsError::Mismatch { .. }), "{error}");
        assert_eq!(certificate.current().cert, new);
        assert!(!certificate.reload(false).unwrap(), "the same error is reported once");
        assert!(certificate.reload(true).is_err());
    }

    #[test]
    fn unusable_files_are_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let files = write(folder.path(), "node.example");
        let said = |files: &CertificateFiles| Certificate::load(files.clone()).unwrap_err().to_string();
        fs::set_permissions(&files.key, Permissions::from_mode(0o644)).unwrap();
        assert!(said(&files).contains("chmod 600"), "{}", said(&files));
        fs::set_permissions(&files.key, Permissions::from_mode(0o600)).unwrap();
        let swapped = CertificateFiles { certificate: files.key.clone(), key: files.key.clone() };
        assert!(said(&swapped).contains("has no certificate"), "{}", said(&swapped));
        fs::set_permissions(&files.certificate, Permissions::from_mode(0o600)).unwrap();
        let swapped = CertificateFiles { certificate: files.certificate.clone(), key: files.certificate };
        assert!(said(&swapped).contains("has no private key"), "{}", said(&swapped));
    }

    #[test]
    fn one_file_of_two_is_an_error() {
        let config = TlsConfig { certificate: Some("cert.pem".into()), ..TlsConfig::default() };
        let error = CertificateFiles::from_config(&config).unwrap_err().to_string();
        assert!(error.contains("--tls-key"), "{error}");
    }
}
