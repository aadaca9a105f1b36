//! TLS for clients.

use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use weir_tests::{Authority, TestClient, TestNode, eventually, function, raw, signal};

/// Host name of the certificates.
const HOST: &str = "localhost";

/// Opens a TLS connection that offers these protocols.
async fn connect(client: &TestClient, authority: &Authority, alpn: &[&str]) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    let root = rustls::pki_types::CertificateDer::from_pem_file(authority.file()).unwrap();
    roots.add(root).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let stream = TcpStream::connect(client.address()).await.unwrap();
    let name = ServerName::try_from(HOST).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

/// The certificate that the node shows to new connections.
async fn shown(node: &TestNode, authority: &Authority) -> Vec<u8> {
    let stream = connect(node, authority, &[]).await;
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

#[tokio::test]
async fn clients_choose_http1_or_http2_over_tls() {
    let authority = Authority::new("authority");
    let node = TestNode::builder().tls(&authority.issue("node", &[HOST])).start().await;
    let client = node.trusting(&authority, HOST);
    client.deploy("echo", function("echo-http")).await;
    let body = vec![7; 3 << 20];
    assert_eq!(client.post("/fn/echo", body.clone()).await.ok().body, body);
    for (offered, chosen) in
        [(&["h2", "http/1.1"][..], Some("h2")), (&["http/1.1"], Some("http/1.1")), (&[], None)]
    {
        let stream = connect(&node, &authority, offered).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), chosen.map(str::as_bytes), "{offered:?}");
    }
    let mut stream = connect(&node, &authority, &["http/1.1"]).await;
    let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    node.stop().await;
}

#[tokio::test]
async fn certificate_is_replaced_under_load_without_a_failed_request() {
    let authority = Authority::new("authority");
    let issued = authority.issue("node", &[HOST]);
    let node = TestNode::builder().tls(&issued).set("gateway.tls.reload_ms", 50).start().await;
    let first = shown(&node, &authority).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let client = node.trusting(&authority, HOST);
            let is_over = is_over.clone();
            let answered = answered.clone();
            tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(client.get("/healthz").await.status, 200);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut last = first.clone();
    for _ in 0..3 {
        let before = answered.load(Ordering::Relaxed);
        authority.issue("node", &[HOST]);
        last = eventually("the new certificate", async || {
            let now = shown(&node, &authority).await;
            (now != last).then_some(now)
        })
        .await;
        eventually("requests after the change of the certificate", async || {
            (answered.load(Ordering::Relaxed) > before + 8).then_some(())
        })
        .await;
    }
    is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    // Unusable contents leave the certificate in use.
    std::fs::write(&issued.certificate, "no certificate").unwrap();
    eventually("the report", async || node.log().contains("the old certificate stays in use").then_some(()))
        .await;
    assert_eq!(shown(&node, &authority).await, last);
}

#[tokio::test]
async fn hangup_signal_reloads_the_certificate() {
    let authority = Authority::new("authority");
    let node = TestNode::builder()
        .tls(&authority.issue("node", &[HOST]))
        .set("gateway.tls.reload_ms", 3_600_000)
        .start()
        .await;
    let first = shown(&node, &authority).await;
    authority.issue("node", &[HOST]);
    signal(node.pid(), "HUP");
    eventually("the new certificate", async || (shown(&node, &authority).await != first).then_some(())).await;
}

#[tokio::test]
async fn stalled_handshakes_end_and_delay_nobody() {
    let authority = Authority::new("authority");
    let node = TestNode::builder()
        .tls(&authority.issue("node", &[HOST]))
        .set("gateway.tls.handshake_timeout_ms", 1_500)
        .set("gateway.tls.handshakes_max", 64)
        .start()
        .await;
    let client = node.trusting(&authority, HOST);
    let mut stalled = Vec::new();
    for at in 0..12 {
        let mut stream = TcpStream::connect(node.address()).await.unwrap();
        // Silence, and the first bytes of a handshake.
        let sent: &[u8] = if at % 2 == 0 { b"" } else { b"\x16\x03\x01\x02\x00\x01\x00" };
        stream.write_all(sent).await.unwrap();
        stalled.push(stream);
    }
    assert_eq!(client.get("/healthz").await.status, 200);
    for mut stream in stalled {
        let ended = tokio::time::timeout(Duration::from_secs(30), stream.read(&mut [0; 64])).await;
        assert!(matches!(ended, Ok(Ok(0) | Err(_))), "the handshake was not cut: {ended:?}");
    }
    let failed = async || {
        let failed = client.metric("weir_tls_handshakes_failed_total", "reason=\"timeout\"").await;
        (failed == 12.0).then_some(())
    };
    eventually("twelve counted timeouts", failed).await;
}

#[tokio::test]
async fn one_address_has_a_share_of_the_handshakes() {
    let authority = Authority::new("authority");
    let node = TestNode::builder()
        .tls(&authority.issue("node", &[HOST]))
        .set("gateway.tls.handshakes_max", 8)
        .start()
        .await;
    let address: SocketAddr = node.address().parse().unwrap();
    let from_another = async || {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        // Takes a turn and stalls.
        stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00").await.unwrap();
        stream
    };
    // A quarter of eight may stall, and the third one is closed at once.
    let mut streams = [from_another().await, from_another().await, from_another().await];
    let ends = streams.iter_mut().map(|stream| Box::pin(async { stream.read(&mut [0; 1]).await }));
    let ended = tokio::time::timeout(Duration::from_secs(5), futures::future::select_all(ends)).await;
    assert!(matches!(ended, Ok((Ok(0) | Err(_), ..))), "none of three handshakes was refused");
    let client = node.trusting(&authority, HOST);
    assert_eq!(client.metric("weir_tls_handshakes_failed_total", "reason=\"limit\"").await, 1.0);
}

#[tokio::test]
async fn plain_http_gets_an_explanation() {
    let authority = Authority::new("authority");
    let node = TestNode::builder().tls(&authority.issue("node", &[HOST])).start().await;
    let (status, answer) = raw(&node, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(status, 400);
    assert!(answer.contains("https://"), "{answer}");
}

#[tokio::test]
async fn unusable_files_stop_the_start_with_the_reason() {
    let authority = Authority::new("authority");
    let issued = authority.issue("node", &[HOST]);
    let set_mode = |mode| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&issued.key, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode(0o644);
    let log = TestNode::builder().tls(&issued).try_start().await.map(|_| ()).unwrap_err();
    assert!(log.contains("chmod 600"), "{log}");
    set_mode(0o600);
    let alone = TestNode::builder().argument("--tls-cert").argument(&issued.certificate);
    let log = alone.try_start().await.map(|_| ()).unwrap_err();
    assert!(log.contains("--tls-key"), "{log}");
}

/// Runs `weir status` with a CA file; returns what it prints.
async fn status(node: &TestNode, url: &str, ca_file: Option<&Path>) -> Result<String, String> {
    let mut arguments = vec!["status", "--url", url];
    let file = ca_file.map(|path| path.to_str().unwrap());
    if let Some(file) = file {
        arguments.extend(["--ca-file", file]);
    }
    node.weir(&arguments).await
}

#[tokio::test]
async fn command_line_explains_tls_failures() {
    let authority = Authority::new("authority");
    let other = Authority::new("another");
    let node = TestNode::builder().tls(&authority.issue("node", &["127.0.0.1"])).start().await;
    let plain = TestNode::start().await;
    let expired = TestNode::builder().tls(&authority.issue_expired("old", &["127.0.0.1"])).start().await;
    let secure = format!("https://{}", node.address());
    let ca_file = authority.file();
    let ca_file = Some(ca_file.as_path());
    assert!(status(&node, &secure, ca_file).await.is_ok());
    for (url, ca_file, expected) in [
        (secure.clone(), None, "unknown authority"),
        (secure.clone(), None, "--ca-file FILE"),
        (secure.clone(), Some(other.file().as_path()), "unknown authority"),
        (secure.replace("127.0.0.1", "localhost"), ca_file, "other host names"),
        (format!("https://{}", expired.address()), ca_file, "has expired"),
        (format!("https://{}", plain.address()), ca_file, "try --url http://"),
        (format!("http://{}", node.address()), ca_file, "use https:// instead"),
    ] {
        let error = status(&node, &url, ca_file).await.unwrap_err();
        assert!(error.contains(expected), "{url}, {expected:?}: {error}");
    }
    assert!(expired.log().contains("the certificate has expired"), "{}", expired.log());
}
