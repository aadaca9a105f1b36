//! PEM files, and a way to notice that they have changed.

use crate::TlsError;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use weir_storage::read_private_file;
use yasna::{ASN1Error, ASN1ErrorKind, ASN1Result, BERReader, Tag, parse_der};

/// Longest file of certificates, in bytes.
const CERTIFICATES_BYTES_MAX: u64 = 1 << 20;

/// Reads the certificates of a PEM file.
pub(crate) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |why: String| TlsError::Certificate { path: path.to_owned(), why };
    let text = read_limited(path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let certificates = read.map_err(|error| unreadable(error.to_string()))?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate(path.to_owned()));
    }
    for certificate in &certificates {
        expiry_of(certificate).ok_or_else(|| unreadable("it is not an X.509 certificate".to_owned()))?;
    }
    Ok(certificates)
}

fn read_limited(path: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |why: String| TlsError::Certificate { path: path.to_owned(), why };
    let meta = fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
    if meta.len() > CERTIFICATES_BYTES_MAX {
        return Err(unreadable(format!("it has more than {CERTIFICATES_BYTES_MAX} bytes")));
    }
    fs::read(path).map_err(|error| unreadable(error.to_string()))
}

/// Reads the private key of a PEM file that other users of the machine cannot read.
pub(crate) fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text =
        read_private_file(path).map_err(|source| TlsError::KeyFile { path: path.to_owned(), source })?;
    PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| TlsError::NoKey(path.to_owned()))
}

/// End of a certificate's validity, in seconds since 1970; `None` if it is not a certificate.
pub(crate) fn expiry_of(certificate: &CertificateDer<'_>) -> Option<i64> {
    validity_of(certificate).map(|validity| validity.end)
}

/// A certificate's validity, in seconds since 1970; `None` if it is not a certificate.
pub(crate) fn validity_of(certificate: &CertificateDer<'_>) -> Option<Range<i64>> {
    parse_der(certificate, read_validity).ok()
}

/// Reads `Certificate` of RFC 5280, section 4.1.
#[expect(clippy::redundant_closure_for_method_calls, reason = "the method by its path has one lifetime only")]
fn read_validity(reader: BERReader<'_, '_>) -> ASN1Result<Range<i64>> {
    reader.read_sequence(|certificate| {
        let validity = certificate.next().read_sequence(|fields| {
            // The version, which is optional, the serial number, the algorithm and the issuer.
            fields.read_optional(|field| field.read_tagged(Tag::context(0), |version| version.read_der()))?;
            for _ in 0..3 {
                fields.next().read_der()?;
            }
            let validity = fields.next().read_sequence(|times| {
                let begin = read_time(times.next())?;
                Ok(begin..read_time(times.next())?)
            })?;
            while fields.read_optional(|field| field.read_der())?.is_some() {}
            Ok(validity)
        })?;
        // The algorithm and the signature.
        certificate.next().read_der()?;
        certificate.next().read_der()?;
        Ok(validity)
    })
}

fn read_time(reader: BERReader<'_, '_>) -> ASN1Result<i64> {
    match reader.lookahead_tag()? {
        yasna::tags::TAG_UTCTIME => Ok(reader.read_utctime()?.datetime().unix_timestamp()),
        yasna::tags::TAG_GENERALIZEDTIME => Ok(reader.read_generalized_time()?.datetime().unix_timestamp()),
        _ => Err(ASN1Error::new(ASN1ErrorKind::Invalid)),
    }
}

/// Reads the revocation lists of a PEM file.
pub(crate) fn read_crls(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let unreadable = |why: String| TlsError::Certificate { path: path.to_owned(), why };
    let text = read_limited(path)?;
    let read: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&text).collect();
    let lists = read.map_err(|error| unreadable(error.to_string()))?;
    if lists.is_empty() {
        return Err(unreadable("it has no revocation list (`-----BEGIN X509 CRL-----`)".to_owned()));
    }
    Ok(lists)
}

/// State of files. Links are followed, so that a change of a link's target counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp(Vec<Option<FileStamp>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// The current state of `paths`. A file that cannot be looked at counts as one that is missing.
    pub(crate) fn take(paths: &[PathBuf]) -> Self {
        let stamp = |path: &PathBuf| {
            let meta = fs::metadata(path).ok()?;
            Some(FileStamp {
                device: meta.dev(),
                inode: meta.ino(),
                length: meta.len(),
                modified: (meta.mtime(), meta.mtime_nsec()),
                changed: (meta.ctime(), meta.ctime_nsec()),
            })
        };
        Self(paths.iter().map(stamp).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    #[test]
    fn expiry_is_read_in_both_formats_of_time() {
        for (year, seconds) in [(2030, 1_893_456_000), (2060, 2_840_140_800)] {
            let mut params = CertificateParams::new(["node.example".to_owned()]).unwrap();
            params.not_before = date_time_ymd(1975, 1, 1);
            params.not_after = date_time_ymd(year, 1, 1);
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            assert_eq!(expiry_of(certificate.der()), Some(seconds));
            assert_eq!(validity_of(certificate.der()), Some(157_766_400..seconds));
        }
        assert_eq!(expiry_of(&CertificateDer::from(&b"\x30\x03\x02\x01\x01"[..])), None);
    }
}
