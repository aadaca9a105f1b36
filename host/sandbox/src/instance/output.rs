//! A guest's standard output and error: split into lines, counted against the invocation's log
//! limit, and written to the function's log.

use bytes::Bytes;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi_io::poll::Pollable;
use wasmtime_wasi_io::streams::{OutputStream, StreamResult};
use weir_inference::InferenceError;
use weir_telemetry::logs::{FunctionLog, LINE_BYTES_MAX, now_ms};
use weir_types::api::LogLine;
use weir_types::{ErrorCode, ModelId, Version};

/// The limits of log lines per invocation about missing grants and rejected headers, and about
/// failed model runs: a guest that retries would otherwise flood its function's log.
const REFUSALS_MAX: u32 = 16;
const FAILED_RUNS_MAX: u32 = 16;

/// The number of bytes that a guest may write at once.
const WRITE_BYTES_MAX: usize = 64 << 10;

/// The log output of one invocation.
pub struct OutputSink {
    log: Arc<FunctionLog>,
    version: Version,
    request_id: Arc<str>,
    state: Mutex<SinkState>,
}

struct SinkState {
    bytes_left: u64,
    bytes_dropped: u64,
    partial: [Vec<u8>; 2],
    refusals_left: u32,
    failed_runs_left: u32,
}

/// One of the guest's two streams.
#[derive(Clone, Copy)]
pub(super) enum Channel {
    Stdout,
    Stderr,
}

impl Channel {
    fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

impl OutputSink {
    /// Creates the output of one invocation: at most `bytes_max` bytes into the function's `log`.
    pub fn new(log: Arc<FunctionLog>, version: Version, request_id: Arc<str>, bytes_max: u64) -> Arc<Self> {
        let state = SinkState {
            bytes_left: bytes_max,
            bytes_dropped: 0,
            partial: Default::default(),
            refusals_left: REFUSALS_MAX,
            failed_runs_left: FAILED_RUNS_MAX,
        };
        Arc::new(Self { log, version, request_id, state: Mutex::new(state) })
    }

    /// Logs a message of the node about the invocation.
    pub fn note(&self, text: String) {
        self.push("weir", text);
    }

    /// Logs that the invocation requested something that its function is not granted.
    fn refused(&self, what: &str) {
        let mut state = self.state.lock();
        if let Some(left) = state.refusals_left.checked_sub(1) {
            state.refusals_left = left;
            self.note(format!("{}: {what}", ErrorCode::NotGranted));
        }
    }

    /// Logs that the invocation passed something invalid to the node.
    fn rejected(&self, what: &str) {
        let mut state = self.state.lock();
        if let Some(left) = state.refusals_left.checked_sub(1) {
            state.refusals_left = left;
            self.note(what.to_owned());
        }
    }

    /// Logs that a run of a model failed.
    fn run_failed(&self, model: &ModelId, error: &InferenceError) {
        let mut state = self.state.lock();
        if let Some(left) = state.failed_runs_left.checked_sub(1) {
            state.failed_runs_left = left;
            self.note(format!("a run of {}:{} failed: {error}", model.name, model.version));
        }
    }

    fn push(&self, stream: &str, text: String) {
        let request_id = self.request_id.as_ref().to_owned();
        self.log.push(LogLine {
            at_ms: now_ms(),
            version: self.version,
            request_id,
            stream: stream.to_owned(),
            text,
        });
    }

    fn write(&self, channel: Channel, bytes: &[u8]) {
        let mut state = self.state.lock();
        let keep = bytes.len().min(usize::try_from(state.bytes_left).unwrap_or(usize::MAX));
        state.bytes_left -= keep as u64;
        state.bytes_dropped += (bytes.len() - keep) as u64;
        let mut rest = &bytes[..keep];
        let partial = &mut state.partial[channel as usize];
        while !rest.is_empty() {
            let newline = rest.iter().position(|&b| b == b'\n');
            let room = LINE_BYTES_MAX - partial.len();
            let take = newline.unwrap_or(rest.len()).min(room);
            partial.extend_from_slice(&rest[..take]);
            let ended = newline == Some(take);
            if ended || partial.len() == LINE_BYTES_MAX {
                self.push(channel.as_str(), String::from_utf8_lossy(partial).into_owned());
                partial.clear();
            }
            rest = &rest[take + usize::from(ended)..];
        }
    }

    /// Writes out unfinished lines, and reports the number of dropped bytes.
    pub fn finish(&self) {
        let mut state = self.state.lock();
        for channel in [Channel::Stdout, Channel::Stderr] {
            let partial = std::mem::take(&mut state.partial[channel as usize]);
            if !partial.is_empty() {
                self.push(channel.as_str(), String::from_utf8_lossy(&partial).into_owned());
            }
        }
        let dropped = std::mem::take(&mut state.bytes_dropped);
        if dropped > 0 {
            self.log.dropped(dropped);
            self.note(format!("log limit reached: {dropped} bytes dropped (limits.log_bytes)"));
        }
    }
}

/// The last output of a guest that is stopped midway, for example because its client disconnected,
/// is logged too.
impl Drop for OutputSink {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The destination of an instance's output: its current invocation, or none between invocations. A
/// guest may keep its streams from one invocation to the next.
#[derive(Clone, Default)]
pub struct CurrentSink(Arc<Mutex<Option<Arc<OutputSink>>>>);

impl CurrentSink {
    /// Redirects output to `sink`.
    pub fn set(&self, sink: Option<Arc<OutputSink>>) {
        *self.0.lock() = sink;
    }

    /// Logs that the invocation requested something that its function is not granted.
    pub fn refused(&self, what: &str) {
        if let Some(sink) = self.get() {
            sink.refused(what);
        }
    }

    /// Logs that the invocation passed something invalid to the node.
    pub(super) fn rejected(&self, what: &str) {
        if let Some(sink) = self.get() {
            sink.rejected(what);
        }
    }

    /// Logs that a run of a model failed, unless the guest cancelled it.
    pub fn run_failed(&self, model: &ModelId, error: &InferenceError) {
        if let Some(sink) = self.get()
            && !matches!(error, InferenceError::Cancelled)
        {
            sink.run_failed(model, error);
        }
    }

    fn write(&self, channel: Channel, bytes: &[u8]) {
        if let Some(sink) = self.get() {
            sink.write(channel, bytes);
        }
    }

    fn get(&self) -> Option<Arc<OutputSink>> {
        self.0.lock().clone()
    }
}

/// One of the guest's streams, as a wasmtime stream.
pub(super) struct GuestStream {
    pub(super) sink: CurrentSink,
    pub(super) channel: Channel,
}

impl GuestStream {
    fn again(&self) -> Self {
        Self { sink: self.sink.clone(), channel: self.channel }
    }
}

impl IsTerminal for GuestStream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for GuestStream {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.again())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.again())
    }
}

impl OutputStream for GuestStream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.sink.write(self.channel, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_BYTES_MAX)
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for GuestStream {
    async fn ready(&mut self) {}
}

impl AsyncWrite for GuestStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.sink.write(self.channel, bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_telemetry::Metrics;
    use weir_telemetry::logs::{Logs, LogsConfig};
    use weir_types::{Name, TenantId};

    /// Opens a function log with a separate budget.
    fn log() -> Arc<FunctionLog> {
        let config = LogsConfig {
            function_lines_max: 100,
            function_bytes_max: 1 << 20,
            bytes_max: 1 << 20,
            ..LogsConfig::default()
        };
        Logs::new(config).open(Metrics::new().function(&TenantId::default(), &Name::new("f").unwrap()))
    }

    fn lines_of(log: &FunctionLog) -> Vec<(String, String)> {
        log.tail(1_000).into_iter().map(|l| (l.stream, l.text)).collect()
    }

    #[test]
    fn writes_are_joined_into_lines_and_limited() {
        let log = log();
        let sink = OutputSink::new(log.clone(), Version(1), "r".into(), 16);
        sink.write(Channel::Stdout, b"he");
        sink.write(Channel::Stderr, b"oops\n");
        sink.write(Channel::Stdout, b"llo\n\nx");
        sink.write(Channel::Stdout, b"0123456789");
        sink.finish();
        let expected = [
            ("stderr", "oops"),
            ("stdout", "hello"),
            ("stdout", ""),
            ("stdout", "x012"),
            ("weir", "log limit reached: 7 bytes dropped (limits.log_bytes)"),
        ];
        assert_eq!(lines_of(&log), expected.map(|(s, t)| (s.to_owned(), t.to_owned())));
    }

    #[test]
    fn refusals_in_the_log_are_limited() {
        let log = log();
        let current = CurrentSink::default();
        current.set(Some(OutputSink::new(log.clone(), Version(1), "r".into(), 0)));
        (0..100).for_each(|at| current.refused(&format!("model m{at} is not granted")));
        let lines = lines_of(&log);
        assert_eq!(lines.len(), REFUSALS_MAX as usize);
        assert_eq!(lines[0], ("weir".to_owned(), "not-granted: model m0 is not granted".to_owned()));
    }

    #[test]
    fn failed_runs_in_the_log_are_limited() {
        let log = log();
        let current = CurrentSink::default();
        current.set(Some(OutputSink::new(log.clone(), Version(1), "r".into(), 0)));
        let name = Name::new("m").unwrap();
        let model = ModelId { tenant: TenantId::default(), name, version: Version(2) };
        current.run_failed(&model, &InferenceError::Cancelled);
        (0..100).for_each(|_| current.run_failed(&model, &InferenceError::NoOutputs));
        let lines = lines_of(&log);
        assert_eq!(lines.len(), FAILED_RUNS_MAX as usize);
        let text = format!("a run of m:2 failed: {}", InferenceError::NoOutputs);
        assert_eq!(lines[0], ("weir".to_owned(), text));
    }

    #[test]
    fn kept_stream_writes_to_the_current_invocation() {
        let log = log();
        let current = CurrentSink::default();
        let channel = Channel::Stdout;
        let mut kept = GuestStream { sink: current.clone(), channel };
        for request_id in ["one", "two"] {
            current.set(Some(OutputSink::new(log.clone(), Version(1), request_id.into(), 100)));
            OutputStream::write(&mut kept, Bytes::from_static(b"words")).unwrap();
            current.set(None);
            OutputStream::write(&mut kept, Bytes::from_static(b"lost")).unwrap();
        }
        let lines: Vec<_> = log.tail(10).into_iter().map(|line| (line.request_id, line.text)).collect();
        assert_eq!(lines, ["one", "two"].map(|id| (id.to_owned(), "words".to_owned())));
    }

    #[test]
    fn overlong_line_is_split() {
        let log = log();
        let sink = OutputSink::new(log.clone(), Version(1), "r".into(), 1 << 20);
        sink.write(Channel::Stdout, &vec![b'x'; 2 * LINE_BYTES_MAX + 1]);
        sink.finish();
        assert_eq!(
            lines_of(&log).iter().map(|l| l.1.len()).collect::<Vec<_>>(),
            [LINE_BYTES_MAX, LINE_BYTES_MAX, 1]
        );
    }
}
