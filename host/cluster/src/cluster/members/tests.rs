//! Membership on a datastore in memory.

use super::*;
use weir_datastore::MemoryStore;

const LEASE: Duration = Duration::from_secs(30);

/// After a restored etcd, the number of the next node may be one that is in use.
#[tokio::test]
async fn numbers_are_larger_than_those_that_the_process_knows() {
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let secret = ContentHash::from_content(b"a secret");
    let join = async |known_nodes_max: u32| {
        let address = "one:1".to_owned();
        Membership::join(datastore.clone(), address, LEASE, secret, known_nodes_max).await.unwrap().node.0
    };
    assert_eq!(join(0).await, 1);
    assert_eq!(join(7).await, 8);
    assert_eq!(join(3).await, 9);
}

#[tokio::test]
async fn join_requires_same_protocol_and_secret() {
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let secret = ContentHash::from_content(b"a secret");
    let join = |address: &str| Membership::join(datastore.clone(), address.to_owned(), LEASE, secret, 0);
    let first = join("one:1").await.unwrap();
    let second = join("two:2").await.unwrap();
    assert!(second.seen.0.nodes.values().all(|member| member.version == env!("CARGO_PKG_VERSION")));

    // An unknown field is accepted; another protocol is not.
    let put = async |protocol: u32| {
        let member =
            serde_json::json!({"address": "later:1", "version": "9.0.0", "protocol": protocol, "more": 1});
        let key = first.keys.node(first.node).unwrap();
        datastore.commit(Transaction::new().put(key, encode(&member))).await.unwrap();
    };
    put(PROTOCOL).await;
    join("three:3").await.unwrap();
    put(PROTOCOL + 1).await;
    let why = join("four:4").await.err().unwrap().to_string();
    assert!(why.contains("later:1") && why.contains("9.0.0") && why.contains("Stop all nodes"), "{why}");
    let (view, _) = read(&*datastore, &first.keys, &Reports::default()).await.unwrap();
    assert_eq!(view.nodes.len(), 3, "it has left nothing: {view:?}");
    put(PROTOCOL).await;
    let other = ContentHash::from_content(b"another");
    let why = Membership::join(datastore.clone(), "five:5".to_owned(), LEASE, other, 0).await;
    let why = why.err().unwrap().to_string();
    assert!(why.contains("has another secret") && why.contains("--secret-file"), "{why}");
    let (view, _) = read(&*datastore, &first.keys, &Reports::default()).await.unwrap();
    assert_eq!(view.nodes.len(), 3, "it has left nothing: {view:?}");
}

/// A member that has just joined.
async fn member(datastore: &Arc<dyn Datastore>, address: &str) -> Membership {
    let secret = ContentHash::from_content(b"a secret");
    Membership::join(datastore.clone(), address.to_owned(), LEASE, secret, 0).await.unwrap()
}

async fn dispatcher(membership: &Membership) -> Dispatcher {
    let view = read(&*membership.datastore, &membership.keys, &Reports::default()).await.unwrap().0;
    view.dispatcher.unwrap()
}

#[tokio::test]
async fn lost_dispatcher_is_replaced_at_most_once_a_minute() {
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let mut first = member(&datastore, "one:1").await;
    let mut second = member(&datastore, "two:2").await;
    first.keep_once(None, None).await.unwrap();
    let elected = dispatcher(&first).await;
    assert_eq!(elected.node, first.node);
    // Neither a dispatcher that is reached nor the loss of an earlier one is a reason.
    second.keep_once(Some(elected), None).await.unwrap();
    let earlier = Dispatcher { node: first.node, elected_at: Revision(0) };
    second.keep_once(Some(elected), Some(earlier)).await.unwrap();
    assert_eq!(dispatcher(&first).await, elected);
    second.keep_once(Some(elected), Some(elected)).await.unwrap();
    let replacing = dispatcher(&first).await;
    assert_eq!(replacing.node, second.node);
    assert_ne!(replacing.elected_at, elected.elected_at);
    // A node that has not seen the election yet.
    let mut third = member(&datastore, "three:3").await;
    third.keep_once(Some(elected), Some(elected)).await.unwrap();
    assert_eq!(dispatcher(&first).await, replacing);
    // The end of the lost dispatcher's lease does not affect its successor.
    datastore.revoke_lease(first.lease.id).await.unwrap();
    assert_eq!(dispatcher(&second).await, replacing);
    first = member(&datastore, "one:1").await;
    first.keep_once(Some(replacing), Some(replacing)).await.unwrap();
    let again = dispatcher(&first).await;
    assert_eq!(again.node, first.node);
    second.keep_once(Some(again), Some(again)).await.unwrap();
    assert_eq!(dispatcher(&first).await, again, "the second node has just replaced another dispatcher");
}

/// Only members announce running calls, and a replaced dispatcher is still a member.
#[tokio::test]
async fn followers_know_replaced_dispatchers_until_their_leases_end() {
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let mut first = member(&datastore, "one:1").await;
    let mut second = member(&datastore, "two:2").await;
    let mut third = member(&datastore, "three:3").await;
    let (following, mut view) = follow(datastore.clone(), third.seen.clone(), Reports::default());
    let following = tokio::spawn(following);
    let mut seen = async |dispatcher: &Membership| {
        let is_dispatcher =
            |view: &ClusterView| view.dispatcher.is_some_and(|elected| elected.node == dispatcher.node);
        let view = view.wait_for(is_dispatcher).await.unwrap();
        (view.dispatcher.unwrap(), view.replaced.iter().copied().collect::<Vec<_>>())
    };
    first.keep_once(None, None).await.unwrap();
    let (elected, replaced) = seen(&first).await;
    assert_eq!(replaced, []);
    second.keep_once(Some(elected), Some(elected)).await.unwrap();
    assert_eq!(seen(&second).await.1, [first.node]);
    // The second one leaves in good order.
    datastore.revoke_lease(second.lease.id).await.unwrap();
    third.keep_once(None, None).await.unwrap();
    assert_eq!(seen(&third).await.1, [first.node], "a dispatcher that has left is no member");
    datastore.revoke_lease(first.lease.id).await.unwrap();
    view.wait_for(|view| view.replaced.is_empty()).await.unwrap();
    following.abort();
}
