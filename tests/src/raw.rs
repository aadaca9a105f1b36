//! HTTP by hand, for requests that no client library would send.

use crate::Client;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Send `request` as it is, close the sending side, and read what comes until the node closes its side: the status, and everything.
/// A node that only closes has the status 0.
pub async fn raw(client: &Client, request: impl AsRef<[u8]>) -> (u16, String) {
    let mut stream = TcpStream::connect(client.address()).await.expect("the node does not listen");
    // The node may answer, and close, before it has read everything.
    let _ = stream.write_all(request.as_ref()).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let reading = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    assert!(reading.is_ok(), "the node neither answered nor closed the connection");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok()).unwrap_or(0);
    (status, answer)
}
