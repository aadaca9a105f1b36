//! The tasks that send spans and metrics.

use crate::client::{Accepted, Client, SendError};
use crate::openmetrics::{self, Times};
use crate::queue::{Chunk, SpanQueue};
use crate::resource::Resource;
use crate::{NodeResource, OtlpError, OtlpSettings};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use weir_telemetry::{Metrics, Signal, SpanDrop, SpanSink, TextFormat};

/// Time for which a request is repeated before its spans are dropped.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Pauses between attempts: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// Interval of warnings while the collector fails.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Time limit of the last requests, when the node shuts down.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// The export of a node that has not started yet: spans already go to its queue.
pub struct Exporter {
    client: Client,
    queue: Arc<SpanQueue>,
    metrics: Arc<Metrics>,
    spans_interval: Duration,
    metrics_interval: Option<Duration>,
    resource: BTreeMap<String, String>,
    start_unix_ns: u64,
}

impl Exporter {
    /// Prepares the export. Connects with the first request.
    ///
    /// # Errors
    /// The settings are invalid.
    pub fn new(settings: OtlpSettings, metrics: Arc<Metrics>) -> Result<Self, OtlpError> {
        let OtlpSettings { endpoint, timeout, spans_interval, queue_bytes_max, metrics_interval, resource } =
            settings;
        Ok(Self {
            client: Client::new(endpoint, timeout)?,
            queue: Arc::new(SpanQueue::new(queue_bytes_max, metrics.clone())),
            metrics,
            spans_interval,
            metrics_interval,
            resource,
            start_unix_ns: unix_ns(),
        })
    }

    /// The destination of ended spans.
    #[must_use]
    pub fn sink(&self) -> Arc<dyn SpanSink> {
        self.queue.clone()
    }

    /// Starts to send, on `runtime`.
    #[must_use]
    pub fn start(self, runtime: &Handle, node: &NodeResource) -> ExportTask {
        let stop = CancellationToken::new();
        let Self { client, queue, metrics, spans_interval, metrics_interval, resource, start_unix_ns } = self;
        let sender = Arc::new(Sender {
            resource: Resource::new(node, &resource),
            client,
            queue,
            metrics,
            start_unix_ns,
            stop: stop.clone(),
        });
        let spans = runtime.spawn(sender.clone().send_spans(spans_interval));
        let mut tasks = vec![AbortOnDropHandle::new(spans)];
        if let Some(interval) = metrics_interval {
            tasks.push(AbortOnDropHandle::new(runtime.spawn(sender.send_metrics(interval))));
        }
        ExportTask { stop, tasks }
    }
}

/// The running export. Dropping it stops it without sending the rest.
pub struct ExportTask {
    stop: CancellationToken,
    tasks: Vec<AbortOnDropHandle<()>>,
}

impl ExportTask {
    /// Sends all spans that wait, and the metrics, within a few seconds.
    pub async fn shutdown(self) {
        self.stop.cancel();
        for task in self.tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "the export to the OpenTelemetry collector failed");
            }
        }
    }
}

/// State of the tasks.
struct Sender {
    client: Client,
    queue: Arc<SpanQueue>,
    metrics: Arc<Metrics>,
    resource: Resource,
    start_unix_ns: u64,
    stop: CancellationToken,
}

impl Sender {
    async fn send_spans(self: Arc<Self>, interval: Duration) {
        let mut warnings = Warnings::new(Signal::Traces);
        let mut tick = tokio::time::interval(interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.stop.is_cancelled() {
            tokio::select! {
                _ = tick.tick() => self.queue.collect(),
                () = self.queue.full() => {}
                () = self.stop.cancelled() => break,
            }
            loop {
                let chunks = self.queue.take();
                if chunks.is_empty() {
                    break;
                }
                let give_up = Instant::now() + RETRY_MAX;
                self.send_chunks(&chunks, give_up, &mut warnings).await;
            }
        }
        self.queue.collect();
        let give_up = Instant::now() + FLUSH_MAX;
        loop {
            let chunks = self.queue.take();
            if chunks.is_empty() {
                break;
            }
            self.send_chunks(&chunks, give_up, &mut warnings).await;
        }
    }

    async fn send_chunks(&self, chunks: &[Chunk], give_up: Instant, warnings: &mut Warnings) {
        let spans = chunks.iter().map(|chunk| chunk.spans).sum::<u64>();
        let items: Vec<&[u8]> = chunks.iter().map(|chunk| &*chunk.bytes).collect();
        let framed = self.client.frame(self.resource.request(&items));
        drop(items);
        match self.deliver(Signal::Traces, framed, give_up, warnings).await {
            Some(Accepted { rejected, .. }) => {
                let rejected = rejected.min(spans);
                self.metrics.otlp.spans_exported.inc_by(spans - rejected);
                self.metrics.otlp.dropped(SpanDrop::Rejected, rejected);
            }
            None => self.metrics.otlp.dropped(SpanDrop::Unsent, spans),
        }
    }

    async fn send_metrics(self: Arc<Self>, interval: Duration) {
        let mut warnings = Warnings::new(Signal::Metrics);
        let mut tick = tokio::time::interval(interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_last = false;
        while !is_last {
            tokio::select! {
                _ = tick.tick() => {}
                () = self.stop.cancelled() => is_last = true,
            }
            let Some(framed) = self.encoded_metrics().await else { continue };
            // The next interval has newer figures, so that old ones are not worth many attempts.
            let patience = if is_last { FLUSH_MAX } else { interval.min(RETRY_MAX) };
            self.deliver(Signal::Metrics, framed, Instant::now() + patience, &mut warnings).await;
        }
    }

    /// Encodes all metrics on a thread that may block: a node with many functions has many series.
    async fn encoded_metrics(&self) -> Option<Bytes> {
        let metrics = self.metrics.clone();
        let times = Times { start_unix_ns: self.start_unix_ns, now_unix_ns: unix_ns() };
        let encoding = tokio::task::spawn_blocking(move || {
            let text = metrics.encode(None, TextFormat::OpenMetrics)?;
            Ok::<_, std::fmt::Error>(openmetrics::encode(&text, times))
        });
        match encoding.await {
            Ok(Ok(encoded)) => Some(self.client.frame(self.resource.request(&[&encoded]))),
            Ok(Err(error)) => {
                tracing::error!(%error, "encoding the metrics failed");
                None
            }
            Err(error) => {
                tracing::error!(%error, "encoding the metrics failed");
                None
            }
        }
    }

    /// Sends a message, repeatedly until `give_up` if necessary. During a shutdown, a message that
    /// the collector does not take is not repeated. None if it was not sent.
    async fn deliver(
        &self,
        signal: Signal,
        framed: Bytes,
        give_up: Instant,
        warnings: &mut Warnings,
    ) -> Option<Accepted> {
        let mut pause = PAUSE_MIN;
        loop {
            let is_stopping = self.stop.is_cancelled();
            let latest = if is_stopping { give_up.min(Instant::now() + FLUSH_MAX) } else { give_up };
            let sent = timeout_at(latest, self.client.send(signal, framed.clone())).await;
            let error = match sent {
                Ok(Ok(accepted)) => {
                    warnings.succeeded(&accepted);
                    return Some(accepted);
                }
                Ok(Err(error)) => error,
                Err(_) => SendError {
                    text: "the collector did not answer in time".to_owned(),
                    is_retryable: true,
                    after: None,
                },
            };
            self.metrics.otlp.failed(signal);
            warnings.failed(&error);
            // Jitter, so that nodes do not return all at once.
            let wait = error.after.unwrap_or(pause).mul_f64(rand::random_range(0.8..1.2));
            if !error.is_retryable || is_stopping || Instant::now() + wait >= give_up {
                return None;
            }
            tokio::select! {
                () = sleep(wait) => {}
                () = self.stop.cancelled() => {}
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// Reports failures of the collector at a limited rate.
struct Warnings {
    signal: Signal,
    /// The time of the last warning.
    last: Option<Instant>,
    /// Failures since the last success.
    failures: u64,
}

impl Warnings {
    fn new(signal: Signal) -> Self {
        Self { signal, last: None, failures: 0 }
    }

    /// Whether a warning is due.
    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.last.is_none_or(|last| now.duration_since(last) >= WARNING_INTERVAL);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }

    fn failed(&mut self, error: &SendError) {
        self.failures += 1;
        if self.is_due() {
            let signal = self.signal.as_str();
            let SendError { text, .. } = error;
            tracing::warn!(
                signal,
                error = text,
                failures = self.failures,
                "the OpenTelemetry collector failed"
            );
        }
    }

    fn succeeded(&mut self, accepted: &Accepted) {
        let signal = self.signal.as_str();
        let Accepted { rejected, why } = accepted;
        if (*rejected > 0 || !why.is_empty()) && self.is_due() {
            tracing::warn!(signal, rejected, why, "the OpenTelemetry collector rejected data");
        }
        let failures = std::mem::take(&mut self.failures);
        if failures > 0 {
            self.last = None;
            tracing::info!(signal, failures, "the OpenTelemetry collector answers again");
        }
    }
}

/// The time in nanoseconds since 1970.
fn unix_ns() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)
}
