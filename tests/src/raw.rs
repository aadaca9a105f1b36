//! Raw HTTP requests that client libraries refuse to send.

use crate::TestClient;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Time limit for a response.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends `request` unchanged, and reads until the node closes the connection. Returns the status
/// and all bytes read; the status is 0 if there is no response. The request should ask to close the
/// connection.
pub async fn raw(client: &TestClient, request: impl AsRef<[u8]>) -> (u16, String) {
    talk(client, request.as_ref(), false).await
}

/// Like [`raw`] with a truncated request: the sending side is closed after it.
pub async fn raw_cut_off(client: &TestClient, request: impl AsRef<[u8]>) -> (u16, String) {
    talk(client, request.as_ref(), true).await
}

async fn talk(client: &TestClient, request: &[u8], cut_off: bool) -> (u16, String) {
    let mut stream = TcpStream::connect(client.address()).await.expect("the node does not listen");
    // The node may respond and close before it has read the whole request.
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
