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
    (Tracer::new(Sampler::new(ratio), lines.clone()), lines)
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
        let trace = tracer.start(parent, || panic!("not described"));
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
    let trace = tracer.start(Some(caller("01")), describe);
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
    let trace = tracer.start(None, describe);
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
    let trace = tracer.start(None, describe);
    trace.failed(ErrorCode::GuestTrap);
    drop(trace);
    let status = |code| Some(AttributeValue::Int(code));
    assert_eq!(value("http.response.status_code"), (Some("guest-trap".to_owned()), status(500)));
    let trace = tracer.start(None, describe);
    trace.failed(ErrorCode::BodyTooLarge);
    drop(trace);
    assert_eq!(value("error.type"), (None, Some(AttributeValue::Static("body-too-large"))));
    let trace = tracer.start(None, describe);
    trace.answered(StatusCode::OK);
    drop(trace);
    assert_eq!(value("http.response.status_code"), (None, status(200)));
}

#[test]
fn span_of_a_future_ends_with_it() {
    let (tracer, lines) = tracer(1.0);
    let trace = tracer.start(None, describe);
    let mut future = Box::pin(trace.during(Phase::ModelLoad, std::future::ready(1)));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(future.as_mut().poll(&mut cx).is_ready());
    lines.get("model_load");
}
