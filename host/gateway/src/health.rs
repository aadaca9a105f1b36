//! Health, status and metrics of the node.

use super::Caller;
use super::error::ApiError;
use super::{scrape, table, v2};
use crate::NodeState;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use http::header::{ALLOW, CONTENT_TYPE, VARY};
use http::{HeaderValue, Method};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use weir_scheduler::{Backlog, DeviceBacklogs};
use weir_telemetry::{BACKLOG_DEVICES_MAX, SchedulerBacklog, TextFormat};
use weir_types::api::{Status, TenantPage};
use weir_types::{ErrorCode, TenantId};

const INDEX: &str = "\
Weir runs WebAssembly functions with shared models.

  PUT    /v1/functions/NAME                   deploy a component: curl -T fn.wasm URL (?canary=10 for 10 % of the calls)
  GET    /v1/functions                        list functions
  GET    /v1/functions/NAME                   show one
  GET    /v1/functions/NAME/versions          its versions (also /versions/N; DELETE removes one)
  POST   /v1/functions/NAME/rollback          go back: {} or {\"version\": N}
  GET    /v1/functions/NAME/canary            its canary, with the calls (POST /promote gives it all calls)
  GET    /v1/functions/NAME/shadow            its shadow, which gets copies of calls, with the comparison
  GET    /v1/functions/NAME/logs              what it wrote: ?lines=N&follow=true
  DELETE /v1/functions/NAME                   remove it
  *      /fn/NAME/PATH                        call it
  PUT    /v1/models/NAME/versions/N           push an ONNX model (or PUT /v1/models/NAME for the next version)
  GET    /v1/models                           list models
  GET    /v1/models/NAME                      show one (also /versions/N; POST /rollback as for functions)
  DELETE /v1/models/NAME                      remove it (also /versions/N)
  POST   /v1/models/NAME/profile              measure it: {} (see docs/guides/capacity.md)
  GET    /v1/models/NAME/capacity             settings that meet a rate and an SLO at the least memory (see docs/guides/capacity.md)
  PUT    /v1/objects/NAME                     keep a tensor under a name: ?datatype=FP32&shape=N,N&ttl_ms=N (see docs/guides/objects.md)
  GET    /v1/objects                          list objects (also /NAME; DELETE removes one)
  PUT    /v1/kernel-graphs/NAME               push a graph of CUDA kernels, in JSON (see docs/reference/kernel-graphs.md)
  GET    /v1/kernel-graphs                    list kernel graphs
  GET    /v1/kernel-graphs/NAME               show one (also /versions/N; POST /rollback as for functions)
  DELETE /v1/kernel-graphs/NAME               remove it (also /versions/N)
  PUT    /v1/workflows/NAME                   deploy a workflow, in TOML or JSON (see docs/reference/workflows.md)
  GET    /v1/workflows                        list workflows
  GET    /v1/workflows/NAME                   show one (also /versions, /versions/N; POST /rollback as for functions)
  DELETE /v1/workflows/NAME                   remove it (also /versions/N)
  POST   /v2/models/NAME/infer                run a model, tensor function or workflow by the Open Inference Protocol (see docs/reference/protocols.md)
  POST   /v1/embeddings                       call the function that the body's `model` names, in OpenAI's shape
  GET    /v1/invocations                      calls sent with `prefer: respond-async`: ?status=dead&limit=N
  GET    /v1/invocations/ID                   one of them: ?wait_ms=N waits for its end (also /events; DELETE cancels or forgets it)
  GET    /v1/invocations/ID/result            its answer
  POST   /v1/invocations/ID/retry             begin a dead one anew (also /cancel)
  GET    /v1/placements/REQUEST_ID            why a call ran where it did: estimates, alternatives and outcome
  GET    /v1/calls                            recent calls of this node: ?kind=workflow&name=N&outcome=failed&limit=N
  GET    /v1/calls/REQUEST_ID                 one of them, as a timeline of its phases and steps
  GET    /v1/events                           deploys, faults, evictions, changes of the cluster: ?kind=fault&name=N&since_ms=T&follow=true
  PUT    /v1/triggers/NAME                    send a request on a schedule (GET /v1/triggers lists them; also /run, /pause, /resume; DELETE removes one)
  PUT    /v1/keys/NAME                        create an API key: {\"scopes\": [\"invoke\"]} (GET /v1/keys lists them; DELETE revokes one)
  PUT    /v1/secrets/NAME                     store a secret of functions (GET /v1/secrets lists them without values)
  POST   /v1/backup                           everything that is stored, as a tar file (see docs/guides/backup.md)
  GET    /v1/tenants                          the use of each quota of your tenant (of all tenants with the operator's token)
  GET    /v1/usage                            what your functions and models used of devices: time, loads, memory
  GET    /v1/status, /healthz, /readyz, /metrics
  GET    /ui                                  the dashboard, for browsers
  GET    /v1/openapi.yaml                     this API as an OpenAPI document
";

/// Routes for monitoring. The gateway answers them before its router, because they need no tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Monitoring {
    Healthz,
    Readyz,
    /// Liveness by the Open Inference Protocol.
    Live,
    /// Readiness by the Open Inference Protocol.
    Ready,
    Metrics,
    /// The use of quotas by tenants.
    Tenants,
}

impl Monitoring {
    pub(super) const ALL: [Self; 6] =
        [Self::Healthz, Self::Readyz, Self::Live, Self::Ready, Self::Metrics, Self::Tenants];

    /// Whether any client may send the request, and any web page read the answer.
    pub(super) fn is_open(self) -> bool {
        !matches!(self, Self::Metrics | Self::Tenants)
    }

    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Healthz => "/healthz",
            Self::Readyz => "/readyz",
            Self::Live => "/v2/health/live",
            Self::Ready => "/v2/health/ready",
            Self::Metrics => "/metrics",
            Self::Tenants => "/v1/tenants",
        }
    }

    pub(super) fn from_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|route| route.path() == path)
    }

    /// Serves a request. Health checks need neither permission nor capacity.
    /// `address` is the other end of the request's connection.
    pub(super) async fn serve(
        self,
        node: &NodeState,
        address: IpAddr,
        mut request: Request,
    ) -> Result<Response, ApiError> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let text = "this route takes only GET and HEAD; see GET /";
            let mut response = ApiError::new(ErrorCode::MethodNotAllowed, text).into_response();
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET,HEAD"));
            return Ok(response);
        }
        match self {
            Self::Healthz => Ok("ok\n".into_response()),
            Self::Readyz => Ok(ready(node)),
            Self::Live => Ok(v2::live()),
            Self::Ready => Ok(v2::ready(node)),
            Self::Metrics => {
                let identity = node.access.identify(address, request.headers_mut(), None).await?;
                if !identity.is_operator() {
                    identity.clone().caller()?.check(&table::REPORT, request.method())?;
                }
                metrics(node, identity.reads_only(), scrape::format(request.headers())).await
            }
            Self::Tenants => {
                let identity = node.access.identify(address, request.headers_mut(), None).await?;
                let tenants = if identity.is_operator() {
                    node.tenants()
                } else {
                    let caller = identity.caller()?;
                    caller.check(&table::REPORT, request.method())?;
                    // What follows waits for nothing, so this request is over before the next one.
                    drop(node.permits.quotas.admit(&caller.tenant, false)?);
                    BTreeSet::from([caller.tenant])
                };
                let tenants = tenants.iter().map(|tenant| node.tenant_usage(tenant)).collect();
                Ok(Json(TenantPage { tenants }).into_response())
            }
        }
    }
}

/// `GET /`.
pub(super) async fn index() -> &'static str {
    INDEX
}

/// `GET /readyz`: whether the node takes new requests and can store data.
fn ready(node: &NodeState) -> Response {
    match node.why_unready() {
        None => "ready\n".into_response(),
        Some(why) => ApiError::new(ErrorCode::Unavailable, why).into_response(),
    }
}

fn state(node: &NodeState) -> &'static str {
    match node.why_unready() {
        None => "ready",
        Some(_) if node.is_ready() => "unready",
        Some(_) => "draining",
    }
}

/// `GET /v1/status`.
pub(super) async fn status(
    State(node): State<Arc<NodeState>>,
    Extension(caller): Extension<Caller>,
) -> Json<Status> {
    let gauge = |gauge: &prometheus_client::metrics::gauge::Gauge| u64::try_from(gauge.get()).unwrap_or(0);
    Json(Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        state: state(&node).to_owned(),
        uptime_ms: u64::try_from(node.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        functions: node.registry.list(&caller.tenant).len() as u64,
        models: node.models.list(&caller.tenant).len() as u64,
        running: gauge(&node.metrics.calls.running),
        queued: gauge(&node.metrics.calls.queued),
        async_queued: gauge(&node.metrics.asynchronous.queued),
        damaged: [
            node.registry.damaged(&caller.tenant),
            node.models.damaged(&caller.tenant),
            node.workflows.damaged(&caller.tenant),
        ]
        .concat(),
        devices: (node.models.devices().reports().into_iter())
            .map(|device| device.status(&caller.tenant))
            .collect(),
        cluster: node
            .cluster
            .as_ref()
            .map(|cluster| cluster.status(&node.dispatch.placements, &caller.tenant)),
    })
}

/// The work of this node's scheduler; none if another node places invocations.
fn scheduler_backlog(node: &NodeState) -> SchedulerBacklog {
    let Backlog { waiting, waiting_ns, committed_ns, slots, .. } = node.dispatch.placements.backlog();
    SchedulerBacklog {
        waiting_s: Duration::from_nanos(waiting_ns).as_secs_f64(),
        committed_s: Duration::from_nanos(committed_ns).as_secs_f64(),
        run_slots: slots,
        waiting_calls: waiting,
        copies_missing: node.dispatch.placements.copies_missing(),
    }
}

/// Sets the metrics of the work of this node's scheduler.
fn meter_backlog(node: &NodeState) {
    let metrics = &node.metrics.placements;
    metrics.set_backlog(scheduler_backlog(node));
    let DeviceBacklogs { devices, others_ns } = node.dispatch.placements.device_backlogs(BACKLOG_DEVICES_MAX);
    let seconds = |ns| Duration::from_nanos(ns).as_secs_f64();
    let devices = devices.into_iter().map(|(device, ns)| ((device.node.0, device.ordinal), seconds(ns)));
    metrics.set_device_backlogs(devices, others_ns.map(seconds));
}

/// `GET /metrics`: the metrics of the node, and of the functions of one tenant or of all tenants.
async fn metrics(node: &NodeState, of: Option<&TenantId>, format: TextFormat) -> Result<Response, ApiError> {
    let gauge = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    node.metrics.process.arena_used_bytes.set(gauge(node.arena.used_bytes()));
    node.metrics.process.arena_pooled_bytes.set(gauge(node.arena.pooled_bytes()));
    for (tenant, bytes) in node.arena.tenants_used_bytes() {
        node.metrics.process.set_tenant_arena_bytes(&tenant, bytes);
    }
    if let Some(health) = node.blobs.health() {
        node.metrics.storage.set(health.free_bytes(), health.failed_writes());
    }
    for device in node.models.devices().reports() {
        node.metrics.devices.set(&device);
    }
    for device in node.models.devices().iter() {
        if let Some(handed_over) = device.cache.backend().handed_over() {
            node.metrics.devices.set_handed_over(&device.name, &handed_over);
        }
        if let Some(executor) = device.cache.backend().executor() {
            node.metrics.devices.set_executor(&device.name, &executor);
        }
        if let Some(pinned) = device.cache.backend().pinned_cache() {
            node.metrics.devices.set_pinned_cache(&device.name, &pinned);
        }
    }
    node.models.devices().meter_memory();
    meter_backlog(node);
    node.metrics.gpus.refresh().await;
    let (answers, bytes) = node.response_cache.size();
    node.metrics.response_cache.answers.set(gauge(answers));
    node.metrics.response_cache.bytes.set(gauge(bytes));
    let text = node.metrics.encode(of, format).map_err(|error| ApiError::internal(&error))?;
    Ok(([(CONTENT_TYPE, scrape::content_type(format)), (VARY, "accept")], text).into_response())
}
