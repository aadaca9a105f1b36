//! State of one connection, which its requests share.

use super::activity::{Activity, RequestInProgress};
use super::answer::poll_cut;
use super::progress::{StallTimer, WriteProgress};
use crate::answers::{AnswerBudget, Scopes};
use crate::websocket::{Session, SessionSlot};
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use std::fmt::Display;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use weir_call::body::BodyOverrun;
use weir_telemetry::CutCause;

/// State of one connection. Cheap to clone.
#[derive(Clone)]
pub(super) struct ConnectionState(Arc<ConnectionShared>);

struct ConnectionShared {
    activity: Activity,
    /// Bytes of all answers.
    progress: WriteProgress,
    /// Memory of answers that the client has not taken.
    answer_bytes: Gauge,
    /// The limit of time of the function that writes the current answer of HTTP/1.
    overrun: Mutex<Option<BodyOverrun>>,
    is_cut: AtomicBool,
    /// Set once the connection does not speak HTTP any more: the time after which a client is lost
    /// that acknowledges no bytes.
    lost_after: OnceLock<Duration>,
    /// The WebSocket that begins after the last response.
    session: Mutex<Option<(Box<Session>, Arc<Scopes>)>>,
}

/// Idle times after which a connection is closed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    /// Before the first request.
    pub(super) first: Duration,
    /// After a request.
    pub(super) later: Duration,
}

impl std::fmt::Debug for ConnectionState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionState").field("progress", &self.0.progress).finish_non_exhaustive()
    }
}

impl ConnectionState {
    pub(super) fn new() -> Self {
        Self(Arc::new(ConnectionShared {
            activity: Activity::new(),
            progress: WriteProgress::default(),
            answer_bytes: Gauge::default(),
            overrun: Mutex::default(),
            is_cut: AtomicBool::new(false),
            lost_after: OnceLock::new(),
            session: Mutex::default(),
        }))
    }

    /// Counts a request in progress until the returned value is dropped.
    pub(super) fn begin(&self) -> RequestInProgress {
        self.0.activity.begin()
    }

    /// Polls `serving` until the connection ends, is cut off, or has been idle for too long.
    pub(super) async fn supervise<E: Display>(
        &self,
        budget: &AnswerBudget,
        Timeouts { first, later }: Timeouts,
        serving: impl Future<Output = Result<(), E>>,
    ) {
        let mut timer = StallTimer::for_connection(budget.config());
        tokio::select! {
            biased;
            ended = serving => if let Err(error) = ended {
                tracing::debug!(%error, "connection ended with an error");
            },
            cause = poll_fn(|cx| self.poll_cut(&mut timer, cx)) => {
                tracing::debug!(?cause, "an answer was cut off: its connection is closed");
                budget.cut(cause);
            }
            () = self.0.activity.idle(first, later) => tracing::debug!("idle connection closed"),
        }
    }

    pub(super) fn progress(&self) -> &WriteProgress {
        &self.0.progress
    }

    /// Memory of answers that the client has not taken.
    pub(super) fn answer_bytes(&self) -> &Gauge {
        &self.0.answer_bytes
    }

    /// Sets the limit of time of the current answer of HTTP/1, which has one at a time.
    pub(super) fn set_overrun(&self, overrun: Option<BodyOverrun>) {
        *self.0.overrun.lock() = overrun;
    }

    /// Begins a WebSocket after the response, whose waiting messages count in `scopes`.
    pub(super) fn upgrade(&self, session: &SessionSlot, scopes: Arc<Scopes>) {
        let Some(session) = session.take() else { return };
        let _ = self.0.lost_after.set(session.idle_time());
        *self.0.session.lock() = Some((session, scopes));
    }

    /// The WebSocket that the connection has become.
    pub(super) fn take_session(&self) -> Option<(Box<Session>, Arc<Scopes>)> {
        self.0.session.lock().take()
    }

    /// Whether the connection does not speak HTTP any more.
    pub(super) fn is_upgraded(&self) -> bool {
        self.0.lost_after.get().is_some()
    }

    /// Time after which a client of an upgraded connection is lost that acknowledges no bytes.
    pub(super) fn lost_after(&self) -> Option<Duration> {
        self.0.lost_after.get().copied()
    }

    /// Is ready with the reason once the connection must be cut off.
    fn poll_cut(&self, timer: &mut StallTimer, cx: &mut Context<'_>) -> Poll<CutCause> {
        let cut = poll_cut(&self.0.progress, self.0.overrun.lock().as_ref(), timer, cx);
        if cut.is_ready() {
            self.cut();
        }
        cut
    }

    /// Marks the connection as cut off.
    pub(super) fn cut(&self) {
        self.0.is_cut.store(true, Ordering::Relaxed);
    }

    /// Whether the node has cut the connection off: the system must drop its unsent bytes too.
    pub(super) fn is_cut(&self) -> bool {
        self.0.is_cut.load(Ordering::Relaxed)
    }
}
