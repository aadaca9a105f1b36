//! Forwards a call to the node that it is placed on. If that node refuses the call, it runs here;
//! if that node is lost, the call is placed again.

use super::{Away, Dispatch};
use crate::cluster::wire::{Grant, Granted};
use crate::cluster::{Call, GRACE, NotForwarded};
use crate::instance::{Fault, RequestBody};
use crate::until::until;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use std::time::{Duration, Instant};
use weir_types::{ErrorCode, InvocationId, TenantId, Version};

/// The pause before a call whose node was lost is placed again: the dispatcher is about to learn of
/// the loss, too.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// A call that may be forwarded.
pub(crate) struct Passing<'a> {
    pub(crate) dispatch: &'a Dispatch,
    pub(crate) call: Call<'a>,
    pub(crate) id: InvocationId,
    pub(crate) tenant: &'a TenantId,
    /// The version of the function or model that is called.
    pub(crate) version: Version,
    pub(crate) deadline: Instant,
    /// The time until which the executing node keeps outputs that the call leaves there for other
    /// calls.
    pub(crate) left_until: Instant,
    /// Whether the call is a step of a workflow.
    pub(crate) is_step: bool,
    /// Whether a second run does no harm.
    pub(crate) may_run_twice: bool,
    /// The address of the node with which the call was lost before, if any.
    pub(crate) lost_at: Option<String>,
}

/// The outcome of forwarding a call.
pub(crate) enum Passed<T> {
    Answered(T),
    /// The call has to run on this node, with this grant.
    Here(Granted),
    /// The call has to be placed again.
    Again,
}

impl Passing<'_> {
    /// Forwards the call with `body`, which stays in place where it can be sent again. Drops `held`
    /// once the response has been sent.
    pub(crate) async fn on<Held: Send + 'static>(
        &mut self,
        away: &Away,
        held: Held,
        body: &mut Option<RequestBody>,
    ) -> Result<Passed<Response>, Fault> {
        let Some(cluster) = &self.dispatch.cluster else {
            return Err(Fault::new(ErrorCode::Unavailable, "the node has left its cluster; try again"));
        };
        // The placer still considers the node reachable although this node cannot reach it. If
        // possible, the call runs here.
        if self.lost_at.as_ref() == Some(&away.address) {
            let models = away.granted.models.clone();
            let device = self.dispatch.models.device_for(&models);
            if models.is_empty() || device.is_some() {
                return Ok(Passed::Here(self.dispatch.placements.grant_here(models, device)));
            }
        }
        let grant = self.grant(away);
        let sent = match body {
            Some(RequestBody::Whole(whole)) => Body::from(Bytes::from(whole.clone())),
            _ => body.take().map_or_else(Body::empty, RequestBody::into_body),
        };
        let latest = self.deadline + GRACE;
        let forwarded = cluster.forward(away, &grant, &self.call, sent, held, latest);
        let Some(forwarded) = until(latest, forwarded).await else {
            let text = format!("the node at {} did not answer in time", away.address);
            return Err(Fault::new(ErrorCode::DeadlineExceeded, text));
        };
        let error = match forwarded {
            Ok(response) => {
                self.dispatch.metrics.passed_on.inc();
                return Ok(Passed::Answered(response));
            }
            Err(error) => error,
        };
        let is_first = self.lost_at.replace(away.address.clone()).is_none();
        let text = format!("{error}; the node was {}", away.address);
        match error {
            // The body was streamed, so part of it is already consumed.
            NotForwarded::Refused(_) if body.is_none() => {
                return Err(Fault::new(ErrorCode::Unavailable, format!("{text}; try again")));
            }
            NotForwarded::Lost(_) if body.is_none() || !is_first || !self.may_run_twice => {
                return Err(Fault::new(ErrorCode::NodeLost, text));
            }
            _ => {}
        }
        tracing::warn!(why = text, "a call is placed once more");
        self.dispatch.metrics.placed_again.inc();
        if matches!(error, NotForwarded::Refused(_)) {
            let models = grant.granted.models;
            let device = self.dispatch.models.device_for(&models);
            return Ok(Passed::Here(self.dispatch.placements.grant_here(models, device)));
        }
        tokio::time::sleep(AGAIN_AFTER).await;
        Ok(Passed::Again)
    }

    /// The grant for the call to the node at the other end of `away`.
    fn grant(&self, away: &Away) -> Grant {
        let now = Instant::now();
        let in_ms = |until: Instant| {
            u64::try_from(until.saturating_duration_since(now).as_millis()).unwrap_or(u64::MAX)
        };
        Grant {
            invocation: self.id,
            tenant: self.tenant.clone(),
            version: self.version,
            deadline_in_ms: in_ms(self.deadline),
            left_for_ms: in_ms(self.left_until),
            is_step: self.is_step,
            granted: away.granted.clone(),
        }
    }
}
