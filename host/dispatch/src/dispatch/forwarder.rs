//! Forwards a call to the node that it is placed on, and decides on retries: a call that the node
//! refuses runs here, or is placed again if this node has no devices; a call whose node is lost is
//! placed again, once.

use super::admission::RemoteAdmission;
use super::job::InferenceJob;
use super::remote::EncodedInference;
use super::resendable::ResendableBody;
use super::{CallCtx, Dispatch, Target};
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_call::Fault;
use weir_call::until;
use weir_cluster::{ForwardGrant, ForwardedCall, GRACE, Granted, NotForwarded};
use weir_sandbox::instance::GuestRequestBody;
use weir_telemetry::{AttributeValue, SpanKind};
use weir_types::{ErrorCode, ModelId};

/// The pause before a call whose node was lost is placed again. Meanwhile, the dispatcher also
/// notices the loss.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Refusals after which a node without devices gives up a call. With the growing pauses between them,
/// the dispatcher learns within this time that a node has left.
const REFUSALS_MAX: u32 = 20;

/// Forwards one call, to one node after another if nodes fail to run it.
pub(super) struct Forwarder<'a> {
    dispatch: &'a Dispatch,
    request: ForwardRequest<'a>,
    /// The address of the node that last failed to run the call.
    lost_at: Option<Arc<str>>,
    /// The number of times that nodes have refused the call.
    refusals: u32,
}

/// The request to forward.
pub(super) enum ForwardRequest<'a> {
    /// A client's request, as received. The body stays in place where it can be sent again.
    Http {
        call: ForwardedCall<'a>,
        body: &'a mut Option<GuestRequestBody>,
        /// The body, if it is a stream that can be sent again while none of it was read.
        resendable: Option<ResendableBody>,
    },
    /// An inference, encoded when it is forwarded for the first time.
    Inference { job: &'a mut InferenceJob, encoded: Option<Box<EncodedInference>> },
}

impl<'a> Forwarder<'a> {
    pub(super) fn new(dispatch: &'a Dispatch, request: ForwardRequest<'a>) -> Self {
        Self { dispatch, request, lost_at: None, refusals: 0 }
    }

    /// Forwards the call and returns the other node's response; `None` if the call has to be placed
    /// again. `call.granted` is set if it has to run on this node. Drops the permits once the
    /// response has been sent.
    pub(super) async fn forward(
        &mut self,
        call: &mut CallCtx,
        target: &Target,
        RemoteAdmission { placement, permits }: RemoteAdmission,
    ) -> Result<Option<Response>, Fault> {
        let Some(cluster) = &self.dispatch.cluster else {
            return Err(Fault::new(ErrorCode::Unavailable, "the node has left its cluster; try again"));
        };
        // The placer still considers the node reachable although this node cannot reach it. If
        // possible, the call runs here.
        if self.dispatch.has_devices() && self.lost_at.as_ref() == Some(&placement.address) {
            let models = &placement.granted.models;
            let local = self.dispatch.grant_here(models.clone());
            if models.is_empty() || local.device.is_some() {
                call.granted = Some(local);
                return Ok(None);
            }
        }
        let step_ends_at = self.request.step_ends_at();
        let mut span = call.trace.child(SpanKind::Client, || "forward".into());
        span.set("server.address", || AttributeValue::Shared(placement.address.clone()));
        let (head, body) = self.request.parts(self.dispatch, call, target).await?;
        let head = ForwardedCall { span: Some(&span), ..head };
        let granted = Granted { origin: Some(self.dispatch.placements.node()), ..placement.granted.clone() };
        let grant = grant(call, target, granted, step_ends_at);
        let latest = call.deadline + GRACE;
        let forwarding = cluster.forward(&placement, &grant, &head, body, permits, latest);
        let Some(forwarded) = until(latest, forwarding).await else {
            span.failed(ErrorCode::DeadlineExceeded);
            let text = format!("the node at {} did not answer in time", placement.address);
            return Err(Fault::new(ErrorCode::DeadlineExceeded, text));
        };
        let error = match forwarded {
            Ok(response) => {
                self.dispatch.metrics.calls.forwarded.inc();
                return Ok(Some(response));
            }
            Err(error) => error,
        };
        span.failed(ErrorCode::NodeLost);
        drop(span);
        let is_first = self.lost_at.replace(placement.address.clone()).is_none();
        let text = format!("{error}; the node was {}", placement.address);
        match error {
            // The body was streamed, so part of it is already consumed.
            NotForwarded::Refused(_) if self.request.is_spent() => {
                return Err(Fault::new(ErrorCode::Unavailable, format!("{text}; try again")));
            }
            NotForwarded::Lost(_) if self.request.is_spent() || !is_first || !self.may_run_twice(target) => {
                return Err(Fault::new(ErrorCode::NodeLost, text));
            }
            _ => {}
        }
        tracing::warn!(why = text, "rescheduling a forwarded call");
        self.dispatch.metrics.calls.rescheduled.inc();
        let pause = match error {
            NotForwarded::Lost(_) => RETRY_AFTER,
            NotForwarded::Refused(_) if self.dispatch.has_devices() => {
                call.granted = Some(self.dispatch.grant_here(grant.granted.models));
                return Ok(None);
            }
            NotForwarded::Refused(_) => {
                self.refusals += 1;
                if self.refusals > REFUSALS_MAX {
                    let text = format!("{text}, and this node has no device; try again");
                    return Err(Fault::new(ErrorCode::Unavailable, text));
                }
                RETRY_AFTER * self.refusals
            }
        };
        // The next placement fails if the deadline passes meanwhile.
        tokio::time::sleep_until((Instant::now() + pause).min(call.deadline).into()).await;
        Ok(None)
    }

    /// Whether a second run of the call does no harm.
    fn may_run_twice(&self, target: &Target) -> bool {
        let is_safe = matches!(&self.request, ForwardRequest::Http { call, .. } if call.method.is_safe());
        is_safe
            || match target {
                Target::Function(function) => function.deployment().manifest.idempotent,
                // A model has no state between runs.
                Target::Model(_) => true,
                Target::Workflow(workflow) => self.dispatch.catalog.may_run_twice(workflow),
            }
    }
}

impl ForwardRequest<'_> {
    /// The head and the body to send. A streamed body can be sent once only. Encodes an inference
    /// that is not encoded yet.
    async fn parts(
        &mut self,
        dispatch: &Dispatch,
        call: &CallCtx,
        target: &Target,
    ) -> Result<(ForwardedCall<'_>, Body), Fault> {
        match self {
            Self::Http { call: ForwardedCall { method, uri, headers, .. }, body, resendable } => {
                let call = ForwardedCall { method, uri, headers, span: None };
                Ok((call, resendable.as_ref().map_or_else(|| body_to_send(body), ResendableBody::body)))
            }
            Self::Inference { job, encoded } => {
                let written = match encoded {
                    Some(written) => written,
                    none => none.insert(Box::new(encode(dispatch, call, target, job).await?)),
                };
                dispatch.metrics.intermediates.sent_bytes.inc_by(written.tensor_bytes());
                Ok((written.call(), Body::from(Bytes::from(written.body()))))
            }
        }
    }

    /// Whether the body cannot be sent again.
    fn is_spent(&self) -> bool {
        match self {
            Self::Http { resendable: Some(body), .. } => body.is_read(),
            Self::Http { body, .. } => body.is_none(),
            Self::Inference { .. } => false,
        }
    }

    /// For a step of a workflow, the time until which outputs that stay on another node are kept.
    fn step_ends_at(&self) -> Option<Instant> {
        match self {
            Self::Http { .. } => None,
            Self::Inference { job, .. } => job.step.as_ref().map(|step| step.until),
        }
    }
}

/// The body to send. A whole body stays in place, to be sent again; a streamed body is consumed.
fn body_to_send(body: &mut Option<GuestRequestBody>) -> Body {
    match body {
        Some(GuestRequestBody::Whole(whole)) => Body::from(Bytes::from(whole.clone())),
        Some(GuestRequestBody::WholeWithTrailers(whole, trailers)) => {
            GuestRequestBody::WholeWithTrailers(whole.clone(), trailers.clone()).into_body()
        }
        _ => body.take().map_or_else(Body::empty, GuestRequestBody::into_body),
    }
}

/// The terms of a call for the node that runs it.
fn grant(call: &CallCtx, target: &Target, granted: Granted, step_ends_at: Option<Instant>) -> ForwardGrant {
    let now = Instant::now();
    let in_ms =
        |until: Instant| u64::try_from(until.saturating_duration_since(now).as_millis()).unwrap_or(u64::MAX);
    ForwardGrant {
        invocation: call.id,
        tenant: target.tenant().clone(),
        version: target.version(),
        deadline_in_ms: in_ms(call.deadline),
        left_for_ms: in_ms(step_ends_at.unwrap_or(call.deadline)),
        is_step: step_ends_at.is_some(),
        chosen: call.models.as_ref().map(|models| models.chosen()).unwrap_or_default(),
        is_websocket: call.is_websocket,
        granted,
    }
}

/// Encodes an inference. Copies inputs in device memory to host memory.
async fn encode(
    dispatch: &Dispatch,
    call: &CallCtx,
    target: &Target,
    job: &mut InferenceJob,
) -> Result<EncodedInference, Fault> {
    job.inputs = dispatch.intermediates.off_devices(std::mem::take(&mut job.inputs)).await?;
    let what = (target.name(), target.version());
    let outputs = (job.wanted.as_deref(), job.handed_on());
    EncodedInference::new(&dispatch.arena.tenant(target.tenant()), what, call.priority, &job.inputs, outputs)
}

impl Dispatch {
    /// Whether this node may run calls. A node without devices only accepts them.
    pub(super) fn has_devices(&self) -> bool {
        !self.models.devices().is_empty()
    }

    /// A grant for a call that has to run on this node, on the device that suits its models.
    pub(super) fn grant_here(&self, models: Vec<ModelId>) -> Granted {
        let device = self.models.device_for(&models);
        self.placements.grant_here(models, device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, Method, Uri};
    use http_body_util::BodyExt;

    async fn text(body: Body) -> Bytes {
        body.collect().await.unwrap().to_bytes()
    }

    fn is_spent(body: &mut Option<GuestRequestBody>) -> bool {
        let method = Method::POST;
        let uri = Uri::from_static("/fn/f/");
        let headers = HeaderMap::new();
        let call = ForwardedCall { method: &method, uri: &uri, headers: &headers, span: None };
        ForwardRequest::Http { call, body, resendable: None }.is_spent()
    }

    #[tokio::test]
    async fn whole_body_can_be_sent_again() {
        let mut body = Some(GuestRequestBody::Whole(Bytes::from_static(b"abc").into()));
        for _ in 0..2 {
            assert_eq!(text(body_to_send(&mut body)).await, "abc");
            assert!(!is_spent(&mut body));
        }
    }

    #[tokio::test]
    async fn streamed_body_is_spent_once_sent() {
        let mut body = Some(GuestRequestBody::Stream(Body::from("abc")));
        assert!(!is_spent(&mut body));
        assert_eq!(text(body_to_send(&mut body)).await, "abc");
        assert!(is_spent(&mut body));
    }
}
