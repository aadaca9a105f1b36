//! JSON of a size that must not hold up other requests.

use super::error::ApiError;
use crate::node::NodeState;
use weir_types::ErrorCode;

/// JSON up to this size is read and written where it is; more goes to a thread that may block.
const BRIEF_BYTES: usize = 16 << 10;

impl NodeState {
    /// Do `work` on about `bytes` of JSON without holding up other requests for long: as many such at once as there are cores.
    pub(super) async fn json<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if bytes <= BRIEF_BYTES {
            return work();
        }
        let stopping = || ApiError::new(ErrorCode::Unavailable, "the node is shutting down; try another");
        let turn = self.json_turns.clone().acquire_owned().await.map_err(|_| stopping())?;
        // The turn goes along: a caller that gives up does not stop the work.
        let worked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        worked.await.map_err(|_| stopping())?
    }
}
