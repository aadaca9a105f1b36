//! Outbound HTTP requests of guests, to the hosts that the manifest names and the node permits.

use super::output::CurrentSink;
use std::sync::Arc;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};
use weir_call::headers::TRACEPARENT;
use weir_outbound::{SendError, TenantConnector};
use weir_telemetry::{AttributeValue, Span, SpanKind, Trace};
use weir_types::FunctionManifest;

type Sent = wasmtime_wasi_http::Result<(http::Response<WasiBody>, Io)>;
type Io = Box<dyn Future<Output = Result<(), Error>> + Send>;

/// Sends the requests of one function, and logs those that are refused.
pub(super) struct Outbound {
    manifest: Arc<FunctionManifest>,
    connector: TenantConnector,
    sink: CurrentSink,
    trace: Trace,
}

impl Outbound {
    pub(super) fn new(
        manifest: Arc<FunctionManifest>,
        connector: TenantConnector,
        sink: CurrentSink,
    ) -> Self {
        Self { manifest, connector, sink, trace: Trace::none() }
    }

    /// Sets the trace of the current invocation.
    pub(super) fn set_trace(&mut self, trace: Trace) {
        self.trace = trace;
    }
}

impl WasiHttpHooks for Outbound {
    /// Short responses are buffered in full, so that a guest can end after its last write.
    fn p2_outgoing_body_buffer_chunks(&mut self) -> usize {
        4
    }

    fn send_request(
        &mut self,
        mut request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Io,
    ) -> Box<dyn Future<Output = Sent> + Send> {
        let manifest = self.manifest.clone();
        let connector = self.connector.clone();
        let sink = self.sink.clone();
        let mut span = start_span(&self.trace, &request);
        // A guest that sends its own span continues the trace itself.
        if !request.headers().contains_key(TRACEPARENT) {
            span.inject(request.headers_mut());
        }
        Box::new(async move {
            let sent = connector.send(&manifest.outbound_hosts, request, options.unwrap_or_default()).await;
            let sent = sent.map_err(|error| {
                match &error {
                    SendError::Refused(refusal) => {
                        span.failed_as(refusal.reason.as_str());
                        sink.refused(&format!("HTTP request to {refusal}"));
                    }
                    SendError::Failed(_) => span.failed_as("connection"),
                }
                Error::from(error)
            })?;
            let status = sent.response.status();
            span.set("http.response.status_code", || AttributeValue::Int(status.as_u16().into()));
            Ok((sent.response, Box::new(sent.connection) as Io))
        })
    }
}

/// The method for a span. A guest may invent methods of any length.
fn known_method(method: &http::Method) -> &str {
    use http::Method;
    const KNOWN: [Method; 9] = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::CONNECT,
        Method::OPTIONS,
        Method::TRACE,
        Method::PATCH,
    ];
    if KNOWN.contains(method) { method.as_str() } else { "_OTHER" }
}

/// Starts the span of a request (OpenTelemetry's semantic conventions for HTTP clients).
fn start_span(trace: &Trace, request: &http::Request<WasiBody>) -> Span {
    let method = || known_method(request.method()).to_owned();
    let mut span = trace.child(SpanKind::Client, || method().into());
    span.set("http.request.method", || AttributeValue::Text(method()));
    if let Some(host) = request.uri().host() {
        span.set("server.address", || AttributeValue::Text(host.to_owned()));
    }
    if let Some(port) = request.uri().port_u16() {
        span.set("server.port", || AttributeValue::Int(port.into()));
    }
    span
}
