//! `POST /v1/models/{name}/profile`: measures a model, and streams the progress.

use crate::Caller;
use crate::body::small;
use crate::error::ApiError;
use crate::json::read_object;
use crate::request_id::RequestId;
use crate::state::NodeExtractor;
use crate::versions::parse_name;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{Stream, stream};
use http::header::CONTENT_TYPE;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use weir_call::Objective;
use weir_dispatch::profiling::{Profiling, ProfilingPlan, ProfilingPlanError, ProfilingResources, TIME_MAX};
use weir_dispatch::{CallCtx, ModelTarget};
use weir_inference::{GeneratedInputs, InputsError, PRIORITY_DEFAULT};
use weir_telemetry::Trace;
use weir_types::ErrorCode;
use weir_types::api::{ProfileEvent, ProfileRequest};

/// Size limit of the request body.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Events buffered for a slow reader. The measurement pauses while the buffer is full.
const EVENTS_MAX: usize = 16;
/// Keep-alive interval. The node notices within this time that a client has disconnected.
const QUIET: Duration = Duration::from_secs(1);

/// `POST /v1/models/{name}/profile`, answered with newline-delimited JSON; readers skip empty
/// lines.
pub(crate) async fn profile(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let name = parse_name(&name)?;
    let body = small(request.into_body(), BODY_BYTES_MAX).await?;
    let request: ProfileRequest = if body.is_empty() {
        ProfileRequest::default()
    } else {
        read_object(&body).map_err(|error| {
            ApiError::new(ErrorCode::InvalidRequest, format!("the body cannot be used: {error}"))
        })?
    };
    let entry = node.models.get(&caller.tenant, &name, request.version)?;
    let place = node.permits.profiling.clone().try_acquire_owned().map_err(|_| {
        let text = "a model is being profiled on this node already, and a second profile would distort both; try again when it has ended";
        ApiError::new(ErrorCode::QueueFull, text)
    })?;
    let arrived = Instant::now();
    let latest = arrived + TIME_MAX;
    let mut call = CallCtx {
        id: id.invocation,
        request_id: id.shared(),
        objective: Objective::default(),
        trace: Trace::none(),
        arrived,
        deadline: latest,
        priority: PRIORITY_DEFAULT,
        depth: 0,
        inputs: Vec::new(),
        models: None,
        granted: None,
        is_websocket: false,
    };
    let model = ModelTarget { entry: entry.clone(), meter: None, is_measured: true };
    let ready = node.dispatch.load_here(&mut call, model).await?;
    let cache = &ready.device().cache;
    let takes_batches = ready.pin().signature().has_batch_dimension();
    let slots = u32::try_from(cache.slots()).unwrap_or(u32::MAX);
    let room = ProfilingResources { threads_max: cache.threads_max(), slots, takes_batches };
    let plan = ProfilingPlan::for_request(&request, &room)?;
    let mask = entry.record.manifest.batching.mask.as_deref();
    let batch_max = plan.configurations.iter().map(|one| one.batch).max().unwrap_or(1);
    let inputs = GeneratedInputs::new(ready.pin().signature(), mask, request.dims, batch_max)?;
    let profiling = Profiling {
        models: node.models.clone(),
        arena: node.arena.tenant(&entry.source.id().tenant),
        inputs: inputs.into(),
        entry,
        plan,
        ready,
        latest,
        place,
    };
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let measuring = AbortOnDropHandle::new(tokio::spawn(profiling.run(sender)));
    let body = Body::from_stream(lines(events, measuring, node.shutdown.stopping.clone()));
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// Streams each event as a line, with an empty line after each [`QUIET`] without an event. Dropping
/// the stream stops the measurement.
fn lines(
    events: mpsc::Receiver<ProfileEvent>,
    measuring: AbortOnDropHandle<()>,
    stop: CancellationToken,
) -> impl Stream<Item = Result<Bytes, std::io::Error>> {
    stream::unfold(Some((events, measuring, stop)), async |under_way| {
        let (mut events, measuring, stop) = under_way?;
        let event = tokio::select! {
            event = tokio::time::timeout(QUIET, events.recv()) => event,
            () = stop.cancelled() => {
                let error = "the node is shutting down; nothing was kept".to_owned();
                return Some((line(&ProfileEvent::Failed { error, code: ErrorCode::Unavailable }), None));
            }
        };
        match event {
            Err(_) => Some((Ok(Bytes::from_static(b"\n")), Some((events, measuring, stop)))),
            Ok(Some(event)) => Some((line(&event), Some((events, measuring, stop)))),
            Ok(None) => None,
        }
    })
}

fn line(event: &ProfileEvent) -> Result<Bytes, std::io::Error> {
    let mut json = serde_json::to_vec(event).map_err(std::io::Error::other)?;
    json.push(b'\n');
    Ok(json.into())
}

impl From<ProfilingPlanError> for ApiError {
    fn from(error: ProfilingPlanError) -> Self {
        let code = match &error {
            ProfilingPlanError::Bounds { .. } | ProfilingPlanError::NoRoom(_) => ErrorCode::InvalidRequest,
            ProfilingPlanError::TooMany(_) | ProfilingPlanError::TooLong { .. } => ErrorCode::LimitOverCap,
        };
        Self::new(code, error.to_string())
    }
}

impl From<InputsError> for ApiError {
    fn from(error: InputsError) -> Self {
        Self::new(ErrorCode::InvalidRequest, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn profile_stream_sends_keep_alives_and_stops_on_disconnect() {
        let ((sender, events), stop) = (mpsc::channel(1), CancellationToken::new());
        let held = sender.clone();
        let measuring = AbortOnDropHandle::new(tokio::spawn(async move {
            let _held = held;
            std::future::pending::<()>().await;
        }));
        let mut lines = Box::pin(lines(events, measuring, stop));
        let began = Instant::now();
        assert_eq!(lines.next().await.unwrap().unwrap(), "\n");
        assert_eq!(began.elapsed(), QUIET);
        let done = ProfileEvent::Done { measured: 3, incomplete: None };
        sender.send(done).await.unwrap();
        assert_eq!(lines.next().await.unwrap().unwrap(), "{\"event\":\"done\",\"measured\":3}\n");
        drop(lines);
        sender.closed().await;
    }

    #[tokio::test]
    async fn shutdown_ends_the_profile_stream_with_an_error() {
        let ((_sender, events), stop) = (mpsc::channel(1), CancellationToken::new());
        let measuring = AbortOnDropHandle::new(tokio::spawn(std::future::pending()));
        let mut lines = Box::pin(lines(events, measuring, stop.clone()));
        stop.cancel();
        let last = lines.next().await.unwrap().unwrap();
        let last: ProfileEvent = serde_json::from_slice(&last).unwrap();
        assert!(matches!(last, ProfileEvent::Failed { code: ErrorCode::Unavailable, .. }), "{last:?}");
        assert!(lines.next().await.is_none());
    }
}
