//! HTTP by hand, for requests that no client library would send.

use crate::Client;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Send `request` as it is, and read what comes until the node closes the connection: the status, and everything. A node that only closes
/// it has the status 0. The request should ask for the connection to be closed.
pub async fn raw(client: &Client, request: impl AsRef<[u8]>) -> (u16, String) {
    talk(client, request.as_ref(), false).await
}

/// The same with a request that ends too early: the sending side is closed behind it.
pub async fn raw_cut_off(client: &Client, request: impl AsRef<[u8]>) -> (u16, String) {
    talk(client, request.as_ref(), true).await
}

async fn talk(client: &Client, request: &[u8], cut_off: bool) -> (u16, String) {
    let mut stream = TcpStream::connect(client.address()).await.expect("the node does not listen");
    // The node may answer, and close, before it has read everything.
    let _ = stream.write_all(request).await;
    if cut_off {
        let _ = stream.shutdown().await;
    }
    let mut answer = Vec::new();
    let reading = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    assert!(reading.is_ok(), "the node neither answered nor closed the connection");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok()).unwrap_or(0);
    (status, answer)
}
