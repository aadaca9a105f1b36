//! A dispatcher and nodes in one process, connected over TCP.

use crate::Args;
use crate::cpu::{DISPATCHER, NODES};
use axum::body::Body;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use std::convert::Infallible;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use weir_cluster::{
    ActivityReport, AnnouncedModel, Cluster, ClusterConfig, Participation, PlacementConfig, Placements,
    ResidentLoad, answer_link, join,
};
use weir_datastore::{Datastore, MemoryStore};
use weir_scheduler::{DeviceRule, DeviceSpec, Setup, StorageTier};
use weir_telemetry::Metrics;
use weir_tls::{NodeIdentity, NodeTlsConfig};
use weir_types::{ModelId, Name, Platform, TenantId, Version};

/// Limit of the wait for the nodes to use the dispatcher.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of each model. All models of a node fit.
const MODEL_BYTES: u64 = 1_000;

/// A dispatcher without devices, and the nodes that run models.
pub(crate) struct BenchCluster {
    pub(crate) nodes: Arc<[BenchNode]>,
    /// The models of all nodes.
    pub(crate) models: Arc<[ModelId]>,
    /// Runs the nodes and their calls.
    pub(crate) runtime: Runtime,
    stop: CancellationToken,
    _dispatcher: (BenchNode, Runtime),
    _certificates: TempDir,
}

/// A node, or the dispatcher.
pub(crate) struct BenchNode {
    pub(crate) placements: Arc<Placements>,
    pub(crate) address: String,
    cluster: Arc<Cluster>,
    _participation: Participation,
}

impl BenchCluster {
    pub(crate) fn start(args: &Args) -> Self {
        let certificates = tempfile::tempdir().unwrap();
        let stop = CancellationToken::new();
        let of_dispatcher = runtime(DISPATCHER, args.threads);
        // Its task that expires leases runs beside the dispatcher.
        let datastore: Arc<dyn Datastore> = of_dispatcher.block_on(async { Arc::new(MemoryStore::new()) });
        let runtime = runtime(NODES, args.threads);
        let identity = args.tls.then(|| issue(certificates.path()));
        let start = |models: &[ModelId]| {
            BenchNode::start(datastore.clone(), identity.clone(), models.to_vec(), stop.clone())
        };
        let dispatcher = of_dispatcher.block_on(async {
            let node = start(&[]).await;
            until("election", || node.cluster.is_dispatcher()).await;
            node
        });
        let models: Vec<_> = (0..args.nodes * args.models).map(model).collect();
        let nodes = runtime.block_on(async {
            let mut nodes = Vec::new();
            for models in models.chunks(args.models as usize) {
                nodes.push(start(models).await);
            }
            until("links", || nodes.iter().all(|node| node.placements.asks())).await;
            nodes
        });
        Self {
            nodes: nodes.into(),
            models: models.into(),
            runtime,
            stop,
            _dispatcher: (dispatcher, of_dispatcher),
            _certificates: certificates,
        }
    }
}

impl Drop for BenchCluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl BenchNode {
    async fn start(
        datastore: Arc<dyn Datastore>,
        identity: Option<NodeIdentity>,
        models: Vec<ModelId>,
        stop: CancellationToken,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = ClusterConfig::default();
        let joined = join(&config, identity.clone(), false, &listener, datastore.clone()).await;
        let (membership, auth) = joined.unwrap();
        let address = membership.address.clone();
        let placements = Placements::start(PlacementConfig {
            node: membership.node,
            address: Some(address.clone()),
            devices: models.first().map(|_| device()).into_iter().collect(),
            origin: StorageTier::Disk,
            unasked_max: 0,
            scheduler: Setup::default(),
            record: None,
            metrics: Metrics::new(),
        });
        if !models.is_empty() {
            placements.residents(0, || models.into_iter().map(resident).collect());
        }
        let report = || ActivityReport::new(Vec::new(), &Metrics::new());
        let (cluster, participation) =
            Cluster::start(&config, auth, membership, datastore, &placements, report, &stop);
        tokio::spawn(serve(listener, identity, cluster.clone(), placements.clone(), stop));
        Self { placements, address, cluster, _participation: participation }
    }
}

/// Accepts links until `stop`.
async fn serve(
    listener: TcpListener,
    identity: Option<NodeIdentity>,
    cluster: Arc<Cluster>,
    placements: Arc<Placements>,
    stop: CancellationToken,
) {
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted.unwrap().0,
            () = stop.cancelled() => return,
        };
        stream.set_nodelay(true).unwrap();
        let link = serve_link(stream, identity.clone(), cluster.clone(), placements.clone(), stop.clone());
        tokio::spawn(link);
    }
}

async fn serve_link(
    stream: TcpStream,
    identity: Option<NodeIdentity>,
    cluster: Arc<Cluster>,
    placements: Arc<Placements>,
    stop: CancellationToken,
) {
    let service = service_fn(|request: http::Request<hyper::body::Incoming>| {
        let response = answer_link(&cluster, &placements, request.map(Body::new), &stop);
        async { Ok::<_, Infallible>(response) }
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    // A link that ends ends the benchmark: its calls are never placed.
    let served = match identity {
        None => builder.serve_connection(TokioIo::new(stream), service).await,
        Some(identity) => match TlsAcceptor::from(identity.server()).accept(stream).await {
            Ok(stream) => builder.serve_connection(TokioIo::new(stream), service).await,
            Err(error) => panic!("a TLS handshake failed: {error}"),
        },
    };
    drop(served);
}

fn runtime(name: &str, threads: u32) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(threads as usize).thread_name(name).enable_all();
    builder.build().unwrap()
}

async fn until(what: &str, is_done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_done() {
        assert!(begun.elapsed() < PATIENCE, "no {what} after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// As a node at default settings reports its devices.
fn device() -> DeviceSpec {
    DeviceSpec {
        kind: "cpu".into(),
        platform: Platform::Cpu,
        capacity_bytes: u64::MAX,
        slots: 1,
        invocations_max: 1_000,
        rule: DeviceRule::CommittedWork,
    }
}

fn model(index: u32) -> ModelId {
    let name = Name::new(&format!("model-{index}")).unwrap();
    ModelId { tenant: TenantId::default(), name, version: Version(1) }
}

fn resident(model: ModelId) -> ResidentLoad {
    let resident = AnnouncedModel { device: 0, model, bytes: MODEL_BYTES, parts: Vec::new() };
    ResidentLoad { resident, time: Duration::from_millis(10), from: vec![(StorageTier::Disk, MODEL_BYTES)] }
}

/// Issues a certificate that all nodes share.
fn issue(folder: &Path) -> NodeIdentity {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        Some(path)
    };
    let config = NodeTlsConfig {
        ca: write("ca.pem", authority.pem()),
        certificate: write("certificate.pem", certificate.pem()),
        key: write("key.pem", key.serialize_pem()),
        ..NodeTlsConfig::default()
    };
    NodeIdentity::load(&config).unwrap().unwrap()
}
