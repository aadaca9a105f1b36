//! `weir cluster renew`, and the renewal of certificates by a running node.

use super::ca::write;
use super::enrolment::{Enrolled, EnrolmentRequest, NodeFiles, PublicKey, provider};
use super::join::exchange;
use crate::commands::CommandContext;
use crate::error::Problem;
use anyhow::Result;
use rcgen::{KeyPair, PublicKeyData as _};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, sleep_until};
use weir_tls::NodeTlsConfig;

const DAY_S: i64 = 24 * 3_600;
/// Rest of a certificate's validity within which it is renewed.
const WITHIN_DAYS: u32 = 30;

/// Get the present revocation list, and a new certificate before the old one expires
///
/// A node with the setting `node.cluster.tls.authority` does the same every hour. A running node reads
/// the new files without a restart.
///
/// Examples:
///   weir cluster renew ca.example --folder /etc/weir/node
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct RenewArgs {
    /// Address of the authority, as HOST[:PORT]
    authority: String,
    /// Folder of the certificate
    #[arg(long, value_name = "FOLDER", default_value = "weir-node")]
    folder: PathBuf,
    /// Renew a certificate that expires within this many days
    #[arg(long, value_name = "DAYS", default_value_t = WITHIN_DAYS)]
    within_days: u32,
}

/// Renewal of a running node's files.
pub(crate) struct NodeRenewal {
    authority: String,
    files: NodeFiles,
    interval: Duration,
    due: Instant,
}

pub(super) async fn renew(args: &RenewArgs, context: &CommandContext) -> Result<()> {
    let files = NodeFiles::in_folder(&args.folder);
    let expiry_s = files.expiry_s().map_err(|error| {
        Problem::usage(format!("{} has no certificate to renew", args.folder.display()))
            .because(error)
            .hint("`weir cluster join` gets the first one; --folder says where it is")
    })?;
    let enrolled = renew_files(&args.authority, &files, expiry_s, args.within_days).await?;
    context.output.result(&enrolled, Enrolled::text)
}

impl NodeRenewal {
    /// The renewal that the settings of a node ask for; `None` without an authority.
    pub(crate) fn of_node(config: &NodeTlsConfig) -> Result<Option<Self>> {
        let Some(authority) = config.authority.clone() else { return Ok(None) };
        let files = NodeFiles::of_node(config).ok_or_else(|| {
            Problem::usage(
                "node.cluster.tls.authority renews four files, and the settings do not name all of them",
            )
            .hint(
                "set ca, certificate, key and crl in [node.cluster.tls]; `weir cluster join` makes the files",
            )
        })?;
        let interval = Duration::from_millis(config.renew_ms.max(1));
        Ok(Some(Self { authority, files, interval, due: Instant::now() }))
    }

    /// Waits until the next renewal is due, and renews the files. Failures are logged, and tried again
    /// after the interval. If the future is dropped, the next call continues.
    pub(crate) async fn next(&mut self) {
        sleep_until(self.due).await;
        let renewed = match self.files.expiry_s() {
            Ok(expiry_s) => renew_files(&self.authority, &self.files, expiry_s, WITHIN_DAYS).await.map(drop),
            Err(error) => Err(error),
        };
        self.due = Instant::now() + self.interval;
        if let Err(error) = renewed {
            tracing::warn!(
                authority = self.authority,
                error = format!("{error:#}"),
                "the certificate and the revocation list of this node were not renewed"
            );
        }
    }
}

/// Gets the revocation list, and a new certificate if the present one expires within `within_days`.
async fn renew_files(
    authority: &str,
    files: &NodeFiles,
    expiry_s: i64,
    within_days: u32,
) -> Result<Enrolled> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let is_due = expiry_s - now_s < i64::from(within_days) * DAY_S;
    let key_pem = fs::read_to_string(&files.key)?;
    // The same key, so that one rename replaces the certificate.
    let key = is_due.then(|| anyhow::Ok(PublicKey::new(KeyPair::from_pem(&key_pem)?.der_bytes())?));
    let request = EnrolmentRequest::Renew { public_key: key.transpose()? };
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.ca)?)?;
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![CertificateDer::from_pem_file(&files.certificate)?],
            PrivateKeyDer::from_pem_slice(key_pem.as_bytes())?,
        )?;
    let issued = exchange(authority, config, &request).await?;
    write(&files.crl, 0o644, &issued.crl)?;
    let mut written = vec![files.crl.clone()];
    if let Some(certificate) = &issued.certificate {
        write(&files.certificate, 0o644, certificate)?;
        written.push(files.certificate.clone());
    }
    files.enrolled(written)
}
