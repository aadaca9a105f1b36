//! Traces of calls: the spans of the requests that clients and other nodes send.

use super::invocations::Later;
use super::request_id::RequestId;
use super::v2::NamedTarget;
use crate::NodeState;
use http::{HeaderMap, Method};
use weir_call::headers::EXPLAIN;
use weir_telemetry::{Attribute, AttributeValue, CallDescription, SpanKind, Trace, TraceParent};
use weir_types::api::InvocationKind;
use weir_types::{Name, TenantId, Version};

/// The way in which a call arrives.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CallRoute<'a> {
    /// A function's own path.
    Function { method: &'a Method, path: &'a str },
    /// An inference over HTTP.
    Infer,
    /// An inference over gRPC.
    Grpc,
    /// The load of a model ahead of its inferences.
    Load,
}

impl CallRoute<'_> {
    /// The name of the call's span, and the attributes that describe the request (OpenTelemetry's
    /// semantic conventions for HTTP and RPC).
    fn describe(self, target: &Name) -> (String, Vec<Attribute>) {
        let text = |text: &'static str| AttributeValue::Static(text);
        let (method, route) = match self {
            Self::Function { method, .. } => (method.as_str(), format!("/fn/{target}")),
            Self::Infer => ("POST", format!("/v2/models/{target}/infer")),
            Self::Load => ("POST", format!("/v2/repository/models/{target}/load")),
            Self::Grpc => {
                let attributes = vec![
                    Attribute { key: "rpc.system", value: text("grpc") },
                    Attribute { key: "rpc.service", value: text("inference.GRPCInferenceService") },
                    Attribute { key: "rpc.method", value: text("ModelInfer") },
                ];
                return ("inference.GRPCInferenceService/ModelInfer".to_owned(), attributes);
            }
        };
        let name = format!("{method} {route}");
        let mut attributes = Vec::with_capacity(12);
        let mut set = |key, value| attributes.push(Attribute { key, value });
        set("http.request.method", AttributeValue::Text(method.to_owned()));
        set("http.route", AttributeValue::Text(route));
        if let Self::Function { path, .. } = self {
            set("url.path", AttributeValue::Text(path.to_owned()));
        }
        (name, attributes)
    }
}

/// Starts the trace of a call of `target`; `is_forwarded` if another node sent it.
pub(crate) fn start(
    node: &NodeState,
    target: &NamedTarget,
    route: CallRoute<'_>,
    headers: &HeaderMap,
    id: &RequestId,
    is_forwarded: bool,
) -> Trace {
    let parent = TraceParent::from_headers(headers);
    let describe = || {
        let name = target.name();
        let described = route.describe(name);
        let mut attributes = described.1;
        let mut set = |key, value| attributes.push(Attribute { key, value });
        let version = AttributeValue::Int(target.version().0.into());
        match target {
            NamedTarget::Function(_) => {
                set("weir.function", AttributeValue::Name(name.clone()));
                set("faas.name", AttributeValue::Name(name.clone()));
                set("faas.version", AttributeValue::Text(target.version().to_string()));
                set("faas.trigger", AttributeValue::Static("http"));
                set("faas.invocation_id", AttributeValue::Shared(id.shared()));
            }
            NamedTarget::Model(_) => set("weir.model", AttributeValue::Name(name.clone())),
            NamedTarget::Workflow(_) => set("weir.workflow", AttributeValue::Name(name.clone())),
        }
        set("weir.version", version);
        set("weir.tenant", AttributeValue::Name(target.tenant().name().clone()));
        set("weir.request_id", AttributeValue::Shared(id.shared()));
        CallDescription {
            name: described.0,
            kind: SpanKind::Server,
            tenant: target.tenant().clone(),
            target: name.clone(),
            request_id: id.shared(),
            attributes,
        }
    };
    if is_forwarded {
        node.tracking.tracer.join(parent, describe)
    } else {
        let is_explained = headers.contains_key(EXPLAIN);
        let is_recorded = node.tracking.tracer.recent().admits(target.tenant(), is_explained);
        node.tracking.tracer.start(parent, is_recorded, describe)
    }
}

/// Starts the trace of the acceptance of an asynchronous request. Makes its span the caller of the
/// stored request, so that the attempts continue the trace.
pub(crate) fn accept(node: &NodeState, later: &Later, headers: &mut HeaderMap, id: &RequestId) -> Trace {
    let Later { tenant, kind, name, chosen, .. } = later;
    let trace = node
        .tracking
        .tracer
        .start(TraceParent::from_headers(headers), false, || accepted(tenant, *kind, name, *chosen, id));
    trace.inject(headers);
    trace
}

fn accepted(
    tenant: &TenantId,
    kind: InvocationKind,
    name: &Name,
    version: Version,
    id: &RequestId,
) -> CallDescription {
    let key = match kind {
        InvocationKind::Function => "weir.function",
        InvocationKind::Inference => "weir.model",
    };
    let attributes = [
        (key, AttributeValue::Name(name.clone())),
        ("weir.version", AttributeValue::Int(version.0.into())),
        ("weir.tenant", AttributeValue::Name(tenant.name().clone())),
        ("weir.request_id", AttributeValue::Shared(id.shared())),
    ];
    CallDescription {
        name: format!("accept {name}"),
        kind: SpanKind::Producer,
        tenant: tenant.clone(),
        target: name.clone(),
        request_id: id.shared(),
        attributes: attributes.into_iter().map(|(key, value)| Attribute { key, value }).collect(),
    }
}
