//! Nodes of one process that are connected over TCP, with a datastore in memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use axum::body::Body;
use http::{Request, StatusCode};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use weir_call::Objective;
use weir_cluster::{
    ActivityReport, Cluster, ClusterConfig, Participation, Placement, PlacementConfig, Placements,
    answer_link, join,
};
use weir_datastore::{Datastore, MemoryStore};
use weir_link::PROTOCOL;
use weir_scheduler::{Arrival, DeviceRule, DeviceSpec, ModelDemand, Setup, StorageTier};
use weir_telemetry::Metrics;
use weir_types::{FunctionId, InvocationId, ModelId, Name, Platform, Platforms, TenantId, Version};

const PATIENCE: Duration = Duration::from_secs(20);

/// A node whose lease lasts for a minute. Dropping it closes its connections and its port, as the
/// end of its process would, and its lease stays.
struct Peer {
    cluster: Arc<Cluster>,
    placements: Arc<Placements>,
    stop: CancellationToken,
    _participation: Participation,
    _serving: AbortOnDropHandle<()>,
}

impl Peer {
    async fn start(datastore: &Arc<dyn Datastore>, devices: Vec<DeviceSpec>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (membership, auth) = join(&config(), None, false, &listener, datastore.clone()).await.unwrap();
        let placements = Placements::start(PlacementConfig {
            node: membership.node,
            address: Some(membership.address.clone()),
            devices,
            origin: StorageTier::Disk,
            unasked_max: 0,
            scheduler: Setup::default(),
            record: None,
            metrics: Metrics::new(),
        });
        let stop = CancellationToken::new();
        let report = ActivityReport::default;
        let (cluster, participation) =
            Cluster::start(&config(), auth, membership, datastore.clone(), &placements, report, &stop);
        let serving = serve(listener, cluster.clone(), placements.clone(), stop.clone());
        let _serving = AbortOnDropHandle::new(tokio::spawn(serving));
        Self { cluster, placements, stop, _participation: participation, _serving }
    }

    async fn is_elected(&self) {
        until("election", || self.cluster.is_dispatcher()).await;
    }

    /// Places a call on the device of this node.
    async fn place_here(&self, invocation: u64) {
        let arrival = arrival(invocation);
        let objective = Objective::default();
        let placing = self.placements.place(arrival, &objective, Instant::now());
        let (placement, guard) = timeout(PATIENCE, placing).await.expect("not placed").unwrap();
        assert!(matches!(placement, Placement::Local(local) if local.device == Some(0)));
        guard.ended(true);
    }
}

async fn until(what: &str, is_done: impl Fn() -> bool) {
    let done = async {
        while !is_done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, done).await.unwrap_or_else(|_| panic!("no {what}"));
}

/// Serves links until dropped.
async fn serve(
    listener: TcpListener,
    cluster: Arc<Cluster>,
    placements: Arc<Placements>,
    stop: CancellationToken,
) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let cluster = cluster.clone();
        let placements = placements.clone();
        let stop = stop.clone();
        connections.spawn(async move {
            let service = service_fn(|request: Request<hyper::body::Incoming>| {
                let response = answer_link(&cluster, &placements, request.map(Body::new), &stop);
                async { Ok::<_, Infallible>(response) }
            });
            let served = auto::Builder::new(TokioExecutor::new());
            let _ = served.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn config() -> ClusterConfig {
    ClusterConfig { lease_ms: 60_000, ..ClusterConfig::default() }
}

fn device() -> DeviceSpec {
    DeviceSpec {
        kind: "cpu".into(),
        platform: Platform::Cpu,
        capacity_bytes: 1_000,
        slots: 1,
        invocations_max: 1_000,
        rule: DeviceRule::CommittedWork,
    }
}

fn arrival(invocation: u64) -> Arrival {
    let tenant = TenantId::default();
    let name = Name::new("m").unwrap();
    let version = Version(1);
    let model = ModelId { tenant: tenant.clone(), name: name.clone(), version };
    let demand =
        ModelDemand { model, bytes: 100, load_time_ns: None, runs_on: Platforms::ALL, parts: Vec::new() };
    Arrival {
        invocation: InvocationId(invocation),
        function: FunctionId { tenant, name, version },
        models: vec![demand],
        deadline_at_ns: u64::MAX,
        priority: 0,
        batch: 1,
        batch_items_max: 1,
        is_splittable: false,
        steps: Vec::new(),
        run_time_ns: None,
        run_times_ns: Vec::new(),
        slo: None,
        inputs: Vec::new(),
    }
}

#[tokio::test]
async fn calls_are_placed_over_a_link_and_survive_its_end() {
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let dispatcher = Peer::start(&datastore, Vec::new()).await;
    dispatcher.is_elected().await;
    let node = Peer::start(&datastore, vec![device()]).await;
    until("link", || node.placements.asks()).await;
    for invocation in 1..100 {
        node.place_here(invocation).await;
    }
    assert_eq!(dispatcher.placements.nodes(), [node.cluster.node()]);
    let record = node.placements.explanation(&TenantId::default(), InvocationId(99)).unwrap();
    assert_eq!(record.why.estimate.missing_bytes, 100, "the reasons come with the placement");
    // A process that has ended refuses connections, so the node need not wait for the lease, which
    // does not end for a minute.
    drop(dispatcher);
    for invocation in 100..200 {
        node.place_here(invocation).await;
    }
    node.is_elected().await;
    // The new dispatcher does not wait for calls that the ended one would announce.
    let begun = Instant::now();
    node.place_here(200).await;
    assert!(begun.elapsed() < Duration::from_millis(900), "after {:?}", begun.elapsed());
}

#[tokio::test]
async fn link_of_another_protocol_is_refused_with_both_versions() {
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let dispatcher = Peer::start(&datastore, Vec::new()).await;
    dispatcher.is_elected().await;
    let answer = async |protocol: Option<u32>| {
        let mut request = Request::new(Body::empty());
        if let Some(protocol) = protocol {
            request.headers_mut().insert("weir-protocol", protocol.into());
        }
        let response = answer_link(&dispatcher.cluster, &dispatcher.placements, request, &dispatcher.stop);
        let status = response.status();
        let text = match status {
            StatusCode::OK => axum::body::Bytes::new(),
            _ => axum::body::to_bytes(response.into_body(), 1_000).await.unwrap(),
        };
        (status, String::from_utf8(text.to_vec()).unwrap())
    };
    assert_eq!(answer(Some(PROTOCOL)).await.0, StatusCode::OK);
    let next = PROTOCOL + 1;
    for (other, named) in [(Some(next), next.to_string()), (None, "an earlier one".to_owned())] {
        let (status, text) = answer(other).await;
        assert_eq!(status, StatusCode::CONFLICT);
        let named = format!("the other node {named}");
        assert!(text.contains(&format!("protocol {PROTOCOL}")) && text.contains(&named), "{text}");
    }
}
