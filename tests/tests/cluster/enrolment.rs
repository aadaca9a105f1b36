//! Nodes get certificates with a join token, and renew them.

use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use weir_tests::{Etcd, S3, TestNode, eventually, signal};

/// The program in a folder, where it finds the default folders of the authority and of a node.
fn weir(folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new(TestNode::builder().binary());
    command.args(arguments.split(' ')).current_dir(folder).env_remove("WEIR_JOIN_TOKEN");
    command
}

fn run(folder: &Path, arguments: &str) -> Output {
    weir(folder, arguments).output().unwrap()
}

fn done(folder: &Path, arguments: &str) -> String {
    let output = run(folder, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "weir {arguments}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail. Returns its error message.
fn refused(folder: &Path, arguments: &str) -> String {
    let output = run(folder, arguments);
    assert!(!output.status.success(), "weir {arguments} succeeds");
    String::from_utf8(output.stderr).unwrap()
}

/// `weir cluster ca serve`, ended on drop.
struct AuthorityServer {
    child: Child,
    address: String,
}

impl AuthorityServer {
    fn start(folder: &Path) -> Self {
        let mut command = weir(folder, "--json cluster ca serve --listen 127.0.0.1:0");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let listening: Value = serde_json::from_str(&line).unwrap();
        Self { child, address: listening["listening"].as_str().unwrap().to_owned() }
    }
}

impl Drop for AuthorityServer {
    fn drop(&mut self) {
        signal(self.child.id(), "TERM");
        let _ = self.child.wait();
    }
}

fn join(folder: &Path, authority: &str, name: &str, token: &str) -> String {
    let token = token.trim();
    done(folder, &format!("cluster join {authority} {name} --host 127.0.0.1 --folder {name} --token {token}"))
}

#[tokio::test]
async fn nodes_with_a_join_token_become_a_cluster() {
    if !Etcd::is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, "cluster ca create");
    let authority = AuthorityServer::start(folder);
    let token = done(folder, "cluster ca token create --uses 2");
    let mut etcd = Etcd::start();
    etcd.listening().await;
    let s3 = S3::start().await;
    let mut nodes = Vec::new();
    for name in ["one", "two"] {
        join(folder, &authority.address, name, &token);
        nodes.push(renewing_node(&folder.join(name), &authority.address, &etcd, &s3).await);
    }
    eventually("a link between the nodes", async || {
        let mut linked = 0;
        for node in &nodes {
            linked += node.status().await.cluster?.linked.len();
        }
        (linked == 1).then_some(())
    })
    .await;
}

/// A node of a folder that `weir cluster join` made, with settings that renew the files.
async fn renewing_node(folder: &Path, authority: &str, etcd: &Etcd, s3: &S3) -> TestNode {
    let mut node = TestNode::builder().argument("--datastore").argument(etcd.url());
    node = node.argument("--blobs").argument(s3.url());
    for (key, file) in [("ca", "ca.pem"), ("certificate", "cert.pem"), ("key", "key.pem"), ("crl", "crl.pem")]
    {
        node = node.set(&format!("cluster.tls.{key}"), folder.join(file).display());
    }
    node = node.set("cluster.tls.authority", authority).set("cluster.tls.renew_ms", 100);
    for (name, value) in s3.environment() {
        node = node.env(name, value);
    }
    node.start().await
}

#[tokio::test]
async fn running_node_learns_of_revocations_from_the_authority() {
    if !Etcd::is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, "cluster ca create");
    let authority = AuthorityServer::start(folder);
    let address = &authority.address;
    let token = done(folder, "cluster ca token create --uses 2");
    join(folder, address, "one", &token);
    join(folder, address, "two", &token);
    let mut etcd = Etcd::start();
    etcd.listening().await;
    let s3 = S3::start().await;
    let _node = renewing_node(&folder.join("one"), address, &etcd, &s3).await;
    let crl = || std::fs::read_to_string(folder.join("one/crl.pem")).unwrap();
    let before = crl();
    done(folder, "cluster ca revoke two");
    eventually("the new revocation list", async || (crl() != before).then_some(())).await;
}

#[test]
fn tokens_and_names_are_used_once() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, "cluster ca create");
    let authority = AuthorityServer::start(folder);
    let address = &authority.address;
    let token = done(folder, "cluster ca token create --name one");
    let token = token.trim();
    let attempt = |name: &str, token: &str| {
        format!("cluster join {address} {name} --host 127.0.0.1 --folder {name} --token {token}")
    };
    assert!(refused(folder, &attempt("two", token)).contains("for the node one"));
    join(folder, address, "one", token);
    assert!(
        refused(folder, &attempt("one", token)).contains("weir cluster renew"),
        "a second join would replace the key of the node"
    );
    std::fs::rename(folder.join("one"), folder.join("moved")).unwrap();
    assert!(refused(folder, &attempt("one", token)).contains("used up"));
    let token = done(folder, "cluster ca token create");
    let token = token.trim();
    assert!(refused(folder, &attempt("one", token)).contains("weir cluster ca revoke one"));
    assert!(!folder.join("one").exists(), "files were written without a certificate");
    done(folder, "cluster ca revoke one");
    join(folder, address, "one", token);
    assert!(done(folder, "cluster ca token list").contains("no join tokens"));
}

#[test]
fn joining_nodes_talk_to_the_authority_of_their_token_only() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, "cluster ca create");
    done(folder, "cluster ca create --folder other");
    let authority = AuthorityServer::start(folder);
    let token = done(folder, "cluster ca token create --folder other");
    let arguments =
        format!("cluster join {} one --host 127.0.0.1 --token {}", authority.address, token.trim());
    let error = refused(folder, &arguments);
    assert!(error.contains("is not the authority of the token"), "{error}");
    assert!(!folder.join("weir-node").exists());
}

#[test]
fn nodes_renew_until_they_are_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, "cluster ca create");
    let authority = AuthorityServer::start(folder);
    let address = &authority.address;
    let token = done(folder, "cluster ca token create --uses 2");
    join(folder, address, "one", &token);
    join(folder, address, "two", &token);
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
    let certificate = read("one/cert.pem");
    let crl = read("one/crl.pem");
    done(folder, "cluster ca revoke two");
    let renew = format!("cluster renew {address} --folder");
    done(folder, &format!("{renew} one"));
    assert_eq!(read("one/cert.pem"), certificate, "a certificate that is valid for a year was replaced");
    assert_ne!(read("one/crl.pem"), crl, "the revocation list lacks node two");
    for _ in 0..2 {
        done(folder, &format!("{renew} one --within-days 400"));
    }
    assert_ne!(read("one/cert.pem"), certificate);
    let error = refused(folder, &format!("{renew} two"));
    assert!(error.contains("was revoked"), "{error}");
    done(folder, "cluster ca revoke one");
    assert!(refused(folder, &format!("{renew} one")).contains("was revoked"));
}
