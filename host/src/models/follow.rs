//! Following what is pushed and deleted on other nodes.

use super::record::{self, id_of};
use super::{Models, ModelsError};
use crate::follow::{Follow, follow};
use std::sync::Arc;
use weir_datastore::{Change, Event, Prefix, Revision};

impl Models {
    /// Follow what is changed after `revision`, for as long as the future lives.
    pub(crate) fn follow(self: &Arc<Self>, revision: Revision) -> impl Future<Output = ()> + Send + 'static {
        follow(self.datastore.clone(), Follower(self.clone()), revision)
    }
}

struct Follower(Arc<Models>);

impl Follow for Follower {
    const WHAT: &'static str = "models";

    fn prefix(&self) -> Option<Prefix> {
        record::models().ok()
    }

    async fn apply(&self, change: Change) {
        for event in &change.events {
            let Some(id) = id_of(event.key()) else { continue };
            match event {
                Event::Put(entry) => self.0.take_in(&id, entry).await,
                Event::Delete(_) => self.0.deleted(&id, change.revision),
            }
        }
    }

    async fn load(&self) -> Result<Revision, weir_datastore::Error> {
        match self.0.read_all().await {
            Ok(revision) => Ok(revision),
            Err(ModelsError::Datastore(error)) => Err(error),
            Err(other) => Err(weir_datastore::Error::Unavailable { source: Arc::new(other) }),
        }
    }
}
