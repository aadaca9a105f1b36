//! Handling of large JSON without blocking other requests.

use super::error::ApiError;
use crate::NodeState;
use serde::de::DeserializeOwned;
use weir_types::{ErrorCode, JsonObject};

/// Size up to which JSON is read and written inline; larger JSON goes to a blocking thread.
const BRIEF_BYTES: usize = 16 << 10;

/// Reads a JSON body that must be an object.
pub(super) fn read_object<T: DeserializeOwned>(body: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(body).map(|JsonObject(read)| read)
}

impl NodeState {
    /// Runs `work` on about `bytes` of JSON without blocking other requests for long. At most
    /// `gateway.threads` large pieces of work run at once.
    pub(super) async fn json<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if bytes <= BRIEF_BYTES {
            return work();
        }
        let stopping = || ApiError::new(ErrorCode::Unavailable, "the node is shutting down; try another");
        let turn = self.permits.json.clone().acquire_owned().await.map_err(|_| stopping())?;
        // The thread holds the permit: a caller that gives up does not stop the work.
        let worked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        worked.await.map_err(|_| stopping())?
    }
}
