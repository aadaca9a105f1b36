//! Tests against a real etcd process, one per test.

use super::*;
use crate::conformance::{key, matches_a_model, put, value};
use crate::{WatchEnd, WatchEvent};
use serde_json::json;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use weir_tests::{Authority, Etcd};

/// Longest wait for an etcd to answer. Generous, for busy machines.
const PATIENCE: Duration = Duration::from_secs(60);

crate::conformance_tests!(in real time, if Etcd::is_installed() => async || {
    let etcd = Etcd::start();
    (Arc::new(connect(&etcd, "weir").await) as Arc<dyn Datastore>, etcd)
});

#[test]
fn random_histories_match_the_model() {
    if !Etcd::is_installed() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let etcd = Etcd::start();
    let roots = AtomicU32::new(0);
    matches_a_model(&runtime, async || {
        let root = format!("root-{}", roots.fetch_add(1, Ordering::Relaxed));
        (Arc::new(connect(&etcd, &root).await) as Arc<dyn Datastore>, ())
    });
}

#[tokio::test]
async fn roots_isolate_stores() {
    let Some((etcd, _)) = start().await else { return };
    let one = connect(&etcd, "clusters/a").await;
    let other = connect(&etcd, "clusters/a-b").await;
    let mut watch = one.watch(&Prefix::all(), None).await.unwrap();
    put(&other, "k", "theirs").await;
    assert_eq!(value(&one, "k").await, None);
    assert_eq!(one.list(&Prefix::all(), None, 10).await.unwrap().entries, []);
    let own = put(&one, "k", "ours").await;
    assert_eq!(watch.next().await.unwrap().revision, own);
    assert_eq!(value(&other, "k").await.as_deref(), Some("theirs"));
}

/// During an outage, requests fail soon with a clear error. After the outage they succeed again,
/// and watches have missed no change.
#[tokio::test]
async fn client_recovers_from_an_outage_without_restart() {
    let Some((mut etcd, store)) = start().await else { return };
    put(&store, "k", "before").await;
    let mut watch = store.watch(&Prefix::all(), None).await.unwrap();
    etcd.kill();
    let began = Instant::now();
    assert!(matches!(store.get(&key("k")).await, Err(Error::Unavailable { .. })));
    let write = store.commit(Transaction::new().put(key("k"), "lost")).await;
    assert!(matches!(write, Err(Error::Unavailable { .. })));
    assert!(began.elapsed() < 3 * client::REQUEST_TIME_MAX, "noticed after {:?}", began.elapsed());

    etcd.run();
    let other = connect(&etcd, "weir").await;
    let missed = put(&other, "k", "meanwhile").await;
    let change = watch.next().await.unwrap();
    assert_eq!(change.revision, missed);
    assert!(matches!(&change.events[..], [WatchEvent::Put(entry)] if entry.value == "meanwhile"));
    assert_eq!(value(&store, "k").await.as_deref(), Some("meanwhile"));
    put(&store, "k", "after").await;
    assert!(watch.next().await.unwrap().revision > missed);
}

#[tokio::test]
async fn store_outlives_the_server_it_uses() {
    if !Etcd::is_installed() {
        return;
    }
    let mut servers = Etcd::start_cluster(3);
    connect(&servers[0], "weir").await;
    let hosts: Vec<String> = servers.iter().map(Etcd::host).collect();
    let address = format!("etcd://{}/weir", hosts.join(",")).parse().unwrap();
    let store = EtcdStore::connect_in_order(&address, &ClientTlsConfig::new()).await.unwrap();
    put(&store, "k", "before").await;
    let mut watch = store.watch(&Prefix::all(), None).await.unwrap();
    servers[0].kill();
    let write = async || store.commit(Transaction::new().put(key("k"), "after")).await;
    let revision = until_ready(write).await.done().unwrap();
    assert_eq!(value(&store, "k").await.as_deref(), Some("after"));
    let change = watch.next().await.unwrap();
    assert!(change.revision <= revision);
    assert!(matches!(&change.events[..], [WatchEvent::Put(entry)] if entry.value == "after"));
}

#[tokio::test]
async fn watch_of_compacted_revisions_reports_lag() {
    let Some((etcd, store)) = start().await else { return };
    let first = put(&store, "k", "1").await;
    let last = put(&store, "k", "2").await;
    etcd.call("kv/compaction", json!({ "revision": last.0 })).await;
    let mut watch = store.watch(&Prefix::all(), Some(Revision(first.0 - 1))).await.unwrap();
    assert_eq!(watch.next().await, Err(WatchEnd::Lagged));
}

#[tokio::test]
async fn discarded_history_is_lost_to_watches_and_nothing_else() {
    let Some((_etcd, store)) = start().await else { return };
    let first = put(&store, "k", "1").await;
    let last = put(&store, "k", "2").await;
    store.discard_history(last).await.unwrap();
    store.discard_history(first).await.expect("it is discarded already");
    assert_eq!(value(&store, "k").await.as_deref(), Some("2"));
    let mut watch = store.watch(&Prefix::all(), Some(Revision(first.0 - 1))).await.unwrap();
    assert_eq!(watch.next().await, Err(WatchEnd::Lagged));
    let usage = store.usage().await.unwrap().unwrap();
    assert!(usage.bytes > 0 && (1..=usage.bytes).contains(&usage.used_bytes), "{usage:?}");
}

/// etcd refuses writes at its quota, until an operator ends the alarm.
#[tokio::test]
async fn full_database_is_reported_as_such() {
    let Some((etcd, store)) = start().await else { return };
    put(&store, "k", "before").await;
    let alarm = |action: &str| json!({ "action": action, "memberID": "1", "alarm": "NOSPACE" });
    etcd.call("maintenance/alarm", alarm("ACTIVATE")).await;
    let refused = store.commit(Transaction::new().put(key("k"), "after")).await;
    assert!(matches!(refused, Err(Error::QuotaExceeded { .. })), "{refused:?}");
    let refused = refused.unwrap_err();
    assert!(refused.is_full() && !refused.is_temporary() && refused.to_string().contains("etcdctl defrag"));
    assert_eq!(value(&store, "k").await.as_deref(), Some("before"), "reads go on");
    etcd.call("maintenance/alarm", alarm("DEACTIVATE")).await;
    put(&store, "k", "after").await;
}

/// After an operator has restored a copy, every client that worked on the lost data notices, also if
/// only some of them see the revision go back.
#[tokio::test]
async fn restored_copy_is_noticed_by_every_client() {
    let Some((mut etcd, first)) = start().await else { return };
    put(&first, "k", "kept").await;
    let copy = etcd.save();
    let second = connect(&etcd, "weir").await;
    put(&second, "k", "lost").await;
    let mut watch = until_ready(async || first.watch(&Prefix::all(), None).await).await;
    assert_eq!(value(&first, "k").await.as_deref(), Some("lost"));
    etcd.restore(&copy);
    for store in [&first, &second] {
        tokio::time::timeout(PATIENCE, store.until_replaced()).await.expect("the client does not notice");
        let refused = store.get(&key("k")).await;
        assert!(
            matches!(&refused, Err(error @ Error::Replaced { .. }) if error.is_temporary()),
            "{refused:?}"
        );
        assert!(matches!(store.health().failure, Some(Error::Replaced { .. })));
    }
    assert_eq!(watch.next().await, Err(WatchEnd::Closed));
    let new = connect(&etcd, "weir").await;
    assert_eq!(value(&new, "k").await.as_deref(), Some("kept"));
    put(&new, "k", "new").await;
    assert!(new.health().failure.is_none());
}

#[tokio::test]
async fn wiped_data_is_noticed() {
    let Some((mut etcd, store)) = start().await else { return };
    let lease = store.grant_lease(Duration::from_secs(60)).await.unwrap();
    etcd.wipe();
    // Far beyond the old revision before the client hears from etcd again.
    let other = connect(&etcd, "other").await;
    for _ in 0..20 {
        put(&other, "k", "new").await;
    }
    let kept = until_known(async || store.keep_alive(lease.id).await).await;
    assert!(matches!(kept, Err(Error::Replaced { .. })), "the lease is not just over: {kept:?}");
    tokio::time::timeout(PATIENCE, store.until_replaced()).await.expect("the client does not notice");
}

/// An outage, a restart and a compaction of etcd replace nothing.
#[tokio::test]
async fn restarted_server_has_the_same_data() {
    let Some((mut etcd, store)) = start().await else { return };
    let last = put(&store, "k", "1").await;
    etcd.kill();
    etcd.run();
    until_ready(async || store.get(&key("k")).await).await;
    store.discard_history(last).await.unwrap();
    put(&store, "k", "2").await;
    store.continuity.verify().await.unwrap();
    assert!(store.health().failure.is_none());
}

#[tokio::test]
async fn session_outlives_its_tokens() {
    let Some((etcd, _)) = start().await else { return };
    let user = json!({ "name": "root", "password": "secret" });
    etcd.call("auth/user/add", user.clone()).await;
    etcd.call("auth/user/grant", json!({ "user": "root", "role": "root" })).await;
    etcd.call("auth/enable", json!({})).await;

    let connect_as = async |user: &str| {
        let address = format!("etcd://{user}{}", etcd.host()).parse().unwrap();
        EtcdStore::connect(&address, &EtcdTls::default()).await
    };
    for stranger in ["", "root:guess@", "nobody:secret@"] {
        let refused = connect_as(stranger).await;
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{stranger:?} is let in");
    }
    let store = connect_as("root:secret@").await.unwrap();
    let first = put(&store, "k", "1").await;
    // etcd invalidates a user's tokens when the password is set, even to the same value.
    etcd.call_as(&user, "auth/user/changepw", user.clone()).await;
    let second = put(&store, "k", "2").await;
    etcd.call_as(&user, "auth/user/changepw", user.clone()).await;
    let mut watch = store.watch(&Prefix::all(), Some(first)).await.unwrap();
    assert_eq!(watch.next().await.unwrap().revision, second);
}

#[tokio::test]
async fn tls_servers_are_verified() {
    if !Etcd::is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let certificate = folder.path().join("certificate.pem");
    let key_file = folder.path().join("key.pem");
    std::fs::write(&certificate, pair.cert.pem()).unwrap();
    std::fs::write(&key_file, pair.signing_key.serialize_pem()).unwrap();
    let etcd = Etcd::start_with_tls(&certificate, &key_file);
    let address = etcd.url().parse().unwrap();

    let root = Certificate::from_pem(pair.cert.pem());
    let trusting = ClientTlsConfig::new().ca_certificate(root);
    let store = until_ready(async || EtcdStore::connect_in_order(&address, &trusting).await).await;
    put(&store, "k", "v").await;
    assert_eq!(value(&store, "k").await.as_deref(), Some("v"));
    // The system's certificate store does not contain the test certificate.
    assert!(matches!(
        EtcdStore::connect(&address, &EtcdTls::default()).await,
        Err(Error::Unavailable { .. })
    ));
}

#[tokio::test]
async fn servers_may_demand_a_client_certificate() {
    if !Etcd::is_installed() {
        return;
    }
    let authority = Authority::new("authority of etcd");
    let server = authority.issue("etcd", &["127.0.0.1"]);
    let client = authority.issue("client", &["client"]);
    let etcd = Etcd::start_with_client_certificates(&server.certificate, &server.key, &authority.file());
    let address = etcd.url().parse().unwrap();
    let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap();
    let ca = Some(read(&authority.file()));
    let with = EtcdTls { ca: ca.clone(), identity: Some((read(&client.certificate), read(&client.key))) };
    let store = until_ready(async || EtcdStore::connect(&address, &with).await).await;
    put(&store, "k", "v").await;
    assert_eq!(value(&store, "k").await.as_deref(), Some("v"));
    let without = EtcdTls { ca, identity: None };
    assert!(matches!(EtcdStore::connect(&address, &without).await, Err(Error::Unavailable { .. })));
}

#[tokio::test]
async fn absent_server_is_reported() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("etcd://127.0.0.1:{port}").parse().unwrap();
    let began = Instant::now();
    assert!(matches!(
        EtcdStore::connect(&address, &EtcdTls::default()).await,
        Err(Error::Unavailable { .. })
    ));
    assert!(began.elapsed() < 3 * client::REQUEST_TIME_MAX);
}

/// Starts an etcd, and connects to a store in it. `None` if etcd is not installed: the test passes
/// without a check, unless `WEIR_REQUIRE_ETCD` is set.
async fn start() -> Option<(Etcd, EtcdStore)> {
    if !Etcd::is_installed() {
        return None;
    }
    let etcd = Etcd::start();
    let store = connect(&etcd, "weir").await;
    Some((etcd, store))
}

/// Connects to a store in `etcd`, once etcd answers.
async fn connect(etcd: &Etcd, root: &str) -> EtcdStore {
    let address = format!("{}/{root}", etcd.url()).parse().unwrap();
    until_ready(async || EtcdStore::connect(&address, &EtcdTls::default()).await).await
}

/// Retries `attempt` until etcd answers.
async fn until_known<T>(attempt: impl AsyncFn() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    loop {
        match attempt().await {
            Err(Error::Unavailable { .. }) if began.elapsed() < PATIENCE => {}
            known => return known,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Retries `attempt` until it succeeds.
async fn until_ready<T>(attempt: impl AsyncFn() -> Result<T>) -> T {
    let began = Instant::now();
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => assert!(began.elapsed() < PATIENCE, "etcd does not answer: {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
