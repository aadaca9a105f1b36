//! Triggers for the messages of streams. The dispatcher runs one reader for each of them; a consumer
//! at the stream's server keeps the position, so that another node goes on where the last one ended.

mod reader;
mod server;
mod tally;

pub(crate) use tally::Tally;

use crate::index::KnownTrigger;
use crate::record::TriggerId;
use crate::{RequestSender, Triggers};
use parking_lot::Mutex;
use reader::Reader;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use weir_types::AsyncId;

/// Interval at which a node looks whether it is the dispatcher.
const LEADER_CHECK: Duration = Duration::from_secs(1);
/// Interval at which the states of triggers for events are written.
const WRITE: Duration = Duration::from_secs(1);

/// The invocations of a trigger that may not have ended. A reader leaves them to the next one.
type Running = Arc<Mutex<Vec<AsyncId>>>;

/// A reader in progress, or one that is about to end.
struct Reading {
    trigger: Arc<KnownTrigger>,
    stop: CancellationToken,
    running: Running,
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
        let writing = async {
            while stop.run_until_cancelled(tokio::time::sleep(WRITE)).await.is_some() {
                self.write_tallies().await;
            }
        };
        tokio::join!(self.run_readers(sender, leads, &stop), writing);
        self.write_tallies().await;
    }

    async fn run_readers(
        self: &Arc<Self>,
        sender: impl RequestSender,
        leads: impl Fn() -> bool + Send + 'static,
        stop: &CancellationToken,
    ) {
        let mut readings: HashMap<TriggerId, Reading> = HashMap::new();
        while !stop.is_cancelled() {
            let mut wanted = if leads() { self.known.lock().with_streams() } else { HashMap::new() };
            let mut left = HashMap::new();
            readings.retain(|id, reading| {
                let new = wanted.get(id);
                if new.is_none_or(|new| new.revision != reading.trigger.revision) {
                    reading.stop.cancel();
                }
                // One reader of a trigger ends before the next one starts.
                if !reading.task.is_finished() {
                    wanted.remove(id);
                    return true;
                }
                left.insert(id.clone(), reading.running.clone());
                false
            });
            for (id, trigger) in wanted {
                let running = left.remove(&id).unwrap_or_default();
                readings.insert(id.clone(), self.start_reading(&sender, id, trigger, running));
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.stream_news.notified() => {}
                () = tokio::time::sleep(LEADER_CHECK) => {}
            }
        }
        for reading in readings.values() {
            reading.stop.cancel();
        }
        for reading in readings.into_values() {
            let _ = reading.task.await;
        }
    }

    fn start_reading(
        self: &Arc<Self>,
        sender: &impl RequestSender,
        id: TriggerId,
        trigger: Arc<KnownTrigger>,
        running: Running,
    ) -> Reading {
        let stop = CancellationToken::new();
        let reader = Reader::new(self.clone(), sender.clone(), id, trigger.clone(), running.clone());
        let task = tokio::spawn(reader.run(stop.clone()));
        Reading { trigger, stop, running, task }
    }
}
