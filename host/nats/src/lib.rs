//! A client of NATS JetStream that pulls the messages of one durable consumer, over a connection
//! that the caller has made: the node decides which hosts a tenant may reach, and NATS's own client
//! makes its connections alone (decision 0097).
//!
//! Modules, from the bytes upward: `codec` parses and writes the [client protocol], within limits;
//! `headers` reads the headers of a message; `login` proves who the client is; `connection` sends
//! requests and receives messages; `consumer` creates, pulls, acknowledges and deletes with the
//! [JetStream API].
//!
//! [client protocol]: https://docs.nats.io/reference/reference-protocols/nats-protocol
//! [JetStream API]: https://docs.nats.io/reference/reference-protocols/nats_api_reference

mod codec;
pub use codec::{Codec, Frame, MessageFrame, ServerFrame};

mod headers;
pub use headers::MessageHeaders;

mod login;
pub use login::{Login, LoginError};

mod connection;
pub use connection::{ByteStream, Connection, Server};

mod consumer;
pub use consumer::{Acknowledgement, Consumer, ConsumerSettings, Message, Pulled};

/// Characters of the server's texts that are kept.
const TEXT_LEN_MAX: usize = 200;

/// Reason why a connection failed or a request was refused.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The server did not answer in time.
    #[error("the server did not answer within {0} s")]
    Timeout(u64),
    /// The server sent something that this client does not understand.
    #[error("the server does not follow the protocol: {0}")]
    Protocol(String),
    /// The server refused the client or a request.
    #[error("the server refused: {0}")]
    Refused(String),
    /// The login cannot be used.
    #[error(transparent)]
    Login(#[from] LoginError),
}

impl NatsError {
    fn refused(text: &str) -> Self {
        Self::Refused(printable(text))
    }

    fn protocol(text: &str) -> Self {
        Self::Protocol(printable(text))
    }
}

/// The start of a text of the server, without control characters.
fn printable(text: &str) -> String {
    text.chars().take(TEXT_LEN_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
