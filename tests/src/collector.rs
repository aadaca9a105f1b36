//! OpenTelemetry collector that keeps the spans and metrics of nodes. The messages and the services
//! are those that the OpenTelemetry project generates from its protocol.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use opentelemetry_proto::tonic::collector::metrics::v1 as metrics;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server as metrics_server;
use opentelemetry_proto::tonic::collector::trace::v1 as trace;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server as trace_server;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use prost::Message as _;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tonic::codegen::Service as _;

/// Collector on loopback, for gRPC and HTTP at one port. It ends on drop.
pub struct Collector {
    address: SocketAddr,
    state: Arc<CollectorState>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct CollectorState {
    spans: Mutex<Vec<CollectedSpan>>,
    metrics: Mutex<BTreeMap<String, Metric>>,
    headers: Mutex<HeaderMap>,
    is_busy: AtomicBool,
}

/// A span that a node sent.
#[derive(Debug, Clone)]
pub struct CollectedSpan {
    /// The span.
    pub span: Span,
    /// Attributes of the span, as text.
    pub attributes: BTreeMap<String, String>,
    /// Attributes of the node, as text.
    pub resource: BTreeMap<String, String>,
}

impl Collector {
    /// Starts a collector at a free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("the loopback interface has free ports");
        let address = listener.local_addr().expect("the listener has an address");
        let state = Arc::<CollectorState>::default();
        let shared = state.clone();
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let state = shared.clone();
                connections.spawn(async move {
                    let service = service_fn(move |request| serve(state.clone(), request));
                    let server = Builder::new(TokioExecutor::new());
                    // Nodes end without closing their connections.
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, state, serving }
    }

    /// URL of the collector.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Refuses requests for a while, as a busy collector does, or accepts them again.
    pub fn set_busy(&self, is_busy: bool) {
        self.state.is_busy.store(is_busy, Ordering::Relaxed);
    }

    /// Spans received so far.
    #[must_use]
    pub fn spans(&self) -> Vec<CollectedSpan> {
        self.state.spans.lock().clone()
    }

    /// Spans of the call with this request id: those of its trace.
    #[must_use]
    pub fn trace_of(&self, request_id: &str) -> Vec<CollectedSpan> {
        let all = self.spans();
        let found = all.iter().find(|span| span.attribute("weir.request_id") == Some(request_id));
        let trace_id = found.map(|span| span.span.trace_id.clone());
        all.into_iter().filter(|span| Some(&span.span.trace_id) == trace_id.as_ref()).collect()
    }

    /// Latest value of a metric.
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<Metric> {
        self.state.metrics.lock().get(name).cloned()
    }

    /// Headers of the last request.
    #[must_use]
    pub fn headers(&self) -> HeaderMap {
        self.state.headers.lock().clone()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl CollectedSpan {
    /// Name of the span.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.span.name
    }

    /// An attribute as text.
    #[must_use]
    pub fn attribute(&self, key: &str) -> Option<&str> {
        self.attributes.get(key).map(String::as_str)
    }

    /// Id of the span, in hexadecimal digits.
    #[must_use]
    pub fn id(&self) -> String {
        hex(&self.span.span_id)
    }

    /// Id of the parent span, in hexadecimal digits; empty for a root.
    #[must_use]
    pub fn parent_id(&self) -> String {
        hex(&self.span.parent_span_id)
    }

    /// Id of the trace, in hexadecimal digits.
    #[must_use]
    pub fn trace_id(&self) -> String {
        hex(&self.span.trace_id)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &Option<AnyValue>| match value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(is_true)) => is_true.to_string(),
        other => panic!("unexpected attribute value {other:?}"),
    };
    attributes.iter().map(|pair| (pair.key.clone(), text(&pair.value))).collect()
}

impl CollectorState {
    fn take_traces(&self, request: trace::ExportTraceServiceRequest) {
        for of_resource in request.resource_spans {
            let resource = resource(of_resource.resource.as_ref());
            for span in of_resource.scope_spans.into_iter().flat_map(|of_scope| of_scope.spans) {
                let attributes = texts(&span.attributes);
                self.spans.lock().push(CollectedSpan { span, attributes, resource: resource.clone() });
            }
        }
    }

    fn take_metrics(&self, request: metrics::ExportMetricsServiceRequest) {
        let scopes = request.resource_metrics.into_iter().flat_map(|of_resource| of_resource.scope_metrics);
        for metric in scopes.flat_map(|of_scope| of_scope.metrics) {
            self.metrics.lock().insert(metric.name.clone(), metric);
        }
    }
}

fn resource(resource: Option<&Resource>) -> BTreeMap<String, String> {
    resource.map(|resource| texts(&resource.attributes)).unwrap_or_default()
}

async fn serve(
    state: Arc<CollectorState>,
    request: Request<Incoming>,
) -> Result<Response<tonic::body::Body>, Infallible> {
    state.headers.lock().clone_from(request.headers());
    let answer = |status, body: Vec<u8>| {
        let body = tonic::body::Body::new(http_body_util::Full::new(Bytes::from(body)));
        let mut response = Response::new(body);
        *response.status_mut() = status;
        Ok(response)
    };
    let is_busy = state.is_busy.load(Ordering::Relaxed);
    match request.uri().path() {
        "/v1/traces" | "/v1/metrics" if is_busy => answer(StatusCode::SERVICE_UNAVAILABLE, Vec::new()),
        "/v1/traces" => {
            let body =
                request.into_body().collect().await.expect("the body of the export can be read").to_bytes();
            state.take_traces(decoded(body));
            answer(StatusCode::OK, trace::ExportTraceServiceResponse::default().encode_to_vec())
        }
        "/v1/metrics" => {
            let body =
                request.into_body().collect().await.expect("the body of the export can be read").to_bytes();
            state.take_metrics(decoded(body));
            answer(StatusCode::OK, metrics::ExportMetricsServiceResponse::default().encode_to_vec())
        }
        path if path.contains("TraceService") => {
            trace_server::TraceServiceServer::new(Handler(state)).call(request).await
        }
        path if path.contains("MetricsService") => {
            metrics_server::MetricsServiceServer::new(Handler(state)).call(request).await
        }
        _ => answer(StatusCode::NOT_FOUND, Vec::new()),
    }
}

fn decoded<M: prost::Message + Default>(body: Bytes) -> M {
    M::decode(body).expect("the node sends valid messages")
}

struct Handler(Arc<CollectorState>);

impl Handler {
    fn check(&self) -> Result<(), tonic::Status> {
        let is_busy = self.0.is_busy.load(Ordering::Relaxed);
        if is_busy { Err(tonic::Status::unavailable("busy")) } else { Ok(()) }
    }
}

#[tonic::async_trait]
impl trace_server::TraceService for Handler {
    async fn export(
        &self,
        request: tonic::Request<trace::ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<trace::ExportTraceServiceResponse>, tonic::Status> {
        self.check()?;
        self.0.take_traces(request.into_inner());
        Ok(tonic::Response::new(trace::ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl metrics_server::MetricsService for Handler {
    async fn export(
        &self,
        request: tonic::Request<metrics::ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<metrics::ExportMetricsServiceResponse>, tonic::Status> {
        self.check()?;
        self.0.take_metrics(request.into_inner());
        Ok(tonic::Response::new(metrics::ExportMetricsServiceResponse::default()))
    }
}
