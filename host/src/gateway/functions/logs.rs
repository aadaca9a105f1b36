//! What a function wrote, to read and to follow.

use super::{Node, find, parse_name};
use crate::gateway::Caller;
use crate::gateway::error::ApiError;
use axum::Extension;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;
use weir_types::ErrorCode;
use weir_types::api::LogLine;

/// What `GET .../logs` takes.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::gateway) struct LogQuery {
    lines: usize,
    follow: bool,
}

impl Default for LogQuery {
    fn default() -> Self {
        Self { lines: 100, follow: false }
    }
}

/// `GET /v1/functions/{name}/logs`, as newline-delimited JSON.
pub(in crate::gateway) async fn logs(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    query: Result<Query<LogQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|error| {
        ApiError::new(ErrorCode::InvalidRequest, format!("{error}; takes lines=N and follow=true"))
    })?;
    let entry = find(&node, &caller, &parse_name(&name)?)?;
    let (tail, news) = entry.log.tail_and_follow(query.lines);
    drop(entry);
    let tail = stream::iter(tail.into_iter().map(|line| encode(&line)));
    let body = if query.follow {
        let news = stream::unfold((news, node.stopping.clone()), async |(mut news, stop)| {
            loop {
                let line = tokio::select! {
                    line = news.recv() => line,
                    () = stop.cancelled() => return None,
                };
                match line {
                    Ok(line) => return Some((encode(&line), (news, stop))),
                    // The reader was too slow and lost lines; it goes on with the oldest there are.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                }
            }
        });
        Body::from_stream(tail.chain(news))
    } else {
        Body::from_stream(tail)
    };
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

fn encode(line: &LogLine) -> Result<Bytes, std::io::Error> {
    let mut json = serde_json::to_vec(line).map_err(std::io::Error::other)?;
    json.push(b'\n');
    Ok(json.into())
}
