//! `weir cluster renew`, and the renewal of certificates by a running node.

use super::ca::write;
use super::enrolment::{EnrolmentFiles, EnrolmentRequest, EnrolmentResult, PublicKey, provider};
use super::join::{Issued, exchange};
use crate::commands::CommandContext;
use crate::error::Problem;
use anyhow::{Context as _, Result};
use rcgen::{KeyPair, PublicKeyData as _};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use std::convert::Infallible;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, sleep_until};
use weir_tls::NodeTlsConfig;

const DAY_S: i64 = 24 * 3_600;
/// Rest of a certificate's validity within which it is renewed, unless a third of the validity is
/// less.
const WITHIN_DAYS: u32 = 30;

/// Get the present revocation list, and a new certificate before the old one expires
///
/// A node with the setting `node.cluster.tls.authority` does the same every hour. A running node
/// reads the new files without a restart.
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
    /// Renew a certificate that expires within this many days [default: 30, or a third of its
    /// validity if that is less]
    #[arg(long, value_name = "DAYS")]
    within_days: Option<u32>,
}

/// Renewal of a running node's files.
pub(crate) struct NodeRenewal {
    authority: String,
    files: EnrolmentFiles,
    interval: Duration,
    due: Instant,
}

pub(super) async fn renew(args: &RenewArgs, context: &CommandContext) -> Result<()> {
    let files = EnrolmentFiles::in_folder(&args.folder);
    files.validity_s().map_err(|error| {
        Problem::usage(format!("{} has no certificate to renew", args.folder.display()))
            .because(error)
            .hint("`weir cluster join` gets the first one; --folder says where it is")
    })?;
    let renewed = renew_files(&args.authority, &files, args.within_days).await?;
    context.output.result(&renewed, EnrolmentResult::text)
}

impl NodeRenewal {
    /// The renewal that the settings of a node ask for; `None` without an authority.
    pub(crate) fn from_config(config: &NodeTlsConfig) -> Result<Option<Self>> {
        let Some(authority) = config.authority.clone() else { return Ok(None) };
        let files = EnrolmentFiles::from_config(config).ok_or_else(|| {
            Problem::usage(
                "node.cluster.tls.authority needs ca, certificate, key and crl, and one of them is not set",
            )
            .hint("`weir cluster join` makes the files, and prints their settings")
        })?;
        let interval = Duration::from_millis(config.renew_ms.max(1));
        Ok(Some(Self { authority, files, interval, due: Instant::now() }))
    }

    /// Renews the files at once and at every interval. Logs failures.
    pub(crate) async fn run(&mut self) -> Infallible {
        loop {
            sleep_until(self.due).await;
            let renewed = renew_files(&self.authority, &self.files, None).await;
            self.due = Instant::now() + self.interval;
            if let Err(error) = renewed {
                tracing::warn!(
                    authority = self.authority,
                    error = format!("{error:#}"),
                    hint = error.downcast_ref::<Problem>().and_then(Problem::advice),
                    "the certificate and the revocation list of this node were not renewed"
                );
            }
        }
    }
}

/// Gets the revocation list, and a new certificate if the present one expires soon.
async fn renew_files(
    authority: &str,
    files: &EnrolmentFiles,
    within_days: Option<u32>,
) -> Result<EnrolmentResult> {
    let mut written = Vec::new();
    let crl = ask(authority, files, None).await?.crl;
    // A new file would be read again by a running node.
    if fs::read_to_string(&files.crl).ok().as_deref() != Some(crl.as_str()) {
        write(&files.crl, 0o644, &crl)?;
        written.push(files.crl.clone());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if is_due(&files.validity_s()?, now_s, within_days) {
        // The authority accepts the last two certificates of a node only. A certificate that the node
        // cannot store would count as one of them.
        write(&files.certificate, 0o644, &fs::read_to_string(&files.certificate)?)?;
        // The same key, so that one rename replaces the certificate.
        let key = KeyPair::from_pem(&fs::read_to_string(&files.key)?)?;
        let issued = ask(authority, files, Some(PublicKey::new(key.der_bytes())?)).await?;
        let certificate = issued.certificate.context("the authority has sent no certificate")?;
        write(&files.certificate, 0o644, &certificate)?;
        written.push(files.certificate.clone());
    }
    files.enrolled(written)
}

/// Whether a certificate is renewed now: within the given time before its end, by default within 30
/// days or a third of its validity.
fn is_due(validity_s: &Range<i64>, now_s: i64, within_days: Option<u32>) -> bool {
    let third_s = (validity_s.end - validity_s.start) / 3;
    let within_s =
        within_days.map_or(third_s.min(i64::from(WITHIN_DAYS) * DAY_S), |days| i64::from(days) * DAY_S);
    validity_s.end - now_s < within_s
}

/// Asks the authority for the revocation list, and with a public key for a certificate.
async fn ask(authority: &str, files: &EnrolmentFiles, public_key: Option<PublicKey>) -> Result<Issued> {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_file_iter(&files.ca)? {
        roots.add(root?)?;
    }
    let chain = CertificateDer::pem_file_iter(&files.certificate)?.collect::<Result<Vec<_>, _>>()?;
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&files.key)?)?;
    exchange(authority, config, &EnrolmentRequest::Renew { public_key }).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_renewed_in_their_last_third_or_thirty_days() {
        let year_s = 0..365 * DAY_S;
        assert!(!is_due(&year_s, 334 * DAY_S, None) && is_due(&year_s, 336 * DAY_S, None));
        let week_s = 0..7 * DAY_S;
        assert!(!is_due(&week_s, 4 * DAY_S, None) && is_due(&week_s, 5 * DAY_S, None));
        assert!(is_due(&year_s, 0, Some(366)) && !is_due(&year_s, 0, Some(365)));
    }
}
