//! Coalesces concurrent equal calls: the first call runs, the others wait for its response.
//!
//! moka can coalesce calls too, but panics on a key whose callers keep disconnecting, which clients
//! can cause.

use super::{CacheKey, StoredResponse};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use tokio::sync::watch;

type FlightTable = HashMap<CacheKey, watch::Receiver<Option<Landed>>>;

/// Calls that others may wait for; the number of calls bounds it. Cheap to clone.
#[derive(Default, Clone)]
pub(super) struct Flights(Arc<Mutex<FlightTable>>);

/// Outcome of a call that others wait for.
#[derive(Clone)]
pub(super) enum Landed {
    /// A response for the waiting calls too.
    Kept(StoredResponse),
    /// No response for the waiting calls: each of them runs.
    NotKept,
}

/// Role of a call among equal calls.
pub(super) enum FlightRole {
    /// This call runs, and others wait for it.
    Lead(Lead),
    /// Another call runs.
    Follow(Landing),
}

/// The running call. Dropped before `land`, it passes its turn to one of the waiting calls.
pub(super) struct Lead {
    key: CacheKey,
    flights: Flights,
    landed: watch::Sender<Option<Landed>>,
}

/// Wait of a call for the running one.
pub(super) struct Landing(watch::Receiver<Option<Landed>>);

impl Flights {
    pub(super) fn join(&self, key: CacheKey) -> FlightRole {
        match self.0.lock().entry(key) {
            Entry::Occupied(under_way) => FlightRole::Follow(Landing(under_way.get().clone())),
            Entry::Vacant(place) => {
                let (landed, landing) = watch::channel(None);
                place.insert(landing);
                FlightRole::Lead(Lead { key, flights: self.clone(), landed })
            }
        }
    }
}

impl Lead {
    /// Publishes the outcome to the waiting calls.
    pub(super) fn land(self, kept: Option<StoredResponse>) {
        self.landed.send_replace(Some(kept.map_or(Landed::NotKept, Landed::Kept)));
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        // This runs before the sender is dropped and wakes the waiting calls, so that the first of
        // them finds no call in progress.
        self.flights.0.lock().remove(&self.key);
    }
}

impl Landing {
    /// Waits for the running call; none if that call was dropped.
    pub(super) async fn landed(&mut self) -> Option<Landed> {
        let landed = self.0.wait_for(Option::is_some).await;
        landed.ok().and_then(|landed| landed.clone())
    }
}

#[cfg(test)]
impl Flights {
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}
