//! Certificate authority of a test, and the certificates that it issues.

use crate::write_private;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
    date_time_ymd,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

/// Certificate authority.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
    /// Number of certificates and revocation lists so far.
    issued: AtomicU64,
}

/// Files of an issued certificate. The next certificate under the same file name replaces them.
#[derive(Debug, Clone)]
pub struct Issued {
    /// PEM file of the certificate.
    pub certificate: PathBuf,
    /// PEM file of the key.
    pub key: PathBuf,
    serial: u64,
}

impl Authority {
    /// Creates an authority with a new key.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([]).expect("an empty list of names is valid");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("the system has random numbers");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("the key can sign");
        let folder = tempfile::Builder::new()
            .prefix("weir-ca-")
            .tempdir()
            .expect("a temporary folder cannot be created");
        fs::write(folder.path().join("ca.pem"), issuer.pem()).expect("the certificate cannot be written");
        let authority = Self { issuer, folder, issued: AtomicU64::new(1) };
        authority.revoke(&[]);
        authority
    }

    /// PEM file of the revocation list.
    #[must_use]
    pub fn crl(&self) -> PathBuf {
        self.folder.path().join("crl.pem")
    }

    /// Revokes these certificates, and no others.
    pub fn revoke(&self, certificates: &[&Issued]) {
        let revoked = |issued: &&Issued| RevokedCertParams {
            serial_number: SerialNumber::from(issued.serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(self.issued.fetch_add(1, Ordering::Relaxed)),
            issuing_distribution_point: None,
            revoked_certs: certificates.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).expect("the authority can sign");
        replace(&self.crl(), &list.pem().expect("the list is valid"));
    }

    /// PEM file of the authority's certificate.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Issues a certificate for these host names, to files that begin with `file`.
    pub fn issue(&self, file: &str, names: &[&str]) -> Issued {
        self.write(file, params(names))
    }

    /// Issues a certificate that has expired.
    pub fn issue_expired(&self, file: &str, names: &[&str]) -> Issued {
        let mut params = params(names);
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2001, 1, 1);
        self.write(file, params)
    }

    pub(crate) fn as_root(&self) -> reqwest::Certificate {
        reqwest::Certificate::from_der(self.issuer.der()).expect("the certificate is valid")
    }

    fn write(&self, file: &str, mut params: CertificateParams) -> Issued {
        let serial = self.issued.fetch_add(1, Ordering::Relaxed);
        params.serial_number = Some(SerialNumber::from(serial));
        let key = KeyPair::generate().expect("the system has random numbers");
        let certificate = params.signed_by(&key, &self.issuer).expect("the authority can sign");
        let path = |what: &str| self.folder.path().join(format!("{file}-{what}.pem"));
        let issued = Issued { certificate: path("cert"), key: path("key"), serial };
        replace(&issued.key, &key.serialize_pem());
        replace(&issued.certificate, &certificate.pem());
        issued
    }
}

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("the names are valid");
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

/// Replaces a file by a rename, as tools that renew certificates do.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    write_private(&new, text);
    fs::rename(&new, path).expect("the file cannot be replaced");
}
