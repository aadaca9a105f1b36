//! Passing a call on to the node that is to run it, and to another where that one does not take it or is lost with it.

use super::error::ApiError;
use crate::cluster::wire::Grant;
use crate::cluster::{Call, NotForwarded};
use crate::dispatch::Away;
use crate::instance::RequestBody;
use crate::node::NodeState;
use crate::until::until;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use std::time::{Duration, Instant};
use weir_types::{ErrorCode, InvocationId, TenantId, Version};

/// Nodes that a call is placed on, one after the other.
const PLACES_MAX: usize = 4;
/// The pause before a call is placed once more: the dispatcher is about to hear what was found out here.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// How much longer than the deadline another node may take to say that it has passed.
const GRACE: Duration = Duration::from_secs(1);

/// A call that may run elsewhere.
pub(super) struct Passing<'a> {
    pub(super) node: &'a NodeState,
    pub(super) call: Call<'a>,
    pub(super) id: InvocationId,
    pub(super) tenant: &'a TenantId,
    /// Which version of the function or model it is about.
    pub(super) version: Version,
    pub(super) deadline: Instant,
    /// Whether running it a second time does no harm.
    pub(super) may_run_twice: bool,
    pub(super) tries: Tries,
}

/// What was tried already.
#[derive(Default)]
pub(super) struct Tries {
    places: usize,
    was_lost: bool,
}

impl Passing<'_> {
    /// Pass the call on with `body`, which is left where it can be sent again. None if it is to be placed once more. `held` is let go of
    /// when the answer has gone out.
    pub(super) async fn on<Held: Send + Unpin + 'static>(
        &mut self,
        away: &Away,
        held: Held,
        body: &mut Option<RequestBody>,
    ) -> Result<Option<Response>, ApiError> {
        let Some(cluster) = &self.node.cluster else {
            return Err(ApiError::new(ErrorCode::Unavailable, "the node has left its cluster; try again"));
        };
        let grant = self.grant(away);
        let sent = match body {
            Some(RequestBody::Whole(whole)) => Body::from(Bytes::from(whole.clone())),
            _ => body.take().map_or_else(Body::empty, RequestBody::into_body),
        };
        let forwarded = cluster.forward(away, &grant, &self.call, sent, held);
        let Some(forwarded) = until(self.deadline + GRACE, forwarded).await else {
            let text = format!("the node at {} did not answer in time", away.address);
            return Err(ApiError::new(ErrorCode::DeadlineExceeded, text));
        };
        let error = match forwarded {
            Ok(response) => {
                self.node.metrics.passed_on.inc();
                return Ok(Some(response));
            }
            Err(error) => error,
        };
        self.tries.places += 1;
        let may_go_on = match &error {
            NotForwarded::Refused(_) => true,
            NotForwarded::Lost(_) => !std::mem::replace(&mut self.tries.was_lost, true) && self.may_run_twice,
        };
        if !may_go_on || self.tries.places == PLACES_MAX || body.is_none() {
            let text = format!("{error}; the node was {}", away.address);
            return Err(ApiError::new(ErrorCode::NodeLost, text));
        }
        tracing::warn!(address = away.address, %error, "a call is placed once more");
        self.node.metrics.placed_again.inc();
        tokio::time::sleep(AGAIN_AFTER).await;
        Ok(None)
    }

    /// What the node at the other end of `away` may do for the call.
    fn grant(&self, away: &Away) -> Grant {
        let left = self.deadline.saturating_duration_since(Instant::now());
        Grant {
            invocation: self.id,
            tenant: self.tenant.clone(),
            version: self.version,
            deadline_in_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            models: away.models.clone(),
            evict: away.evict.clone(),
        }
    }
}
