//! WebSockets of functions (RFC 6455).
//!
//! The node speaks the protocol with the client: the opening handshake (`handshake.rs`), control
//! frames, fragments, limits and the closing handshake (`session.rs`). The function sees one call.
//! The body of its request has the messages of the client, and the body of its response has its own
//! messages, as records (`records.rs`, `docs/reference/protocols.md`). Therefore, calls over a
//! WebSocket are placed, forwarded, limited and measured like others.

mod frames;
mod handshake;
mod incoming;
mod outgoing;
mod records;
mod session;
mod socket;
mod stopping;
mod token;

pub(crate) use handshake::Offer;
pub(crate) use session::{Session, SessionSlot};
pub(crate) use stopping::{end_answer, end_messages};
pub(crate) use token::lift_token;

use crate::NodeState;
use crate::error::ApiError;
use crate::invoke::{self, CallTarget};
use crate::request_id::RequestId;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use incoming::MessageBody;
use session::SessionTerms;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_call::until;
use weir_call::websocket::is_accepted;
use weir_control::registry::DeployedFunction;
use weir_dispatch::deadline;
use weir_sandbox::instance::OutputSink;
use weir_types::{ErrorCode, FunctionKind, Limits};

/// Request extension: the client has no token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Anonymous;

/// Request extension: the call offers a WebSocket. If the function accepts, the call has its own limit
/// of time, and no limit on the size of its bodies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OverWebSocket;

/// Time of a call over a WebSocket. The function has a moment to end after the WebSocket was closed.
pub(crate) fn time_ms_max(node: &NodeState, limits: &Limits) -> u64 {
    limits.websocket_ms.saturating_add(node.config.sandbox.websockets.close_ms.saturating_mul(3))
}

/// Calls the function, and answers the opening handshake. The response of a function that accepts
/// has the session, which begins once the connection is upgraded.
pub(crate) async fn open(
    node: &NodeState,
    deployment: Arc<DeployedFunction>,
    target: CallTarget,
    request: Request,
    offer: Offer,
    id: &RequestId,
) -> Result<Response, ApiError> {
    // Tensor functions have no WebSockets: their error explains how they are called.
    if deployment.record.kind == FunctionKind::Tensor {
        return invoke::run(node, deployment, None, target, request, id).await;
    }
    let limits = &deployment.manifest.limits;
    let arrived = Instant::now();
    let tenant = &deployment.id.tenant;
    let (mut head, _) = request.into_parts();
    let is_anonymous = head.extensions.remove::<Anonymous>().is_some();
    let permit = node.permits.websockets.take(tenant, is_anonymous)?;
    offer.rewrite(&mut head);
    let (messages, body) = MessageBody::channel(node.arena.tenant(tenant));
    let request = Request::from_parts(head, Body::new(body));
    // Boxed: other calls do not contain this future.
    let calling = Box::pin(invoke::run(node, deployment.clone(), None, target, request, id));
    let answered = until(deadline(arrived, limits.deadline_ms), calling).await;
    let response = answered.unwrap_or_else(|| {
        let text = format!(
            "the function did not answer the handshake of the WebSocket within {} ms (limits.deadline_ms)",
            limits.deadline_ms
        );
        Err(ApiError::new(ErrorCode::DeadlineExceeded, text))
    })?;
    if !is_accepted(response.status(), response.headers()) {
        return Ok(response);
    }
    let (head, guest) = response.into_parts();
    let mut accepted = offer.accept(head)?;
    let log = OutputSink::new(deployment.log.clone(), deployment.id.version, id.shared(), 0);
    let answers = &node.config.gateway.answers;
    let terms = SessionTerms {
        config: node.config.sandbox.websockets.clone(),
        stall: Duration::from_millis(answers.stall_ms),
        stall_bytes_min: (answers.bytes_per_s_min.saturating_mul(answers.stall_ms) / 1_000).max(1),
        drain: Duration::from_millis(node.config.gateway.drain_timeout_ms),
        ends_at: deadline(arrived, limits.websocket_ms),
        stopping: node.shutdown.stopping.clone(),
        metrics: node.metrics.clone(),
        log,
    };
    let session = Session::new(offer.into_upgrade(), guest, messages, terms, permit);
    accepted.extensions_mut().insert(SessionSlot::new(session));
    Ok(accepted)
}
