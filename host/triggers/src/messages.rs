//! Triggers for the messages of streams. The dispatcher runs one reader for each of them; a consumer
//! at the stream's server keeps the position, so that another node goes on where the last one ended.

mod reader;
mod tally;

pub(crate) use tally::Tally;

use crate::index::KnownTrigger;
use crate::record::TriggerId;
use crate::{RequestSender, Triggers};
use reader::Reader;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Interval at which a node looks whether it is the dispatcher.
const LEADER_CHECK: Duration = Duration::from_secs(1);

/// What a reader should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Read,
    /// Stop; another reader will go on.
    Stop,
    /// Stop, and delete the consumer that the node made.
    Delete,
}

/// A reader in progress.
struct Reading {
    trigger: Arc<KnownTrigger>,
    order: watch::Sender<Order>,
    task: JoinHandle<()>,
}

impl Triggers {
    /// Reads the messages of streams until `stop`, while `leads` returns true. Also writes the states of
    /// the triggers for events.
    pub async fn read_messages(
        self: Arc<Self>,
        sender: impl RequestSender,
        leads: impl Fn() -> bool + Send + 'static,
        stop: CancellationToken,
    ) {
        let mut readings: HashMap<TriggerId, Reading> = HashMap::new();
        while !stop.is_cancelled() {
            let is_leader = leads();
            let mut wanted = if is_leader { self.known.lock().with_streams() } else { HashMap::new() };
            let mut ended = HashMap::new();
            for (id, reading) in std::mem::take(&mut readings) {
                let new = wanted.get(&id);
                if new.is_some_and(|new| new.revision == reading.trigger.revision) {
                    wanted.remove(&id);
                    readings.insert(id, reading);
                    continue;
                }
                let is_kept = !is_leader || self.known.lock().keeps_consumer(&id, &reading.trigger);
                reading.order.send_replace(if is_kept { Order::Stop } else { Order::Delete });
                ended.insert(id, reading.task);
            }
            for (id, trigger) in wanted {
                let before = ended.remove(&id);
                readings.insert(id.clone(), self.start_reading(&sender, id, trigger, before));
            }
            self.write_tallies().await;
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.stream_news.notified() => {}
                () = tokio::time::sleep(LEADER_CHECK) => {}
            }
        }
        for reading in readings.values() {
            reading.order.send_replace(Order::Stop);
        }
        for reading in readings.into_values() {
            let _ = reading.task.await;
        }
        self.write_tallies().await;
    }

    /// Starts a reader, which waits for the end of the one `before`.
    fn start_reading(
        self: &Arc<Self>,
        sender: &impl RequestSender,
        id: TriggerId,
        trigger: Arc<KnownTrigger>,
        before: Option<JoinHandle<()>>,
    ) -> Reading {
        let order = watch::Sender::new(Order::Read);
        let reader = Reader::new(self.clone(), sender.clone(), id, trigger.clone(), order.subscribe());
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                let _ = before.await;
            }
            reader.run().await;
        });
        Reading { trigger, order, task }
    }
}
