//! TLS to a node: the certificates that are accepted, and advice for those that are not.

use crate::error::Problem;
use crate::settings::Trust;
use anyhow::Result;
use rustls::CertificateError as Refused;
use std::path::Path;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// The settings of connections to a node with these certificates.
pub(super) fn config(trust: &Trust) -> Result<TlsConfig> {
    let builder = TlsConfig::builder();
    Ok(match trust {
        Trust::Public => builder.build(),
        Trust::File(path) => builder.root_certs(RootCerts::new_with_certs(&authorities(path)?)).build(),
        Trust::OwnProcess => builder.disable_verification(true).build(),
    })
}

/// Reads the certificates of a PEM file.
fn authorities(path: &Path) -> Result<Vec<Certificate<'static>>> {
    const HINT: &str = "--ca-file, WEIR_CA_FILE, or ca_file in [client] of weir.toml, names a PEM file with the certificate of the authority that signed the node's";
    let unusable = || Problem::usage(format!("cannot use the CA file {}", path.display())).hint(HINT);
    let text = std::fs::read(path).map_err(|error| unusable().because(error))?;
    let items: Result<Vec<_>, _> = parse_pem(&text).collect();
    let items = items.map_err(|error| unusable().because(error))?;
    let certificates: Vec<_> = items
        .into_iter()
        .filter_map(|item| match item {
            PemItem::Certificate(certificate) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(unusable().because(anyhow::anyhow!("it has no certificate")).into());
    }
    Ok(certificates)
}

/// The message and the advice for a failed TLS handshake with the node at `url`; `None` for other
/// errors.
pub(super) fn explain(error: &ureq::Error, url: &str) -> Option<(String, String)> {
    let error = match error {
        ureq::Error::Rustls(error) => error,
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref::<rustls::Error>()?,
        _ => return None,
    };
    let problem = |what: &str, hint: String| Some((format!("{url}: {what}"), hint));
    match error {
        rustls::Error::InvalidCertificate(Refused::UnknownIssuer) => problem(
            "the node's certificate is signed by an unknown authority",
            "give the authority's certificate with --ca-file FILE or WEIR_CA_FILE; for a self-signed certificate, that is the certificate itself".into(),
        ),
        rustls::Error::InvalidCertificate(Refused::Expired | Refused::ExpiredContext { .. }) => problem(
            "the node's certificate has expired",
            "renew the file of gateway.tls.certificate, which the node then reloads; also check the clock of this machine".into(),
        ),
        rustls::Error::InvalidCertificate(Refused::NotValidYet | Refused::NotValidYetContext { .. }) => problem(
            "the node's certificate is not valid yet",
            "check the clocks of this machine and of the one that made the certificate".into(),
        ),
        rustls::Error::InvalidCertificate(
            Refused::NotValidForName | Refused::NotValidForNameContext { .. },
        ) => problem(
            "the node's certificate is for other host names",
            "name the node with --url as its certificate does, or add this name to the certificate".into(),
        ),
        rustls::Error::InvalidCertificate(_) => problem(
            "the node's certificate cannot be accepted",
            "check the node's certificate and the one of --ca-file".into(),
        ),
        rustls::Error::InvalidMessage(_) => problem(
            "the port does not speak TLS",
            format!("the node may speak plain HTTP: try --url {}", url.replacen("https://", "http://", 1)),
        ),
        _ => problem(
            "the TLS handshake failed",
            "check that the port is that of a node or of a proxy with TLS".into(),
        ),
    }
}
