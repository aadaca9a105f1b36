//! Reads the messages of one trigger.

use super::Running;
use super::server::{ReadError, Stream};
use super::tally::Tally;
use crate::event::Event;
use crate::events::is_final;
use crate::index::KnownTrigger;
use crate::plan::StreamPlan;
use crate::record::TriggerId;
use crate::{RequestSender, Triggers};
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use weir_nats::{Acknowledgement, Consumer, Message, NatsError, Pulled};
use weir_types::api::TickOutcome;
use weir_types::{AsyncId, ErrorCode};

/// Messages that one pull asks for, at most, unless a batch has more.
pub(super) const PULL_MAX: u32 = 64;
/// Pauses after failures of the connection: the first and the longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Time of a connection after which the next failure counts as the first.
const STEADY: Duration = Duration::from_secs(60);
/// Time after which a message is delivered again whose request the node could not accept, and in
/// which the reader asks for no others.
const AGAIN: Duration = Duration::from_secs(5);
/// Interval at which a reader looks whether invocations have ended.
const ENDS: Duration = Duration::from_millis(20);
/// Interval at which the state of the trigger is written.
const WRITE: Duration = Duration::from_secs(1);
/// Type of the events of messages that are no CloudEvents.
const MESSAGE_TYPE: &str = "weir.nats.message";

/// The reader of one trigger.
pub(super) struct Reader<R> {
    triggers: Arc<Triggers>,
    sender: R,
    id: TriggerId,
    trigger: Arc<KnownTrigger>,
    running: Running,
    tally: Tally,
    written_at: Instant,
    /// Why no messages arrive. At first an empty text, which clears the error of an earlier reader.
    error: Option<String>,
    /// End of the pause after a refusal.
    not_before: Option<Instant>,
}

/// Result of a request.
enum Accepted {
    /// The acknowledgement of all its messages.
    Whole(Acknowledgement),
    /// The content is refused, now and later.
    Refused(String),
}

impl<R: RequestSender> Reader<R> {
    pub(super) fn new(
        triggers: Arc<Triggers>,
        sender: R,
        id: TriggerId,
        trigger: Arc<KnownTrigger>,
        running: Running,
    ) -> Self {
        Self {
            triggers,
            sender,
            id,
            trigger,
            running,
            tally: Tally::default(),
            written_at: Instant::now(),
            error: Some(String::new()),
            not_before: None,
        }
    }

    /// Reads until `stop`.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let trigger = self.trigger.clone();
        let Some(stream) = trigger.stream() else { return };
        let mut pause = RETRY.0;
        while !stop.is_cancelled() {
            let started_at = Instant::now();
            if let Err(error) = self.read(stream, &stop).await {
                self.report(&error.to_string());
            }
            self.write().await;
            if started_at.elapsed() > STEADY {
                pause = RETRY.0;
            }
            if stop.run_until_cancelled(sleep(pause)).await.is_none() {
                return;
            }
            pause = (pause * 2).min(RETRY.1);
        }
    }

    /// Pulls messages, and sends their requests, until `stop` or until the connection fails. Stops
    /// between messages, so that messages with stored invocations are acknowledged.
    async fn read(&mut self, stream: &StreamPlan, stop: &CancellationToken) -> Result<(), ReadError> {
        let connecting = self.triggers.consumer(&self.id, stream);
        let Some(consumer) = stop.run_until_cancelled(connecting).await else { return Ok(()) };
        let mut consumer = consumer?;
        self.clear_error();
        let mut batch = Batch::default();
        loop {
            let room = self.room(stream);
            if consumer.is_idle() && room > 0 {
                let messages =
                    if stream.source.batch_max == 1 { room.min(PULL_MAX) } else { stream.source.batch_max };
                consumer.pull(messages, stream.pull_wait()).await?;
            }
            let wake_at = if room == 0 { Instant::now() + ENDS } else { self.written_at + WRITE };
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                pulled = consumer.next() => match pulled? {
                    Pulled::Message(message) => self.take(&mut consumer, stream, &mut batch, message).await?,
                    Pulled::Ended => {}
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
    fn room(&self, stream: &StreamPlan) -> u32 {
        if self.not_before.is_some_and(|not_before| Instant::now() < not_before) {
            return 0;
        }
        let mut running = self.running.lock();
        running.retain(|id| self.triggers.invocations.is_unfinished(*id));
        stream.source.running_max.saturating_sub(u32::try_from(running.len()).unwrap_or(u32::MAX))
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
            self.refuse(format!(
                "message {} of the stream has {bytes} bytes, more than {bytes_max} (async.triggers.message_bytes_max), or headers of more than 16 KiB",
                message.sequence
            ));
            return consumer.acknowledge(&message, Acknowledgement::Never).await;
        }
        if batch.bytes + message.bytes() > bytes_max {
            self.send(consumer, stream, batch).await?;
        }
        if batch.messages.iter().any(|known| known.sequence == message.sequence) {
            return Ok(());
        }
        batch.bytes += message.bytes();
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
        if self.room(stream) == 0 {
            return acknowledge(consumer, &messages, Acknowledgement::Again(AGAIN)).await;
        }
        match self.accept(stream, &messages).await {
            Accepted::Whole(what) => acknowledge(consumer, &messages, what).await,
            // One message may be at fault; each of the others becomes a request.
            Accepted::Refused(_) if messages.len() > 1 => {
                for message in &messages {
                    let message = std::slice::from_ref(message);
                    let what = match self.accept(stream, message).await {
                        Accepted::Whole(what) => what,
                        Accepted::Refused(error) => self.give_up(message, &error),
                    };
                    acknowledge(consumer, message, what).await?;
                }
                Ok(())
            }
            Accepted::Refused(error) => {
                let what = self.give_up(&messages, &error);
                acknowledge(consumer, &messages, what).await
            }
        }
    }

    /// Has the request of messages accepted as an asynchronous invocation.
    async fn accept(&mut self, stream: &StreamPlan, messages: &[Message]) -> Accepted {
        let Ok(plan) = &self.trigger.plan else { return Accepted::Whole(Acknowledgement::Again(AGAIN)) };
        let events: Vec<_> = messages.iter().map(|message| event(stream, message)).collect();
        let keys = messages
            .iter()
            .map(|message| format!("{} {} {}", stream.source.stream, message.sequence, message.stored_at_ns));
        let request = plan.event_request(&self.id.name, self.trigger.record.created_at_ms, &events, keys);
        match self.sender.send(self.id.tenant.clone(), request).await {
            Ok(accepted) => {
                let mut running = self.running.lock();
                if !running.contains(&accepted.id) {
                    running.push(accepted.id);
                }
                drop(running);
                self.count(TickOutcome::Fired, Some(accepted.id), None);
                self.clear_error();
                Accepted::Whole(Acknowledgement::Done)
            }
            // The message was accepted before, with other settings of the trigger.
            Err(fault) if fault.code == ErrorCode::IdempotencyMismatch => {
                Accepted::Whole(Acknowledgement::Done)
            }
            Err(fault) if is_final(fault.code) => Accepted::Refused(fault.to_string()),
            Err(fault) => {
                self.report(&format!("the requests of messages are refused: {fault}"));
                self.not_before = Some(Instant::now() + AGAIN);
                Accepted::Whole(Acknowledgement::Again(AGAIN))
            }
        }
    }

    fn give_up(&mut self, messages: &[Message], error: &str) -> Acknowledgement {
        let position = messages.first().map_or(0, |message| message.sequence);
        self.refuse(format!("the request of message {position} was refused: {error}"));
        Acknowledgement::Never
    }

    fn count(&mut self, outcome: TickOutcome, invocation: Option<AsyncId>, error: Option<String>) {
        self.triggers.metrics.triggers.ticks(&self.id.tenant, outcome, 1);
        self.tally.add(outcome, invocation, error);
    }

    /// Records that a message is given up.
    fn refuse(&mut self, error: String) {
        tracing::debug!(tenant = %self.id.tenant, trigger = %self.id.name, error, "a message is given up");
        self.triggers.event(&self.id, error.clone(), "failed");
        self.count(TickOutcome::Failed, None, Some(error));
    }

    /// Records why no messages arrive.
    fn report(&mut self, error: &str) {
        if self.error.as_deref() == Some(error) {
            return;
        }
        tracing::warn!(tenant = %self.id.tenant, trigger = %self.id.name, error, "no messages arrive, retrying");
        self.triggers.event(&self.id, format!("no messages arrive: {error}"), "messages");
        self.tally.set_error(Some(error.to_owned()));
        self.error = Some(error.to_owned());
    }

    fn clear_error(&mut self) {
        if self.error.take().is_some() {
            self.tally.set_error(None);
        }
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
        if let Some(attribute) = name.strip_prefix("ce-") {
            // Headers that are no valid attributes are left out.
            let _ = event.set(attribute, value);
        }
    }
    event
}

async fn acknowledge(
    consumer: &mut Consumer<Stream>,
    messages: &[Message],
    what: Acknowledgement,
) -> Result<(), NatsError> {
    for message in messages {
        consumer.acknowledge(message, what).await?;
    }
    Ok(())
}
