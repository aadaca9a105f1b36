//! `weir cluster ca serve`.

use super::super::enrolment::{
    EnrolmentAnswer, EnrolmentRequest, PROTOCOL, REQUEST_BYTES_MAX, provider, receive, send,
};
use super::store::{Store, Subject, read};
use super::tokens::Tokens;
use crate::commands::up::Signals;
use crate::error::Problem;
use crate::output::OutputSettings;
use anyhow::{Context as _, Result, anyhow};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig};
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// Number of connections at the same time. Further ones wait.
const CONNECTIONS_MAX: usize = 64;
/// Time limit of a connection.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause after an error of the listener.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub(super) struct ServeArgs {
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9348")]
    listen: SocketAddr,
    /// Host name or IP address by which nodes reach this machine; may be repeated [default: the
    /// address of --listen]
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
    /// Days until the certificates of nodes expire
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
}

/// The authority, its names in TLS, and the validity of the certificates that it issues.
struct Authority {
    store: Store,
    /// Names of this server.
    hosts: Vec<String>,
    days: u32,
    output: OutputSettings,
}

pub(super) async fn serve(args: &ServeArgs, store: Store, output: OutputSettings) -> Result<()> {
    let mut signals = Signals::new()?;
    let hosts = match &args.host[..] {
        [] if args.listen.ip().is_unspecified() => {
            let message = format!("nodes cannot reach this machine at {}", args.listen);
            return Err(Problem::usage(message).hint("name it with --host HOST").into());
        }
        [] => vec![args.listen.ip().to_string()],
        hosts => hosts.to_vec(),
    };
    let authority = Arc::new(Authority { store, hosts, days: args.days, output });
    // An error of the folder is better found now than by the first node.
    let checked = authority.clone();
    spawn_blocking(move || checked.config()).await??;
    let listener = TcpListener::bind(args.listen).await;
    let listener = listener.map_err(|error| {
        Problem::new(format!("cannot listen on {}", args.listen))
            .because(error)
            .hint("--listen picks another address")
    })?;
    let address = listener.local_addr()?;
    if output.json {
        output.line(&json!({ "listening": address.to_string() }))?;
    } else {
        output.line(&format_args!("authority listening on {address}"))?;
    }
    let mut connections = JoinSet::new();
    tokio::select! {
        () = accept(&listener, &authority, &mut connections) => {}
        () = signals.next() => {}
    }
    drop(listener);
    // Each ends within its time limit.
    tokio::select! {
        () = async { while connections.join_next().await.is_some() {} } => {}
        () = signals.next() => {}
    }
    Ok(())
}

async fn accept(listener: &TcpListener, authority: &Arc<Authority>, connections: &mut JoinSet<()>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, from)) => {
                let authority = authority.clone();
                connections.spawn(async move {
                    let _permit = permit;
                    authority.connection(stream, from).await;
                });
            }
            Err(error) => {
                authority.output.note(format_args!("accepting a connection failed: {error}"));
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

impl Authority {
    /// Serves one request.
    async fn connection(self: Arc<Self>, stream: TcpStream, from: SocketAddr) {
        let output = self.output;
        let served = timeout(CONNECTION_TIME_MAX, self.exchange(stream));
        match served.await.unwrap_or_else(|_| Err(anyhow!("it took too long"))) {
            Ok(what) => output.note(format_args!("{}: {what}", from.ip())),
            Err(error) => output.note(format_args!("{}: the connection failed: {error:#}", from.ip())),
        }
    }

    /// Reads a request and sends the answer. Returns a line for the output of this command.
    async fn exchange(self: Arc<Self>, stream: TcpStream) -> Result<String> {
        let authority = self.clone();
        let config = spawn_blocking(move || authority.config()).await??;
        let mut stream = match TlsAcceptor::from(config).accept(stream).into_fallible().await {
            Ok(stream) => stream,
            Err((error, mut stream)) => {
                stream.shutdown().await?;
                // A close with unread bytes would discard the alert, by which the node learns the
                // reason.
                tokio::io::copy(&mut stream.take(REQUEST_BYTES_MAX), &mut tokio::io::sink()).await?;
                return Err(error.into());
            }
        };
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).cloned();
        let request = receive(&mut stream, REQUEST_BYTES_MAX).await?;
        let done = spawn_blocking(move || self.answer(request, shown.as_ref())).await?;
        let (answer, what) = done.unwrap_or_else(|error| {
            let what = format!("refused: {error:#}");
            (refusal(&error), what)
        });
        send(&mut stream, &answer).await?;
        Ok(what)
    }

    /// Settings of a connection, from the present files. Blocks.
    fn config(&self) -> Result<Arc<ServerConfig>> {
        let store = &self.store;
        let ca = CertificateDer::from_pem_file(store.ca())
            .with_context(|| format!("cannot read {}", store.ca().display()))?;
        let crl = CertificateRevocationListDer::from_pem_file(store.crl())
            .with_context(|| format!("cannot read {}", store.crl().display()))?;
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone())?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .with_crls([crl])
            .only_check_end_entity_revocation()
            .allow_unauthenticated()
            .build()?;
        let (certificate, key) = store.server_certificate(&self.hosts)?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate, ca], key)?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        // A resumed session would skip the check of the certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// Makes the answer to a request. `shown` is the certificate of the node in the TLS handshake.
    /// Also returns a line for the output of this command. Blocks.
    fn answer(
        &self,
        request: EnrolmentRequest,
        shown: Option<&CertificateDer<'_>>,
    ) -> Result<(EnrolmentAnswer, String)> {
        let store = &self.store;
        let locked = store.lock()?;
        let (certificate, what) = match request {
            EnrolmentRequest::Join { token, name, hosts, public_key } => {
                let tokens = Tokens::new(store);
                let record = tokens.check(&locked, &token, &name)?;
                if hosts.is_empty() {
                    return Err(Problem::new("the request names no host of the node").into());
                }
                let subject = Subject { name: &name, hosts: &hosts, days: self.days };
                let certificate = locked.enrol(subject, &public_key)?;
                tokens.used(&locked, record)?;
                (Some(certificate), format!("issued a certificate to {name} ({})", hosts.join(", ")))
            }
            EnrolmentRequest::Renew { public_key } => {
                let shown = shown.ok_or_else(|| Problem::new("the node has shown no certificate"))?;
                let name = store.node_of(shown)?.ok_or_else(|| {
                    Problem::new("the node's certificate is not its last one")
                        .hint("join again with a new token")
                })?;
                let renewed = public_key.map(|key| locked.renew(&name, self.days, &key)).transpose()?;
                let what = match renewed {
                    Some(_) => format!("renewed the certificate of {name}"),
                    None => format!("sent the revocation list to {name}"),
                };
                (renewed, what)
            }
        };
        let answer =
            EnrolmentAnswer::Issued { ca: read(&store.ca())?, crl: read(&store.crl())?, certificate };
        Ok((answer, what))
    }
}

/// The refusal that a node receives for an error. Causes such as file names stay on this machine, in
/// the output of this command.
fn refusal(error: &anyhow::Error) -> EnrolmentAnswer {
    match error.downcast_ref::<Problem>() {
        Some(problem) => {
            EnrolmentAnswer::Refused { error: problem.to_string(), hint: problem.advice().map(str::to_owned) }
        }
        None => EnrolmentAnswer::Refused {
            error: "the authority failed".to_owned(),
            hint: Some("the output of `weir cluster ca serve` says why".to_owned()),
        },
    }
}
