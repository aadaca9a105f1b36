//! Logs of a function, to read and to follow.

use crate::Caller;
use crate::error::ApiError;
use crate::state::NodeExtractor;
use crate::versions::{find, parse_name};
use axum::Extension;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use weir_control::registry::FunctionParts;
use weir_types::ErrorCode;
use weir_types::api::LogLine;

/// Keep-alive interval of a follower: intermediaries keep the connection open, and the node notices
/// that a client has disconnected.
const QUIET: Duration = Duration::from_secs(15);

/// Query of `GET .../logs`.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LogQuery {
    lines: usize,
    follow: bool,
}

impl Default for LogQuery {
    fn default() -> Self {
        Self { lines: 100, follow: false }
    }
}

/// `GET /v1/functions/{name}/logs`, as newline-delimited JSON; readers skip empty lines. An empty line
/// separates the lines that exist from the new ones.
pub(crate) async fn logs(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    query: Result<Query<LogQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|error| {
        ApiError::new(ErrorCode::InvalidRequest, format!("{error}; takes lines=N and follow=true"))
    })?;
    let entry = find::<FunctionParts>(&node, &caller, &parse_name(&name)?)?;
    let (tail, news) = if query.follow {
        let (tail, news) = entry.shared.log.tail_and_follow(query.lines);
        (tail, Some(follow(news, node.shutdown.stopping.clone())))
    } else {
        (entry.shared.log.tail(query.lines), None)
    };
    // Deleting the function ends its log, and with it this response.
    drop(entry);
    let tail = stream::iter(tail.into_iter().map(|line| encode(&line)));
    let end = query.follow.then(|| Ok(Bytes::from_static(b"\n")));
    let body = Body::from_stream(tail.chain(stream::iter(end)).chain(stream::iter(news).flatten()));
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// Streams new lines until the log or the node ends, with an empty line after each [`QUIET`]
/// without a line.
fn follow(
    news: Receiver<LogLine>,
    stop: CancellationToken,
) -> impl Stream<Item = Result<Bytes, std::io::Error>> {
    stream::unfold((news, stop), async |(mut news, stop)| {
        let mut lost = 0;
        loop {
            let line = tokio::select! {
                line = tokio::time::timeout(QUIET, news.recv()) => line,
                () = stop.cancelled() => return None,
            };
            let piece = match line {
                Ok(Ok(line)) => after_loss(lost, &line),
                // The oldest lines still available come next.
                Ok(Err(RecvError::Lagged(more))) => {
                    lost += more;
                    continue;
                }
                Ok(Err(RecvError::Closed)) => return None,
                Err(_) => Ok(Bytes::from_static(b"\n")),
            };
            return Some((piece, (news, stop)));
        }
    })
}

/// Encodes `line`, after a note about the lines that the reader was too slow for.
fn after_loss(lost: u64, line: &LogLine) -> Result<Bytes, std::io::Error> {
    if lost == 0 {
        return encode(line);
    }
    let text = format!("{lost} lines are missing here: they came faster than they were read");
    let word = LogLine {
        stream: "weir".to_owned(),
        request_id: String::new(),
        text,
        version: line.version,
        ..*line
    };
    Ok([encode(&word)?, encode(line)?].concat().into())
}

fn encode(line: &LogLine) -> Result<Bytes, std::io::Error> {
    let mut json = serde_json::to_vec(line).map_err(std::io::Error::other)?;
    json.push(b'\n');
    Ok(json.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::broadcast::Sender;
    use tokio::time::Instant;
    use weir_types::Version;

    fn line(text: &str) -> LogLine {
        LogLine {
            at_ms: 7,
            version: Version(3),
            request_id: "r".into(),
            stream: "stdout".into(),
            text: text.into(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn quiet_log_sends_keep_alive_lines() {
        let sender = Sender::new(4);
        let stop = CancellationToken::new();
        let began = Instant::now();
        let mut news = Box::pin(follow(sender.subscribe(), stop.clone()));
        for quiet in 1..4 {
            assert_eq!(news.next().await.unwrap().unwrap(), "\n");
            assert_eq!(began.elapsed(), QUIET * quiet);
        }
        sender.send(line("news")).unwrap();
        assert_eq!(news.next().await.unwrap().unwrap(), encode(&line("news")).unwrap());
        stop.cancel();
        assert!(news.next().await.is_none());
    }

    #[tokio::test]
    async fn slow_follower_learns_how_many_lines_it_missed() {
        let sender = Sender::new(4);
        let mut news = Box::pin(follow(sender.subscribe(), CancellationToken::new()));
        for number in 0..10 {
            sender.send(line(&number.to_string())).unwrap();
        }
        drop(sender);
        let piece = news.next().await.unwrap().unwrap();
        let lines: Vec<LogLine> =
            piece.split(|byte| *byte == b'\n').filter_map(|json| serde_json::from_slice(json).ok()).collect();
        assert_eq!((lines[0].stream.as_str(), lines[0].version), ("weir", Version(3)));
        assert!(lines[0].text.starts_with("6 lines are missing"), "{}", lines[0].text);
        assert_eq!(lines[1], line("6"));
        assert_eq!(news.count().await, 3);
    }
}
