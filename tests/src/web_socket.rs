//! WebSocket client of a node.

use crate::TestClient;
use futures::{SinkExt as _, StreamExt as _};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue, Request, Response};
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::{Bytes, Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

/// Time limit for a message.
const PATIENCE: Duration = Duration::from_secs(30);

/// An open WebSocket.
pub struct WebSocket {
    stream: WebSocketStream<TcpStream>,
    /// The response to the handshake.
    pub response: Response<()>,
}

/// The response of a node that refuses a handshake.
#[derive(Debug)]
pub struct RefusedHandshake {
    /// The status.
    pub status: u16,
    /// The part of the body that arrived with the head: all of it, of an error of the node.
    pub text: String,
    /// The value of `sec-websocket-version`.
    pub version: Option<String>,
}

impl TestClient {
    /// Opens a WebSocket.
    pub async fn web_socket(&self, path: &str) -> WebSocket {
        let opened = self.try_web_socket(path, &[]).await;
        opened.unwrap_or_else(|refused| panic!("{path}: {refused:?}"))
    }

    /// Opens a WebSocket with further headers, which replace those of the handshake.
    pub async fn try_web_socket(
        &self,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<WebSocket, RefusedHandshake> {
        let mut request = format!("ws://{}{path}", self.address()).into_client_request().unwrap();
        if let Some(token) = self.token() {
            set(&mut request, "authorization", &format!("Bearer {token}"));
        }
        for (name, value) in headers {
            set(&mut request, name, value);
        }
        let stream = TcpStream::connect(self.address()).await.expect("the node does not listen");
        let opened = tokio::time::timeout(PATIENCE, client_async(request, stream)).await;
        match opened.expect("the node did not answer the handshake") {
            Ok((stream, response)) => Ok(WebSocket { stream, response: response.map(|_| ()) }),
            Err(Error::Http(response)) => {
                let header = response.headers().get("sec-websocket-version");
                let version = header.map(|version| version.to_str().unwrap().to_owned());
                let text = response.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default();
                Err(RefusedHandshake { status: response.status().as_u16(), text: text.into_owned(), version })
            }
            Err(error) => panic!("{path}: {error}"),
        }
    }
}

impl WebSocket {
    /// The subprotocol that the node chose.
    #[must_use]
    pub fn protocol(&self) -> Option<&str> {
        self.response.headers().get("sec-websocket-protocol")?.to_str().ok()
    }

    /// Sends a message.
    pub async fn send(&mut self, message: impl Into<Message>) {
        self.try_send(message.into()).await.expect("the message could not be sent");
    }

    /// Sends a message to a node that may have closed the WebSocket.
    pub async fn try_send(&mut self, message: Message) -> Result<(), Error> {
        self.stream.send(message).await
    }

    /// Sends a frame as it is, for example a part of a message.
    pub async fn send_frame(&mut self, frame: Frame) {
        self.send(Message::Frame(frame)).await;
    }

    /// Receives a message or a control frame.
    pub async fn receive(&mut self) -> Message {
        let received = tokio::time::timeout(PATIENCE, self.stream.next()).await;
        received.expect("nothing was received").expect("the connection ended").expect("it is broken")
    }

    /// Receives a text message.
    pub async fn text(&mut self) -> String {
        let message = self.receive().await;
        assert!(message.is_text(), "{message:?}");
        message.into_text().unwrap().to_string()
    }

    /// Receives a binary message.
    pub async fn bytes(&mut self) -> Bytes {
        let message = self.receive().await;
        assert!(message.is_binary(), "{message:?}");
        message.into_data()
    }

    /// Receives the close, and answers it. Returns its code and reason; the code is 1006 if the
    /// connection ends without a close.
    pub async fn closed(&mut self) -> (u16, String) {
        let closed = tokio::time::timeout(PATIENCE, async {
            let mut close = (1006, String::new());
            while let Some(Ok(message)) = self.stream.next().await {
                if let Message::Close(frame) = message {
                    close = frame
                        .map_or((1005, String::new()), |frame| (frame.code.into(), frame.reason.to_string()));
                }
            }
            close
        });
        closed.await.expect("the node did not close the WebSocket")
    }
}

fn set(request: &mut Request<()>, name: &'static str, value: &str) {
    request.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
}
