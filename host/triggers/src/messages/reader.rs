//! Reads the messages of one trigger.

use super::Order;
use super::tally::Tally;
use crate::event::Event;
use crate::index::KnownTrigger;
use crate::plan::{Cause, Plan, StreamPlan};
use crate::record::TriggerId;
use crate::{RequestSender, Triggers};
use http::StatusCode;
use jiff::Timestamp;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use weir_call::status;
use weir_nats::{
    Acknowledgement, ByteStream, Connection, Consumer, ConsumerSettings, Login, Message, NatsError, Pulled,
    Server,
};
use weir_telemetry::events::NewEvent;
use weir_types::api::{EventKind, EventResource, StreamStart, TickOutcome};
use weir_types::{AsyncId, ErrorCode};

/// Messages that one pull asks for, at most, unless a batch has more.
const PULL_MAX: u32 = 64;
/// Time for which a pull of single messages waits.
const PULL_WAIT: Duration = Duration::from_secs(30);
/// Pauses after failures of the connection: the first and the longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Time of a connection after which the next failure counts as the first.
const STEADY: Duration = Duration::from_secs(60);
/// Time after which a message is delivered again whose request the node could not accept.
const AGAIN: Duration = Duration::from_secs(5);
/// Interval at which a reader looks whether invocations have ended.
const ENDS: Duration = Duration::from_millis(20);
/// Interval at which the state of the trigger is written.
const WRITE: Duration = Duration::from_secs(1);
/// Time limits of a connection, and of the deletion of a consumer.
const CONNECT_MAX: Duration = Duration::from_secs(10);
const DELETE_MAX: Duration = Duration::from_secs(10);
/// Type of the events of messages that are no CloudEvents.
const MESSAGE_TYPE: &str = "weir.nats.message";

type Stream = Box<dyn ByteStream>;

/// The reader of one trigger.
pub(super) struct Reader<R> {
    triggers: Arc<Triggers>,
    sender: R,
    id: TriggerId,
    trigger: Arc<KnownTrigger>,
    order: watch::Receiver<Order>,
    tally: Tally,
    written_at: Instant,
    /// Whether the state of the trigger has an error.
    has_error: bool,
    /// Invocations that may not have ended.
    running: Vec<AsyncId>,
}

/// Why reading stopped.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("{0}")]
    Nats(#[from] NatsError),
    /// The connection could not be made.
    #[error("{0}")]
    Setup(String),
}

impl<R: RequestSender> Reader<R> {
    pub(super) fn new(
        triggers: Arc<Triggers>,
        sender: R,
        id: TriggerId,
        trigger: Arc<KnownTrigger>,
        order: watch::Receiver<Order>,
    ) -> Self {
        Self {
            triggers,
            sender,
            id,
            trigger,
            order,
            tally: Tally::default(),
            written_at: Instant::now(),
            // A reader before this one may have left an error.
            has_error: true,
            running: Vec::new(),
        }
    }

    /// Reads until the order is another one.
    pub(super) async fn run(mut self) {
        let trigger = self.trigger.clone();
        let Ok(Plan { cause: Cause::Messages(stream), .. }) = &trigger.plan else { return };
        let mut order = self.order.clone();
        let mut pause = RETRY.0;
        loop {
            let started_at = Instant::now();
            let failed = tokio::select! {
                biased;
                _ = order.wait_for(|order| *order != Order::Read) => break,
                failed = self.read(stream) => failed,
            };
            let Err(error) = failed;
            self.report(&error.to_string());
            self.write().await;
            if started_at.elapsed() > STEADY {
                pause = RETRY.0;
            }
            tokio::select! {
                _ = order.wait_for(|order| *order != Order::Read) => break,
                () = sleep(pause) => {}
            }
            pause = (pause * 2).min(RETRY.1);
        }
        self.write().await;
        let is_deleted = *self.order.borrow() == Order::Delete;
        if is_deleted && stream.source.consumer.is_none() {
            self.delete(stream).await;
        }
    }

    /// Pulls messages, and sends their requests, until the connection fails.
    async fn read(&mut self, stream: &StreamPlan) -> Result<Infallible, ReadError> {
        let mut consumer = self.consumer(stream).await?;
        self.clear_error();
        let batch_max = stream.source.batch_max;
        let mut batch = Batch::default();
        loop {
            let room = self.room(stream);
            if consumer.is_idle() && room > 0 {
                let (messages, wait) = match batch_max {
                    1 => (room.min(PULL_MAX), PULL_WAIT),
                    batch_max => (batch_max, Duration::from_millis(stream.source.batch_wait_ms)),
                };
                consumer.pull(messages, wait).await?;
            }
            let wake_at = if room == 0 { Instant::now() + ENDS } else { self.written_at + WRITE };
            tokio::select! {
                pulled = consumer.next() => match pulled? {
                    Pulled::Message(message) => self.take(&mut consumer, stream, &mut batch, message).await?,
                    Pulled::Ended => self.send(&mut consumer, stream, &mut batch).await?,
                },
                () = sleep_until(wake_at) => {}
            }
            if consumer.is_idle() {
                self.send(&mut consumer, stream, &mut batch).await?;
            }
            if self.written_at.elapsed() >= WRITE {
                self.write().await;
            }
        }
    }

    /// The number of further invocations that may run.
    fn room(&mut self, stream: &StreamPlan) -> u32 {
        let Self { triggers, running, .. } = self;
        running.retain(|id| triggers.invocations.is_unfinished(*id));
        let running = u32::try_from(running.len()).unwrap_or(u32::MAX);
        stream.source.running_max.saturating_sub(running)
    }

    /// Adds a message to the batch, and sends a full batch.
    async fn take(
        &mut self,
        consumer: &mut Consumer<Stream>,
        stream: &StreamPlan,
        batch: &mut Batch,
        message: Message,
    ) -> Result<(), NatsError> {
        let bytes_max = self.triggers.config.message_bytes_max as usize;
        if let Some(bytes) = message.discarded_bytes {
            let position = message.sequence;
            self.refuse(format!(
                "message {position} of the stream has {bytes} bytes, more than {bytes_max} (async.triggers.message_bytes_max)"
            ));
            return consumer.acknowledge(&message, Acknowledgement::Never).await;
        }
        if batch.bytes + message.payload.len() > bytes_max {
            self.send(consumer, stream, batch).await?;
        }
        batch.bytes += message.payload.len();
        batch.messages.push(message);
        if batch.messages.len() >= stream.source.batch_max as usize {
            self.send(consumer, stream, batch).await?;
        }
        Ok(())
    }

    /// Sends the request of a batch, and acknowledges its messages: an accepted invocation is durable.
    async fn send(
        &mut self,
        consumer: &mut Consumer<Stream>,
        stream: &StreamPlan,
        batch: &mut Batch,
    ) -> Result<(), NatsError> {
        let messages = std::mem::take(batch).messages;
        if messages.is_empty() {
            return Ok(());
        }
        let what = if self.room(stream) == 0 {
            Acknowledgement::Again(WRITE)
        } else {
            self.accept(stream, &messages).await
        };
        for message in &messages {
            consumer.acknowledge(message, what).await?;
        }
        Ok(())
    }

    /// Has the request of messages accepted as an asynchronous invocation.
    async fn accept(&mut self, stream: &StreamPlan, messages: &[Message]) -> Acknowledgement {
        let Ok(plan) = &self.trigger.plan else { return Acknowledgement::Again(AGAIN) };
        let events: Vec<_> = messages.iter().map(|message| event(stream, message)).collect();
        let keys = messages
            .iter()
            .map(|message| format!("{} {} {}", stream.source.stream, message.sequence, message.stored_at_ns));
        let request = plan.event_request(&self.id.name, self.trigger.record.created_at_ms, &events, keys);
        match self.sender.send(self.id.tenant.clone(), request).await {
            Ok(accepted) => {
                self.running.push(accepted.id);
                self.count(TickOutcome::Fired, Some(accepted.id), None);
                self.clear_error();
                Acknowledgement::Done
            }
            Err(fault) if is_lasting(fault.code) => {
                let position = messages.first().map_or(0, |message| message.sequence);
                self.refuse(format!("the request of message {position} was refused: {fault}"));
                Acknowledgement::Never
            }
            Err(fault) => {
                self.report(&format!("the requests of messages are refused: {fault}"));
                Acknowledgement::Again(AGAIN)
            }
        }
    }

    /// Connects to the server, and creates or finds the consumer.
    async fn consumer(&self, stream: &StreamPlan) -> Result<Consumer<Stream>, ReadError> {
        let StreamPlan { host, port, source, .. } = stream;
        let connector = &self.triggers.connector;
        let login = match &source.secret {
            Some(secret) => {
                let value = self.triggers.secrets.value(&self.id.tenant, secret).await;
                let value = value.map_err(|error| ReadError::Setup(error.to_string()))?;
                Login::parse(&value)
                    .map_err(|error| ReadError::Setup(format!("the secret {secret}: {error}")))?
            }
            None => Login::None,
        };
        let opened = timeout(CONNECT_MAX, connector.open(&self.id.tenant, host, *port)).await;
        let opened = opened.map_err(|_| ReadError::Setup(format!("{host}:{port} does not answer")))?;
        let opened =
            opened.map_err(|error| ReadError::Setup(format!("cannot connect to {host}:{port}: {error}")))?;
        let secure = |plain: Stream, server: Server| async move {
            if !server.tls_required && !stream.is_tls_required {
                return Ok(plain);
            }
            let secured = connector.secure(host, plain).await;
            Ok(Box::new(secured.map_err(|error| NatsError::Io(std::io::Error::other(error)))?) as Stream)
        };
        let bytes_max = self.triggers.config.message_bytes_max as usize;
        let connection = Connection::open(Box::new(opened) as Stream, bytes_max, &login, secure).await?;
        let name = stream.consumer(&self.id);
        if source.consumer.is_some() {
            return Ok(Consumer::bind(connection, &source.stream, &name).await?);
        }
        let settings = ConsumerSettings {
            stream: &source.stream,
            name: &name,
            subject: source.subject.as_deref(),
            from_oldest: source.start == StreamStart::Oldest,
            unacknowledged_max: source.batch_max.max(PULL_MAX).saturating_mul(2),
        };
        Ok(Consumer::create(connection, settings).await?)
    }

    /// Deletes the consumer of a deleted trigger. A server that is out of reach keeps it.
    async fn delete(&self, stream: &StreamPlan) {
        let deleting = async {
            let consumer = self.consumer(stream).await?;
            Ok::<_, ReadError>(consumer.delete().await?)
        };
        let TriggerId { tenant, name } = &self.id;
        match timeout(DELETE_MAX, deleting).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, %tenant, trigger = %name, "the consumer of a deleted trigger stays");
            }
            Err(_) => tracing::warn!(%tenant, trigger = %name, "the consumer of a deleted trigger stays"),
        }
    }

    fn count(&mut self, outcome: TickOutcome, invocation: Option<AsyncId>, error: Option<String>) {
        self.triggers.metrics.triggers.ticks(&self.id.tenant, outcome, 1);
        self.tally.add(outcome, invocation, error);
    }

    /// Records that a message is given up.
    fn refuse(&mut self, error: String) {
        tracing::warn!(tenant = %self.id.tenant, trigger = %self.id.name, error, "a message is given up");
        self.event(error.clone(), "failed");
        self.count(TickOutcome::Failed, None, Some(error));
    }

    /// Records why no messages arrive.
    fn report(&mut self, error: &str) {
        tracing::warn!(tenant = %self.id.tenant, trigger = %self.id.name, error, "no messages arrive, retrying");
        self.event(format!("no messages arrive: {error}"), "messages");
        self.tally.set_error(Some(error.to_owned()));
        self.has_error = true;
    }

    fn clear_error(&mut self) {
        if std::mem::take(&mut self.has_error) {
            self.tally.set_error(None);
        }
    }

    fn event(&self, text: String, repeats: &'static str) {
        self.triggers.metrics.events.record(NewEvent {
            tenant: Some(self.id.tenant.clone()),
            kind: EventKind::Fault,
            resource: EventResource::Trigger,
            name: self.id.name.to_string(),
            text,
            repeats: Some(repeats),
        });
    }

    async fn write(&mut self) {
        self.written_at = Instant::now();
        if let Err(error) = self.tally.write(&self.triggers, &self.id).await {
            tracing::warn!(%error, trigger = %self.id.name, "writing the state of a trigger failed, retrying");
        }
    }
}

/// Messages for one request.
#[derive(Default)]
struct Batch {
    messages: Vec<Message>,
    bytes: usize,
}

/// The event of a message: a CloudEvent if its headers have the attributes of one.
fn event(stream: &StreamPlan, message: &Message) -> Event {
    let source = &stream.source;
    let time = Timestamp::from_nanosecond(i128::from(message.stored_at_ns)).ok();
    let mut event = Event {
        id: message.sequence.to_string(),
        source: format!("{}/{}", source.url.trim_end_matches('/'), source.stream),
        kind: MESSAGE_TYPE.to_owned(),
        subject: Some(message.subject.clone()),
        time: time.map(|time| time.to_string()),
        content_type: message.headers.get("content-type").map(str::to_owned),
        data: message.payload.clone(),
        ..Event::default()
    };
    for (name, value) in &message.headers.values {
        let name = name.to_ascii_lowercase();
        if let Some(attribute) = name.strip_prefix("ce-") {
            // What is no attribute is left out.
            let _ = event.set(attribute, value);
        }
    }
    event
}

/// Whether the same request would be refused again: the request is at fault, not a missing function,
/// a full queue or the node.
fn is_lasting(code: ErrorCode) -> bool {
    let status = status(code);
    let may_pass =
        [StatusCode::NOT_FOUND, StatusCode::TOO_MANY_REQUESTS, StatusCode::CONFLICT, StatusCode::FORBIDDEN];
    status.is_client_error() && !may_pass.contains(&status)
}

#[cfg(test)]
mod tests;
