//! Mutual TLS between nodes.

use crate::{INFER, fake};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use weir_tests::{Authority, Etcd, Issued, S3, TestCluster, TestNode, eventually, function};
use weir_types::api::ClusterStatus;

const INPUT: [u8; 4] = 1_f32.to_le_bytes();

async fn status(node: &TestNode) -> ClusterStatus {
    node.status().await.cluster.unwrap()
}

#[tokio::test]
async fn calls_are_forwarded_over_mutual_tls() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().mutual_tls().set("models.backend", "fake").start(2).await;
    cluster.nodes[0].push_model("m", 1, fake(5, 1, 1_000)).await;
    cluster.nodes[0].deploy_with("infer", "models=m", function("infer")).await;
    cluster.all_have_heard_of("m").await;
    cluster.all_know("infer").await;
    for node in &cluster.nodes {
        let answer = node.post(INFER, &INPUT[..]).await;
        assert_eq!((answer.status, &answer.body[..]), (200, &INPUT[..]));
    }
    assert_eq!(cluster.metric("weir_invocations_forwarded_total", "").await, 1.0);
}

/// Opens the link of a node with this certificate, and returns what the node answers.
async fn open_link(node: &TestNode, trusted: &Authority, shown: Option<&Issued>) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusted.file()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let mut config = match shown {
        None => config.with_no_client_auth(),
        Some(issued) => {
            let chain = vec![CertificateDer::from_pem_file(&issued.certificate).unwrap()];
            let key = PrivateKeyDer::from_pem_file(&issued.key).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"weir-node".to_vec()];
    let stream = TcpStream::connect(node.address()).await?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let request = b"GET /cluster/v1/outcomes/1 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn only_certificates_of_the_cluster_open_its_interface() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().mutual_tls().start(1).await;
    let authority = cluster.authority.as_ref().unwrap();
    let other = Authority::new("another authority");
    let node = &cluster.nodes[0];
    let known = open_link(node, authority, Some(&authority.issue("test", &["test"]))).await.unwrap();
    assert!(!known.contains("401"), "{known}");
    let unknown = open_link(node, authority, Some(&other.issue("test", &["test"]))).await;
    assert!(unknown.is_err(), "{unknown:?}");
    let none = open_link(node, authority, None).await;
    assert!(none.is_err(), "{none:?}");
    let impostor = open_link(node, &other, Some(&authority.issue("test", &["test"]))).await;
    assert!(impostor.is_err(), "{impostor:?}");
    // Over the plain port of clients, and with the header of the former secret.
    for header in ["weir-grant", "weir-cluster-secret"] {
        let request = node.request(reqwest::Method::POST, "/cluster/v1/link").header(header, "");
        assert_eq!(request.send().await.unwrap().status(), 401, "{header}");
    }
}

#[tokio::test]
async fn revoked_node_is_cut_off_and_the_others_stay_linked() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().mutual_tls().start(2).await;
    let authority = cluster.authority.as_ref().unwrap();
    let issued = authority.issue("compromised", &["127.0.0.1"]);
    let compromised = cluster.node_with(authority, &issued).start().await;
    let dispatcher = cluster.settle_with(&[&compromised]).await;
    authority.revoke(&[&issued]);
    eventually("the end of the link", async || (status(dispatcher).await.linked.len() == 1).then_some(()))
        .await;
    eventually("the node to place calls itself", async || {
        (!status(&compromised).await.asks_dispatcher).then_some(())
    })
    .await;
    // The other nodes connect again, and the revoked node cannot.
    cluster.settle().await;
    let refused = open_link(&cluster.nodes[0], authority, Some(&issued)).await;
    assert!(refused.is_err(), "{refused:?}");
    authority.revoke(&[]);
    cluster.settle_with(&[&compromised]).await;
}

#[tokio::test]
async fn nodes_without_certificates_do_not_join_nodes_with_them() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().mutual_tls().start(1).await;
    let plain = TestNode::builder()
        .argument("--datastore")
        .argument(cluster.etcd.url())
        .argument("--blobs")
        .argument(cluster.s3.url());
    let plain = cluster.s3.environment().iter().fold(plain, |node, (name, value)| node.env(name, value));
    let log = plain.clone().try_start().await.map(|_| ()).unwrap_err();
    assert!(log.contains("has another secret") && log.contains("node.cluster.tls"), "{log}");
    let authority = cluster.authority.as_ref().unwrap();
    let only_clients = plain.tls(&authority.issue("clients", &["127.0.0.1"]));
    let log = only_clients.try_start().await.map(|_| ()).unwrap_err();
    assert!(log.contains("so other nodes must too"), "{log}");
}

#[tokio::test]
async fn etcd_may_demand_certificates_of_nodes() {
    if !Etcd::is_installed() {
        return;
    }
    let authority = Authority::new("authority of etcd");
    let server = authority.issue("etcd", &["127.0.0.1"]);
    let etcd = Etcd::start_with_client_certificates(&server.certificate, &server.key, &authority.file());
    let s3 = S3::start().await;
    let client = authority.issue("client", &["client"]);
    let node = || {
        let node = TestNode::builder().argument("--datastore").argument(etcd.url());
        let node = node.argument("--blobs").argument(s3.url());
        let node = s3.environment().iter().fold(node, |node, (name, value)| node.env(name, value));
        node.set("cluster.etcd.ca", authority.file().display())
    };
    let with_certificate = || {
        node()
            .set("cluster.etcd.certificate", client.certificate.display())
            .set("cluster.etcd.key", client.key.display())
    };
    let started = eventually("a node that reaches etcd", async || with_certificate().try_start().await.ok());
    let started = started.await;
    started.deploy("hello", function("hello")).await;
    let log = node().try_start().await.map(|_| ()).unwrap_err();
    assert!(log.contains("cannot use the cluster's datastore"), "{log}");
}
