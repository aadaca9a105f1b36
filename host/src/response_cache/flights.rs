//! Equal calls under way: the first of them runs, the others wait for what it gives.
//!
//! moka has this too, but gives up with a panic on a key whose callers keep going away, which clients can bring about.

use super::{Kept, Key};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

type Table = HashMap<Key, watch::Receiver<Option<Landed>>>;

/// The calls that others may wait for: at most as many as there are calls. Cheap to clone.
#[derive(Default, Clone)]
pub(super) struct Flights(Arc<Mutex<Table>>);

/// What has come of a call that others wait for.
#[derive(Clone)]
pub(super) enum Landed {
    /// An answer that is theirs too.
    Kept(Kept),
    /// Nothing for them: each has to run.
    NotKept,
}

/// Who runs.
pub(super) enum Turn {
    /// The caller, and others wait for it.
    Lead(Lead),
    /// Another.
    Follow(Landing),
}

/// The one that runs. Dropped before it has landed, it leaves its turn to one of those that wait.
pub(super) struct Lead {
    key: Key,
    flights: Flights,
    landed: watch::Sender<Option<Landed>>,
}

/// Where one that does not run waits.
pub(super) struct Landing(watch::Receiver<Option<Landed>>);

impl Flights {
    pub(super) fn join(&self, key: Key) -> Turn {
        match self.lock().entry(key) {
            Entry::Occupied(under_way) => Turn::Follow(Landing(under_way.get().clone())),
            Entry::Vacant(place) => {
                let (landed, landing) = watch::channel(None);
                place.insert(landing);
                Turn::Lead(Lead { key, flights: self.clone(), landed })
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lead {
    /// Tell those that wait.
    pub(super) fn land(self, kept: Option<Kept>) {
        self.landed.send_replace(Some(kept.map_or(Landed::NotKept, Landed::Kept)));
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        // Before the sender goes, and with it the wait of the others: the first that looks finds nobody under way.
        self.flights.lock().remove(&self.key);
    }
}

impl Landing {
    /// Wait for the one that runs; none if it has gone.
    pub(super) async fn landed(&mut self) -> Option<Landed> {
        let landed = self.0.wait_for(Option::is_some).await;
        landed.ok().and_then(|landed| landed.clone())
    }
}

#[cfg(test)]
impl Flights {
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}
