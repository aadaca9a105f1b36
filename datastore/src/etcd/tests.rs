//! Against a real etcd, one for each test.

use super::*;
use crate::conformance::{key, matches_a_model, put, value};
use crate::{Event, WatchEnd};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use tempfile::TempDir;

/// How long an etcd may take to answer. Generous, for busy machines.
const PATIENCE: Duration = Duration::from_secs(60);

crate::conformance_tests!(in real time: async || {
    let server = Server::start();
    (Arc::new(server.store("weir").await) as Arc<dyn Datastore>, server)
});

#[test]
fn the_store_matches_a_model() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (server, roots) = (Server::start(), AtomicU32::new(0));
    matches_a_model(&runtime, async || {
        let root = format!("root-{}", roots.fetch_add(1, Ordering::Relaxed));
        (Arc::new(server.store(&root).await) as Arc<dyn Datastore>, ())
    });
}

#[tokio::test]
async fn roots_keep_stores_apart() {
    let server = Server::start();
    let (one, other) = (server.store("clusters/a").await, server.store("clusters/a-b").await);
    let mut watch = one.watch(&Prefix::all(), None).await.unwrap();
    put(&other, "k", "theirs").await;
    assert_eq!(value(&one, "k").await, None);
    assert_eq!(one.list(&Prefix::all(), None, 10).await.unwrap().entries, []);
    let own = put(&one, "k", "ours").await;
    assert_eq!(watch.next().await.unwrap().revision, own);
    assert_eq!(value(&other, "k").await.as_deref(), Some("theirs"));
}

/// What goes on without etcd fails soon and says why; when it is back, everything goes on, and watches have missed nothing.
#[tokio::test]
async fn an_outage_ends_without_a_new_start() {
    let mut server = Server::start();
    let store = server.store("weir").await;
    put(&store, "k", "before").await;
    let mut watch = store.watch(&Prefix::all(), None).await.unwrap();
    server.kill();
    let began = Instant::now();
    assert!(matches!(store.get(&key("k")).await, Err(Error::Unavailable { .. })));
    let write = store.commit(Transaction::new().put(key("k"), "lost")).await;
    assert!(matches!(write, Err(Error::Unavailable { .. })));
    assert!(began.elapsed() < 3 * REQUEST_TIME_MAX, "noticed after {:?}", began.elapsed());

    server.run();
    let other = server.store("weir").await;
    let missed = put(&other, "k", "meanwhile").await;
    let change = watch.next().await.unwrap();
    assert_eq!(change.revision, missed);
    assert!(matches!(&change.events[..], [Event::Put(entry)] if entry.value == "meanwhile"));
    assert_eq!(value(&store, "k").await.as_deref(), Some("meanwhile"));
    put(&store, "k", "after").await;
    assert!(watch.next().await.unwrap().revision > missed);
}

#[tokio::test]
async fn a_watch_of_what_etcd_has_compacted_says_so() {
    let server = Server::start();
    let store = server.store("weir").await;
    let first = put(&store, "k", "1").await;
    let last = put(&store, "k", "2").await;
    store.client.kv_client().compact(number_of(last), None).await.unwrap();
    let mut watch = store.watch(&Prefix::all(), Some(Revision(first.0 - 1))).await.unwrap();
    assert_eq!(watch.next().await, Err(WatchEnd::Lagged));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_reported() {
    let port = free_port();
    let address = format!("etcd://127.0.0.1:{port}").parse().unwrap();
    let began = Instant::now();
    assert!(matches!(EtcdStore::connect(&address).await, Err(Error::Unavailable { .. })));
    assert!(began.elapsed() < 3 * REQUEST_TIME_MAX);
}

/// An etcd with nothing in it, which goes with this value.
struct Server {
    port: u16,
    peer_port: u16,
    folder: TempDir,
    process: Option<Child>,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Self { port: free_port(), peer_port: free_port(), folder, process: None };
        server.run();
        server
    }

    /// Run it, on the data it had.
    fn run(&mut self) {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut etcd = Command::new("etcd");
        etcd.args(["--name", "one", "--log-level", "error", "--data-dir"])
            .arg(self.folder.path().join("data"));
        for (flag, port) in [
            ("--listen-client-urls", self.port),
            ("--advertise-client-urls", self.port),
            ("--listen-peer-urls", self.peer_port),
            ("--initial-advertise-peer-urls", self.peer_port),
        ] {
            etcd.args([flag, &url(port)]);
        }
        etcd.args(["--initial-cluster", &format!("one={}", url(self.peer_port))]);
        let started = etcd.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.process = Some(started.expect("etcd cannot be started; `cargo xtask setup` installs it"));
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// A store in it, as soon as it answers.
    async fn store(&self, root: &str) -> EtcdStore {
        let address = format!("etcd://127.0.0.1:{}/{root}", self.port).parse().unwrap();
        let began = Instant::now();
        loop {
            match EtcdStore::connect(&address).await {
                Ok(store) => return store,
                Err(error) => assert!(began.elapsed() < PATIENCE, "etcd does not answer: {error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port that nobody listens on at this moment.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
