//! HTTP server on loopback that nodes call in tests.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Server that accepts one request per connection and records it. It ends on drop.
pub struct Receiver {
    address: SocketAddr,
    received: Arc<Mutex<Vec<ReceivedRequest>>>,
    serving: JoinHandle<()>,
}

/// Recorded request.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    /// Request line, such as `POST /path HTTP/1.1`.
    pub line: String,
    /// Headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// Request body.
    pub body: Bytes,
}

impl Receiver {
    /// Starts a server that returns these statuses in turn, then 200. A status of 0 leaves the
    /// request unanswered.
    pub async fn start(statuses: &[u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("the loopback interface has free ports");
        let address = listener.local_addr().expect("the listener has an address");
        let (received, mut statuses) =
            (Arc::<Mutex<Vec<ReceivedRequest>>>::default(), VecDeque::from(statuses.to_vec()));
        let into = received.clone();
        let serving = tokio::spawn(async move {
            let mut hung = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let Some(request) = read(&mut stream).await else { continue };
                into.lock().push(request);
                match statuses.pop_front().unwrap_or(200) {
                    0 => hung.push(stream),
                    status => {
                        let answer = format!(
                            "HTTP/1.1 {status} X\r\nlocation: http://{address}/redirected\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                        );
                        let _ = stream.write_all(answer.as_bytes()).await;
                    }
                }
            }
        });
        Self { address, received, serving }
    }

    /// `127.0.0.1:PORT`.
    #[must_use]
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// URL of `path` on the server.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Requests received so far.
    #[must_use]
    pub fn received(&self) -> Vec<ReceivedRequest> {
        self.received.lock().clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl ReceivedRequest {
    /// Value of a header, by its name in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(given, _)| given == name).map(|(_, value)| &**value)
    }
}

/// Reads a request with a declared body length.
async fn read(stream: &mut TcpStream) -> Option<ReceivedRequest> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let mut lines = head.split("\r\n");
    let line = lines.next()?.to_owned();
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(Ok(0), |(_, length)| length.parse::<usize>()).ok()?;
    while bytes.len() < head_end + 4 + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    Some(ReceivedRequest { line, headers, body: Bytes::from(bytes).slice(head_end + 4..) })
}
