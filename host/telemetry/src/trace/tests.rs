use super::*;
use http::HeaderMap;
use weir_call::headers::TRACEPARENT;
use weir_types::{Name, TenantId};

/// Keeps ended spans as lines.
#[derive(Debug, Default)]
struct Lines(Mutex<Vec<Line>>);

#[derive(Debug, Clone)]
struct Line {
    trace_id: TraceId,
    id: SpanId,
    parent: Option<SpanId>,
    is_parent_remote: bool,
    name: String,
    times: (u64, u64),
    attributes: Vec<Attribute>,
    failure: Option<String>,
}

impl SpanSink for Lines {
    fn record(&self, span: &EndedSpan<'_>) {
        self.0.lock().push(Line {
            trace_id: span.trace_id,
            id: span.id,
            parent: span.parent,
            is_parent_remote: span.is_parent_remote,
            name: span.name.to_owned(),
            times: (span.start_unix_ns, span.end_unix_ns),
            attributes: span.attributes.to_vec(),
            failure: span.failure.map(str::to_owned),
        });
    }
}

impl Lines {
    fn get(&self, name: &str) -> Line {
        let all = self.0.lock();
        all.iter()
            .find(|line| line.name == name)
            .unwrap_or_else(|| panic!("{name} is not in {all:?}"))
            .clone()
    }
}

fn tracer(ratio: f64) -> (Tracer, Arc<Lines>) {
    let lines = Arc::<Lines>::default();
    let recent = RecentCallLimits { calls_max: 10, tenant_calls_max: 10, calls_per_s: 1 };
    (Tracer::new(Sampler::new(ratio), lines.clone(), recent), lines)
}

fn describe() -> CallDescription {
    CallDescription {
        name: "POST /fn/hello".to_owned(),
        kind: SpanKind::Server,
        tenant: TenantId::default(),
        target: Name::new("hello").unwrap(),
        request_id: "r1".into(),
        attributes: Vec::new(),
    }
}

fn caller(flags: &str) -> TraceParent {
    let mut headers = HeaderMap::new();
    let text = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
    headers.insert(TRACEPARENT, text.parse().unwrap());
    TraceParent::from_headers(&headers).unwrap()
}

#[test]
fn call_without_sampling_has_no_spans_and_passes_its_headers_on() {
    let (tracer, lines) = tracer(0.0);
    for parent in [None, Some(caller("00"))] {
        let trace = tracer.start(parent, false, || panic!("not described"));
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, "as-it-was".parse().unwrap());
        trace.reserve().inject(&mut headers);
        trace.phase(Phase::Guest).inject(&mut headers);
        assert_eq!(headers[TRACEPARENT], "as-it-was");
    }
    assert!(lines.0.lock().is_empty());
}

#[test]
fn spans_form_a_tree_below_the_clients_span() {
    let (tracer, lines) = tracer(0.0);
    let trace = tracer.start(Some(caller("01")), false, describe);
    drop(trace.phase(Phase::Queue));
    let guest = trace.reserve();
    drop(guest.trace().phase(Phase::ModelRun));
    drop(guest.start(Phase::Guest));
    drop((trace, guest));
    let root = lines.get("POST /fn/hello");
    let guest = lines.get("guest");
    assert_eq!(root.trace_id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(root.parent.unwrap().to_string(), "00f067aa0ba902b7");
    assert!(root.is_parent_remote && !guest.is_parent_remote);
    assert_eq!(guest.parent, Some(root.id));
    assert_eq!(lines.get("queue").parent, Some(root.id));
    assert_eq!(lines.get("model_run").parent, Some(guest.id));
    for span in [&guest, &lines.get("queue"), &lines.get("model_run")] {
        assert_eq!(span.trace_id, root.trace_id);
        assert!(root.times.0 <= span.times.0 && span.times.0 < span.times.1 && span.times.1 <= root.times.1);
    }
}

#[test]
fn requests_of_a_guest_name_its_span_as_their_parent() {
    let (tracer, lines) = tracer(1.0);
    let trace = tracer.start(None, false, describe);
    let guest = trace.reserve();
    let mut headers = HeaderMap::new();
    headers.insert("tracestate", "of=another-trace".parse().unwrap());
    guest.inject(&mut headers);
    let parent = TraceParent::from_headers(&headers).unwrap();
    drop(guest.start(Phase::Guest));
    let guest = lines.get("guest");
    assert_eq!((parent.trace_id, parent.parent_id, parent.sampled), (guest.trace_id, guest.id, true));
    assert!(!headers.contains_key("tracestate"));
}

#[test]
fn forwarded_call_is_sampled_if_its_first_node_sampled_it() {
    let (tracer, _) = tracer(1.0);
    assert!(!tracer.join(None, describe).is_sampled());
    assert!(!tracer.join(Some(caller("00")), describe).is_sampled());
    assert!(tracer.join(Some(caller("01")), describe).is_sampled());
}

#[test]
fn outcome_is_an_error_only_if_the_server_is_at_fault() {
    let (tracer, lines) = tracer(1.0);
    let value = |key| {
        let span = lines.0.lock().pop().unwrap();
        let found = span.attributes.into_iter().find(|attribute| attribute.key == key);
        (span.failure, found.map(|attribute| attribute.value))
    };
    let trace = tracer.start(None, false, describe);
    trace.failed(ErrorCode::GuestTrap);
    drop(trace);
    let status = |code| Some(AttributeValue::Int(code));
    assert_eq!(value("http.response.status_code"), (Some("guest-trap".to_owned()), status(500)));
    let trace = tracer.start(None, false, describe);
    trace.failed(ErrorCode::BodyTooLarge);
    drop(trace);
    assert_eq!(value("error.type"), (None, Some(AttributeValue::Static("body-too-large"))));
    let trace = tracer.start(None, false, describe);
    trace.answered(StatusCode::OK);
    drop(trace);
    assert_eq!(value("http.response.status_code"), (None, status(200)));
}

#[test]
fn span_of_a_future_ends_with_it() {
    let (tracer, lines) = tracer(1.0);
    let trace = tracer.start(None, false, describe);
    let mut future = Box::pin(trace.during(Phase::ModelLoad, std::future::ready(1)));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(future.as_mut().poll(&mut cx).is_ready());
    lines.get("model_load");
}

#[test]
fn recorded_call_has_a_timeline_and_leaves_headers_and_sink_alone() {
    let (tracer, lines) = tracer(0.0);
    let described = || {
        let attributes = [
            ("weir.function", AttributeValue::Name(Name::new("hello").unwrap())),
            ("weir.version", AttributeValue::Int(3)),
        ];
        let attributes = attributes.into_iter().map(|(key, value)| Attribute { key, value }).collect();
        CallDescription { attributes, ..describe() }
    };
    let trace = tracer.start(None, true, described);
    assert!(!trace.is_sampled());
    drop(trace.phase(Phase::Queue));
    let guest = trace.phase(Phase::Guest);
    let mut headers = HeaderMap::new();
    guest.inject(&mut headers);
    trace.inject(&mut headers);
    assert!(headers.is_empty(), "{headers:?}");
    let mut load = guest.trace().phase(Phase::ModelLoad);
    load.failed(ErrorCode::DeadlineExceeded);
    drop(load);
    drop(guest);
    trace.failed(ErrorCode::GuestTrap);
    assert!(tracer.recent().find(&TenantId::default(), "r1").is_none(), "the call has not ended");
    drop(trace);
    assert!(lines.0.lock().is_empty());
    let found = tracer.recent().find(&TenantId::default(), "r1").unwrap();
    assert_eq!((found.call.version.0, found.call.error.as_deref()), (3, Some("guest-trap")));
    assert_eq!(found.call.status, Some(500));
    let spans: Vec<_> = found.spans.iter().map(|span| (span.name.as_str(), span.parent)).collect();
    assert_eq!(spans, [("queue", None), ("guest", None), ("model_load", Some(1))]);
    assert_eq!(found.spans[2].error.as_deref(), Some("deadline-exceeded"));
    assert!(found.call.is_failed() && found.spans[1].duration_ns <= found.call.duration_ns);
}

#[test]
fn spans_beyond_the_limit_of_a_call_are_counted() {
    let (tracer, _) = tracer(0.0);
    let attributes = || {
        let model = AttributeValue::Name(Name::new("digits").unwrap());
        let version = AttributeValue::Int(1);
        vec![Attribute { key: "weir.model", value: model }, Attribute { key: "weir.version", value: version }]
    };
    let trace = tracer.start(None, true, || CallDescription { attributes: attributes(), ..describe() });
    for _ in 0..130 {
        drop(trace.phase(Phase::ModelRun));
    }
    drop(trace);
    let found = tracer.recent().find(&TenantId::default(), "r1").unwrap();
    assert_eq!((found.spans.len(), found.spans_dropped), (128, 2));
}
