//! Files of a node in a cluster with a certificate authority: [`EnrolmentFiles`].

use crate::output::time;
use anyhow::Result;
use serde::Serialize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use weir_tls::{Certificate, CertificateFiles, NodeTlsConfig};

/// PEM files of a node.
pub(crate) struct EnrolmentFiles {
    /// The authority's certificate.
    pub(crate) ca: PathBuf,
    /// The authority's revocation list.
    pub(crate) crl: PathBuf,
    /// The node's certificate.
    pub(crate) certificate: PathBuf,
    /// The certificate's private key.
    pub(crate) key: PathBuf,
}

/// Files that an exchange with the authority has written.
#[derive(Debug, Serialize)]
pub(crate) struct EnrolmentResult {
    files: Vec<PathBuf>,
    expires_at_ms: u64,
}

impl EnrolmentFiles {
    /// The files that `weir cluster join` writes to a folder.
    pub(crate) fn in_folder(folder: &Path) -> Self {
        let [ca, crl, certificate, key] =
            ["ca.pem", "crl.pem", "cert.pem", "key.pem"].map(|name| folder.join(name));
        Self { ca, crl, certificate, key }
    }

    /// The files that the settings of a node name. `None` if one is missing.
    pub(crate) fn from_config(config: &NodeTlsConfig) -> Option<Self> {
        let NodeTlsConfig { ca, crl, certificate, key, .. } = config.clone();
        Some(Self { ca: ca?, crl: crl?, certificate: certificate?, key: key? })
    }

    /// The certificate's validity, in seconds since 1970.
    pub(crate) fn validity_s(&self) -> Result<Range<i64>> {
        let files = CertificateFiles { certificate: self.certificate.clone(), key: self.key.clone() };
        Ok(Certificate::load(files)?.validity())
    }

    /// Settings of a node with these files, which renews them at `authority`.
    pub(crate) fn settings(&self, authority: &str) -> String {
        let line = |key: &str, value: &dyn std::fmt::Display| format!("{key} = \"{value}\"\n");
        let lines = [
            line("ca", &self.ca.display()),
            line("certificate", &self.certificate.display()),
            line("key", &self.key.display()),
            line("crl", &self.crl.display()),
            line("authority", &authority),
        ];
        format!("[node.cluster.tls]\n{}", lines.concat())
    }

    pub(crate) fn enrolled(&self, files: Vec<PathBuf>) -> Result<EnrolmentResult> {
        let expiry_s = u64::try_from(self.validity_s()?.end).unwrap_or(0);
        Ok(EnrolmentResult { files, expires_at_ms: expiry_s.saturating_mul(1_000) })
    }
}

impl EnrolmentResult {
    /// Text for the terminal.
    pub(crate) fn text(&self) -> String {
        let files = self.files.iter().map(|file| format!("wrote {}\n", file.display()));
        let expiry = format!("the certificate is valid until {}", time(self.expires_at_ms));
        files.chain([expiry]).collect()
    }
}
