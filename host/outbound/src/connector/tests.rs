use super::*;
use crate::Resolved;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// Answers lookups from a list, one entry for each lookup, and counts them.
#[derive(Clone)]
struct Answers {
    answers: Arc<Vec<Vec<IpAddr>>>,
    lookups: Arc<AtomicUsize>,
}

impl Answers {
    fn new(answers: &[&[&str]]) -> Self {
        let parsed = answers.iter().map(|answer| answer.iter().map(|ip| ip.parse().unwrap()).collect());
        Self { answers: Arc::new(parsed.collect()), lookups: Arc::default() }
    }

    fn lookups(&self) -> usize {
        self.lookups.load(Ordering::SeqCst)
    }
}

impl Resolve for Answers {
    fn resolve(&self, _: &str) -> Resolved {
        let answer = self.answers.get(self.lookups.fetch_add(1, Ordering::SeqCst)).cloned();
        Box::pin(async move { answer.ok_or_else(|| std::io::Error::other("there is no such name")) })
    }
}

/// A resolver that never answers.
struct Silence;

impl Resolve for Silence {
    fn resolve(&self, _: &str) -> Resolved {
        Box::pin(std::future::pending())
    }
}

fn connector(settings: &str, resolver: impl Resolve) -> Connector {
    let config = toml::from_str(settings).unwrap();
    Connector { resolver: Box::new(resolver), ..Connector::new(config, Vec::new(), false, Metrics::new()) }
}

async fn get(connector: &Connector, url: &str) -> Result<String, SendError> {
    let body = Empty::<Bytes>::new().map_err(|never| match never {}).boxed_unsync();
    let mut request = Request::new(body);
    *request.uri_mut() = url.parse().unwrap();
    let granted = ["*".to_owned()];
    let sent = connector.send(&TenantId::default(), &granted, request, RequestOptions::default()).await?;
    let Exchange { response, connection } = sent;
    let body = tokio::join!(response.into_body().collect(), connection).0;
    Ok(String::from_utf8(body?.to_bytes().to_vec()).unwrap())
}

fn refused(sent: Result<String, SendError>) -> &'static str {
    match sent {
        Err(SendError::Refused(refusal)) => refusal.reason.as_str(),
        other => panic!("not refused: {other:?}"),
    }
}

/// Answers each connection with `text`. Ends with the runtime of the test.
fn serve(listener: TcpListener, text: &'static str) {
    tokio::spawn(async move {
        while let Ok(accepted) = listener.accept().await {
            respond(accepted.0, text).await;
        }
    });
}

async fn respond(mut stream: impl ByteStream, text: &str) {
    let mut head = [0; 1024];
    let _ = stream.read(&mut head).await;
    let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len());
    let _ = stream.write_all(response.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// A name whose first answer is permitted and whose second answer is not: the connection goes to
/// the address that was checked, because there is only one lookup.
#[tokio::test]
async fn rebinding_name_reaches_only_the_checked_address() {
    let permitted = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let port = permitted.local_addr().unwrap().port();
    let forbidden = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    serve(permitted, "permitted");
    serve(forbidden, "forbidden");
    let answers = Answers::new(&[&["127.0.0.2"], &["127.0.0.1"]]);
    let connector = connector("allow = [\"127.0.0.2\"]", answers.clone());
    let url = format!("http://rebinding.example:{port}/");
    assert_eq!(get(&connector, &url).await.unwrap(), "permitted");
    assert_eq!(answers.lookups(), 1);
    assert_eq!(refused(get(&connector, &url).await), "loopback");
    assert_eq!(answers.lookups(), 2);
}

#[tokio::test]
async fn refused_addresses_of_a_name_are_not_tried() {
    let permitted = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let port = permitted.local_addr().unwrap().port();
    let forbidden = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    serve(permitted, "permitted");
    serve(forbidden, "forbidden");
    let answers = Answers::new(&[&["127.0.0.1", "127.0.0.2"]]);
    let connector = connector("allow = [\"127.0.0.2\"]", answers);
    assert_eq!(get(&connector, &format!("http://a.example:{port}/")).await.unwrap(), "permitted");
}

#[tokio::test]
async fn addresses_in_urls_are_checked_without_a_lookup() {
    let answers = Answers::new(&[]);
    let connector = connector("", answers.clone());
    for (url, reason) in [
        ("http://127.0.0.1:1/", "loopback"),
        ("http://[::1]:1/", "loopback"),
        ("http://[::ffff:127.0.0.1]:1/", "loopback"),
        ("http://169.254.169.254/latest/meta-data/", "link-local"),
        ("https://10.0.0.1/", "private"),
        ("http://user@192.168.0.1/", "private"),
        ("http://0.0.0.0:1/", "unspecified"),
    ] {
        assert_eq!(refused(get(&connector, url).await), reason, "{url}");
    }
    assert_eq!(answers.lookups(), 0);
}

/// The system's resolver reads spellings of addresses that are no literals.
#[tokio::test]
async fn other_spellings_of_addresses_are_checked_too() {
    let connector = connector("", SystemResolver);
    for url in ["http://2130706433:1/", "http://0x7f.1:1/", "http://127.1:1/", "http://localhost:1/"] {
        assert_eq!(refused(get(&connector, url).await), "loopback", "{url}");
    }
}

#[tokio::test]
async fn denied_names_are_not_looked_up() {
    let answers = Answers::new(&[]);
    let settings = "deny = [\"*.internal\"]\n[tenant_default]\nonly = [\"api.example\", \"x.internal\"]";
    let connector = connector(settings, answers.clone());
    assert_eq!(refused(get(&connector, "http://x.internal/").await), "deny-rule");
    assert_eq!(refused(get(&connector, "http://X.Internal./").await), "deny-rule");
    assert_eq!(refused(get(&connector, "http://b.example/").await), "tenant-ceiling");
    assert_eq!(answers.lookups(), 0);
}

#[tokio::test]
async fn hosts_without_a_grant_are_refused_and_counted() {
    let connector = connector("", Answers::new(&[]));
    let body = Empty::<Bytes>::new().map_err(|never| match never {}).boxed_unsync();
    let mut request = Request::new(body);
    *request.uri_mut() = "http://b.example/".parse().unwrap();
    let granted = ["a.example".to_owned()];
    let sent = connector.send(&TenantId::default(), &granted, request, RequestOptions::default()).await;
    let error = Error::from(sent.err().unwrap());
    assert!(matches!(error, Error::HttpRequestDenied), "{error}");
    let metrics = connector.metrics.encode(None, weir_telemetry::TextFormat::OpenMetrics).unwrap();
    let line = "weir_outbound_refused_total{tenant=\"default\",reason=\"not-granted\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn slow_lookups_end_and_occupy_their_tenant_only() {
    let connector = connector("tenant_resolves_max = 1", Silence);
    for _ in 0..2 {
        let sent = get(&connector, "http://slow.example/").await;
        assert!(matches!(sent, Err(SendError::Failed(Error::DnsTimeout))), "{sent:?}");
    }
    let permits = connector.resolving.lock().get(&TenantId::default()).unwrap().available_permits();
    assert_eq!(permits, 0, "the lookup has not ended");
    assert_eq!(connector.resolving.lock().len(), 1);
}

#[tokio::test]
async fn stores_are_refused_under_every_name() {
    let config = toml::from_str("allow = [\"0.0.0.0/0\"]").unwrap();
    let store = StoreEndpoint::from_url("http://etcd-0:2379").unwrap();
    let answers = Answers::new(&[&["10.0.0.9"], &["10.0.0.9"]]);
    let connector = Connector {
        resolver: Box::new(answers),
        ..Connector::new(config, vec![store], false, Metrics::new())
    };
    connector.look_up_stores().await;
    for url in ["http://etcd-0:2379/", "http://10.0.0.9:2379/", "http://alias.example:2379/"] {
        assert_eq!(refused(get(&connector, url).await), "node-endpoint", "{url}");
    }
}

/// TLS checks the certificate against the name in the URL, not against the address.
#[tokio::test]
async fn tls_server_name_is_the_host() {
    let certified = rcgen::generate_simple_self_signed(["service.example".to_owned()]).unwrap();
    let certificate = certified.cert.der().clone();
    let key = rustls::pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok(accepted) = listener.accept().await {
            if let Ok(stream) = acceptor.accept(accepted.0).await {
                let name = stream.get_ref().1.server_name().unwrap_or("none").to_owned();
                respond(stream, &name).await;
            }
        }
    });
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let answers = Answers::new(&[&["127.0.0.1"], &["127.0.0.1"]]);
    let connector = Connector { tls: tls(roots), ..connector("allow = [\"127.0.0.1\"]", answers) };
    let url = format!("https://service.example:{port}/");
    assert_eq!(get(&connector, &url).await.unwrap(), "service.example");
    let sent = get(&connector, &format!("https://other.example:{port}/")).await;
    assert!(matches!(sent, Err(SendError::Failed(Error::Tls(_)))), "{sent:?}");
}
