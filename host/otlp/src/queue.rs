//! Spans that wait to be sent.
//!
//! Each thread appends its spans to a buffer, almost without contention. A full buffer becomes a
//! chunk of the queue, whose size is limited. Spans that do not fit are dropped and counted.

use crate::spans;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;
use tokio::sync::Notify;
use weir_telemetry::{EndedSpan, Metrics, SpanDrop, SpanSink};

/// Size at which the buffer of a thread becomes a chunk.
const CHUNK_BYTES: usize = 32 << 10;
/// Largest number of buffers. Further threads share them.
const BUFFERS_MAX: usize = 64;
/// Size of the spans in one request. Collectors accept at least 4 MiB.
pub(crate) const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Encoded spans.
#[derive(Debug, Default, Clone)]
pub(crate) struct Chunk {
    pub(crate) bytes: Vec<u8>,
    pub(crate) spans: u64,
}

/// The buffer of some threads, on its own cache line.
#[derive(Default)]
#[repr(align(128))]
struct Buffer(Mutex<Chunk>);

/// Spans that wait to be sent.
pub(crate) struct SpanQueue {
    buffers: Box<[Buffer]>,
    waiting: Mutex<Waiting>,
    bytes_max: usize,
    /// Wakes the exporter when a request is full.
    full: Notify,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Waiting {
    chunks: VecDeque<Chunk>,
    bytes: usize,
}

impl SpanQueue {
    /// Creates a queue for `bytes_max`, apart from the buffers of threads.
    pub(crate) fn new(bytes_max: u64, metrics: Arc<Metrics>) -> Self {
        let threads = available_parallelism().map_or(1, usize::from);
        let buffers = threads.next_power_of_two().min(BUFFERS_MAX);
        Self {
            buffers: (0..buffers).map(|_| Buffer::default()).collect(),
            waiting: Mutex::default(),
            bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
            full: Notify::new(),
            metrics,
        }
    }

    fn enqueue(&self, chunk: Chunk) {
        let mut waiting = self.waiting.lock();
        let bytes = waiting.bytes + chunk.bytes.len();
        if bytes > self.bytes_max {
            drop(waiting);
            self.metrics.otlp.dropped(SpanDrop::Queue, chunk.spans);
            return;
        }
        waiting.bytes = bytes;
        waiting.chunks.push_back(chunk);
        drop(waiting);
        if bytes >= REQUEST_BYTES_MAX {
            self.full.notify_one();
        }
    }

    /// Waits until the spans for a whole request wait.
    pub(crate) async fn full(&self) {
        self.full.notified().await;
    }

    /// Moves the spans in the buffers of threads to the queue.
    pub(crate) fn collect(&self) {
        for Buffer(buffer) in &self.buffers {
            let chunk = std::mem::take(&mut *buffer.lock());
            if chunk.spans > 0 {
                self.enqueue(chunk);
            }
        }
    }

    /// Takes the oldest spans, as many as fit into one request; none if no spans wait.
    pub(crate) fn take(&self) -> Vec<Chunk> {
        let mut waiting = self.waiting.lock();
        let mut taken = Vec::new();
        let mut bytes = 0;
        while let Some(chunk) = waiting.chunks.pop_front() {
            bytes += chunk.bytes.len();
            taken.push(chunk);
            if bytes >= REQUEST_BYTES_MAX - CHUNK_BYTES {
                break;
            }
        }
        waiting.bytes -= bytes;
        taken
    }
}

impl SpanSink for SpanQueue {
    fn record(&self, span: &EndedSpan<'_>) {
        let mut buffer = self.buffers[buffer_index() & (self.buffers.len() - 1)].0.lock();
        spans::write(&mut buffer.bytes, span);
        buffer.spans += 1;
        if buffer.bytes.len() < CHUNK_BYTES {
            return;
        }
        let next = Chunk { bytes: Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 8), spans: 0 };
        let chunk = std::mem::replace(&mut *buffer, next);
        drop(buffer);
        self.enqueue(chunk);
    }
}

impl fmt::Debug for SpanQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpanQueue").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

/// The number of the current thread.
fn buffer_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static INDEX: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    INDEX.with(|index| *index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{NodeResource, Resource};
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::trace::v1::Span;
    use prost::Message as _;
    use std::collections::BTreeMap;
    use weir_telemetry::{
        Attribute, AttributeValue, CallDescription, Phase, RecentCallLimits, Sampler, SpanKind, TextFormat,
        Tracer,
    };
    use weir_types::{ErrorCode, Name, TenantId};

    fn call(tracer: &Tracer, text: &str) -> weir_telemetry::Trace {
        tracer.start(None, false, || CallDescription {
            name: "POST /fn/hello".to_owned(),
            kind: SpanKind::Server,
            tenant: TenantId::default(),
            target: Name::new("hello").unwrap(),
            request_id: "r1".into(),
            attributes: vec![Attribute { key: "text", value: AttributeValue::Text(text.to_owned()) }],
        })
    }

    fn queue(bytes_max: u64) -> (Tracer, Arc<SpanQueue>, Arc<Metrics>) {
        let metrics = Metrics::new();
        let queue = Arc::new(SpanQueue::new(bytes_max, metrics.clone()));
        let recent = RecentCallLimits { calls_max: 0, tenant_calls_max: 0, calls_per_s: 0 };
        (Tracer::new(Sampler::new(1.0), queue.clone(), recent), queue, metrics)
    }

    fn decoded(chunks: &[Chunk]) -> Vec<Span> {
        let resource = Resource::new(&NodeResource { node: 7, address: None }, &BTreeMap::new());
        let items: Vec<&[u8]> = chunks.iter().map(|chunk| &*chunk.bytes).collect();
        let request = ExportTraceServiceRequest::decode(&*resource.request(&items)).unwrap();
        let [of_node] = &request.resource_spans[..] else { panic!("{request:?}") };
        let text = format!("{:?}", of_node.resource);
        assert!(text.contains("\"service.instance.id\"") && text.contains("\"7\""), "{text}");
        assert_eq!(of_node.scope_spans[0].scope.as_ref().unwrap().name, "weir");
        of_node.scope_spans[0].spans.clone()
    }

    fn dropped(metrics: &Metrics) -> u64 {
        let text = metrics.encode(None, TextFormat::OpenMetrics).unwrap();
        let line = "weir_otlp_spans_dropped_total{reason=\"queue\"} ";
        text.lines().find_map(|shown| shown.strip_prefix(line)?.parse().ok()).unwrap()
    }

    #[test]
    fn encoded_spans_are_those_of_the_protocol() {
        let (tracer, queue, _) = queue(1 << 20);
        let trace = call(&tracer, &"ä".repeat(1_000));
        drop(trace.phase(Phase::Fetch));
        trace.failed(ErrorCode::GuestTrap);
        drop(trace);
        queue.collect();
        let spans = decoded(&queue.take());
        let [phase, root] = &spans[..] else { panic!("{spans:?}") };
        assert_eq!((&*phase.name, &*root.name, phase.kind, root.kind), ("fetch", "POST /fn/hello", 1, 2));
        assert_eq!((phase.trace_id.len(), phase.span_id.len()), (16, 8));
        assert_eq!((&phase.trace_id, &phase.parent_span_id), (&root.trace_id, &root.span_id));
        assert!(root.parent_span_id.is_empty() && root.start_time_unix_nano < root.end_time_unix_nano);
        assert_eq!((root.flags, phase.status.clone()), (0x101, None));
        let status = root.status.clone().unwrap();
        assert_eq!((&*status.message, status.code), ("guest-trap", 2));
        let attributes = format!("{:?}", root.attributes);
        for (key, value) in [
            ("http.response.status_code", "IntValue(500)"),
            ("error.type", "StringValue(\"guest-trap\")"),
            ("faas.coldstart", "BoolValue(true)"),
            ("text", &format!("StringValue(\"{}\")", "ä".repeat(512))),
        ] {
            assert!(attributes.contains(key) && attributes.contains(value), "{key} in {attributes}");
        }
    }

    #[test]
    fn spans_beyond_the_limit_are_dropped_and_counted() {
        let (tracer, queue, metrics) = queue(3 * CHUNK_BYTES as u64);
        let total = 1_000;
        for _ in 0..total {
            drop(call(&tracer, &"x".repeat(500)));
        }
        queue.collect();
        let kept: u64 = std::iter::repeat_with(|| queue.take())
            .take_while(|chunks| !chunks.is_empty())
            .flatten()
            .map(|chunk| chunk.spans)
            .sum();
        assert!(kept > 0 && dropped(&metrics) > 0);
        assert_eq!(kept + dropped(&metrics), total);
        drop(call(&tracer, "later"));
        queue.collect();
        assert_eq!(decoded(&queue.take()).len(), 1, "a queue that was emptied takes spans again");
    }

    #[tokio::test]
    async fn full_request_wakes_the_exporter_and_is_split_off() {
        let (tracer, queue, _) = queue(16 << 20);
        for _ in 0..3_000 {
            drop(call(&tracer, &"x".repeat(1_000)));
        }
        queue.full().await;
        let bytes: usize = queue.take().iter().map(|chunk| chunk.bytes.len()).sum();
        assert!((REQUEST_BYTES_MAX / 2..=REQUEST_BYTES_MAX + 2 * CHUNK_BYTES).contains(&bytes), "{bytes}");
        assert!(!queue.take().is_empty());
    }
}
