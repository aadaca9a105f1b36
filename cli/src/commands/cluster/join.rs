//! `weir cluster join`, and exchanges with the authority of a cluster.

use super::ca::write;
use super::enrolment::{
    ANSWER_BYTES_MAX, EnrolmentAnswer, EnrolmentFiles, EnrolmentRequest, EnrolmentResult, JoinToken, PORT,
    PROTOCOL, PinnedAuthority, PublicKey, provider, receive, send,
};
use crate::commands::CommandContext;
use crate::error::{Exit, Problem};
use anyhow::{Context as _, Result};
use rcgen::{KeyPair, PublicKeyData as _};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::TLS13;
use rustls::{AlertDescription, CertificateError, ClientConfig};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use weir_types::Name;

/// Time limit of an exchange with the authority.
const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(20);

/// Get a certificate for this machine from the authority of a cluster
///
/// The authority is `weir cluster ca serve`, and `weir cluster ca token create` makes the token. The
/// token contains the fingerprint of the authority: no other server is accepted. The private
/// key does not leave this machine.
///
/// Examples:
///   weir cluster join ca.example node-7 --host node-7.example --token-file token
///   WEIR_JOIN_TOKEN=weir-join-... weir cluster join 10.0.0.1:9348 node-7 --host 10.0.0.7
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct JoinArgs {
    /// Address of the authority, as HOST[:PORT]
    authority: String,
    /// Name of this node
    name: Name,
    /// Host name or IP address at which other nodes reach this node; may be repeated
    #[arg(long, value_name = "HOST", required = true)]
    host: Vec<String>,
    /// The join token
    #[arg(long, value_name = "TOKEN", env = "WEIR_JOIN_TOKEN", hide_env_values = true)]
    token: Option<JoinToken>,
    /// File with the join token
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// Folder for the certificate, its key, the authority's certificate and the revocation list
    #[arg(long, value_name = "FOLDER", default_value = "weir-node")]
    folder: PathBuf,
}

pub(super) async fn join(args: &JoinArgs, context: &CommandContext) -> Result<()> {
    let files = EnrolmentFiles::in_folder(&args.folder);
    if files.certificate.exists() {
        let message = format!("{} has a certificate already", args.folder.display());
        let hint = "`weir cluster renew` renews it; --folder picks another folder";
        return Err(Problem::usage(message).hint(hint).into());
    }
    let token = token(args)?;
    let key = KeyPair::generate()?;
    let request = EnrolmentRequest::Join {
        token: token.clone(),
        name: args.name.clone(),
        hosts: args.host.clone(),
        public_key: PublicKey::new(key.der_bytes())?,
    };
    let pinned = PinnedAuthority::new(token);
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(pinned.clone())
        .with_no_client_auth();
    let issued = exchange(&args.authority, config, &request).await?;
    let certificate = issued.certificate.context("the authority has sent no certificate")?;
    if CertificateDer::from_pem_slice(issued.ca.as_bytes()).ok() != pinned.certificate() {
        return Err(Problem::new("the authority has sent the certificate of another one").into());
    }
    fs::create_dir_all(&args.folder)
        .with_context(|| format!("cannot make the folder {}", args.folder.display()))?;
    write(&files.key, 0o600, &key.serialize_pem())?;
    write(&files.ca, 0o644, &issued.ca)?;
    write(&files.crl, 0o644, &issued.crl)?;
    // Last: with it, the folder is complete.
    write(&files.certificate, 0o644, &certificate)?;
    let written = [&files.ca, &files.crl, &files.certificate, &files.key].map(PathBuf::clone);
    context.output.result(&files.enrolled(written.to_vec())?, EnrolmentResult::text)?;
    context.output.note(format_args!("settings for weir.toml:\n\n{}", files.settings(&args.authority)));
    Ok(())
}

fn token(args: &JoinArgs) -> Result<JoinToken> {
    match (&args.token, &args.token_file) {
        (Some(token), _) => Ok(token.clone()),
        (None, Some(file)) => {
            let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
            text.parse().with_context(|| format!("cannot use {}", file.display()))
        }
        (None, None) => Err(Problem::usage("a node joins with a token")
            .hint("give it with --token-file FILE or WEIR_JOIN_TOKEN; `weir cluster ca token create` makes one, on the machine of the authority")
            .into()),
    }
}

/// Certificates and revocation list from the authority, as PEM.
pub(super) struct Issued {
    ca: String,
    pub(super) crl: String,
    pub(super) certificate: Option<String>,
}

/// Sends a request to the authority.
pub(super) async fn exchange(
    authority: &str,
    mut config: ClientConfig,
    request: &EnrolmentRequest,
) -> Result<Issued> {
    let (host, port) = host_and_port(authority)?;
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| Problem::usage(format!("{host:?} is not a host")).because(error))?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    let exchanged = async {
        let stream = TcpStream::connect((host, port)).await?;
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        // An authority that refuses the certificate may close the connection before this is sent. The
        // alert that it has sent says why.
        let _ = send(&mut stream, request).await;
        receive::<EnrolmentAnswer>(&mut stream, ANSWER_BYTES_MAX).await
    };
    let exchanged = timeout(EXCHANGE_TIME_MAX, exchanged).await;
    let answer = exchanged.unwrap_or_else(|late| Err(late.into())).map_err(|error| {
        let hint = advice(&error);
        Problem::new(format!("no certificate from the authority at {host}:{port}"))
            .because(error)
            .exit(Exit::Unreachable)
            .hint(hint)
    })?;
    match answer {
        EnrolmentAnswer::Issued { ca, crl, certificate } => Ok(Issued { ca, crl, certificate }),
        EnrolmentAnswer::Refused { error, hint } => {
            let problem = Problem::new(format!("the authority refuses: {error}")).exit(Exit::Refused);
            Err(match hint {
                Some(hint) => problem.hint(hint).into(),
                None => problem.into(),
            })
        }
    }
}

/// What to do about a failed exchange.
fn advice(error: &anyhow::Error) -> &'static str {
    let io = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    match io.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "the server at this address is not the authority of the token or certificate"
        }
        Some(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => "give `weir cluster ca serve` this name with --host, or use the name that it has",
        Some(rustls::Error::AlertReceived(AlertDescription::CertificateRevoked)) => {
            "this node's certificate was revoked: move its folder away and join with a new token"
        }
        Some(rustls::Error::AlertReceived(AlertDescription::CertificateExpired)) => {
            "this node's certificate has expired: revoke it, move its folder away and join with a new token"
        }
        _ => "run `weir cluster ca serve` on the machine of the authority, and check the address",
    }
}

fn host_and_port(authority: &str) -> Result<(&str, u16)> {
    let wrong = || Problem::usage(format!("{authority:?} is not HOST[:PORT]"));
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(wrong)?,
        // More than one colon: an IPv6 address without a port.
        None if authority.matches(':').count() == 1 => {
            let at = authority.find(':').unwrap_or(authority.len());
            authority.split_at(at)
        }
        None => (authority, ""),
    };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => PORT,
        Some(port) => port.parse().map_err(|_| wrong())?,
        None => return Err(wrong().into()),
    };
    if host.is_empty() { Err(wrong().into()) } else { Ok((host, port)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_authorities_may_omit_the_port() {
        for (text, host, port) in [
            ("ca.example", "ca.example", PORT),
            ("ca.example:1", "ca.example", 1),
            ("10.0.0.1:2", "10.0.0.1", 2),
            ("::1", "::1", PORT),
            ("[::1]", "::1", PORT),
            ("[::1]:3", "::1", 3),
        ] {
            assert_eq!(host_and_port(text).unwrap(), (host, port), "{text}");
        }
        for wrong in ["", ":1", "host:", "host:port", "[::1", "[::1]1", "host:70000"] {
            assert!(host_and_port(wrong).is_err(), "{wrong}");
        }
    }
}
