//! Connections to the servers of streams.

use super::reader::PULL_MAX;
use crate::Triggers;
use crate::plan::StreamPlan;
use crate::record::TriggerId;
use std::time::Duration;
use tokio::time::timeout;
use weir_nats::{ByteStream, Connection, Consumer, ConsumerSettings, Login, NatsError, Server};
use weir_types::api::StreamStart;

/// Time limits of a connection, and of the deletion of a consumer.
const CONNECT_MAX: Duration = Duration::from_secs(10);
const DELETE_MAX: Duration = Duration::from_secs(5);

pub(super) type Stream = Box<dyn ByteStream>;

/// Why reading stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("{0}")]
    Nats(#[from] NatsError),
    /// The connection could not be made.
    #[error("{0}")]
    Setup(String),
}

impl Triggers {
    /// Connects to the server, and creates or finds the consumer.
    pub(super) async fn consumer(
        &self,
        id: &TriggerId,
        stream: &StreamPlan,
    ) -> Result<Consumer<Stream>, ReadError> {
        let source = &stream.source;
        let connection = self.connect(id, stream).await?;
        let name = stream.consumer(id);
        let settings = ConsumerSettings {
            stream: &source.stream,
            name: &name,
            subject: source.subject.as_deref(),
            from_oldest: source.start == StreamStart::Oldest,
            unacknowledged_max: source.batch_max.max(PULL_MAX).saturating_mul(2),
            hold_max: stream.hold_max(),
        };
        let opened = match source.consumer {
            Some(_) => Consumer::bind(connection, settings).await,
            None => Consumer::create(connection, settings).await,
        };
        Ok(opened?)
    }

    async fn connect(&self, id: &TriggerId, stream: &StreamPlan) -> Result<Connection<Stream>, ReadError> {
        let StreamPlan { host, port, source, .. } = stream;
        let connector = &self.connector;
        let login = match &source.secret {
            Some(secret) => {
                let value = self.secrets.value(&id.tenant, secret).await;
                let value = value.map_err(|error| ReadError::Setup(error.to_string()))?;
                Login::parse(&value)
                    .map_err(|error| ReadError::Setup(format!("the secret {secret}: {error}")))?
            }
            None => Login::None,
        };
        let opened = timeout(CONNECT_MAX, connector.open(&id.tenant, host, *port)).await;
        let opened = opened.map_err(|_| ReadError::Setup(format!("{host}:{port} does not answer")))?;
        let opened =
            opened.map_err(|error| ReadError::Setup(format!("cannot connect to {host}:{port}: {error}")))?;
        let secure = |plain: Stream, server: Server| async move {
            if !server.tls_required && !stream.is_tls_required {
                return Ok(plain);
            }
            let secured = connector.secure(host, plain).await;
            Ok(Box::new(secured.map_err(|error| NatsError::Io(std::io::Error::other(error)))?) as Stream)
        };
        let bytes_max = self.config.message_bytes_max as usize;
        Ok(Connection::open(Box::new(opened) as Stream, bytes_max, &login, secure).await?)
    }

    /// Deletes the consumer that the node made for a trigger that was deleted or reads something else
    /// now. A server that is out of reach keeps it.
    pub(crate) async fn delete_consumer(&self, id: &TriggerId, stream: &StreamPlan) {
        if stream.source.consumer.is_some() {
            return;
        }
        let name = stream.consumer(id);
        let deleting = async {
            let connection = self.connect(id, stream).await?;
            Consumer::delete(connection, &stream.source.stream, &name).await?;
            Ok::<_, ReadError>(())
        };
        let ended = timeout(DELETE_MAX, deleting).await;
        let why = match ended {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the server does not answer".to_owned(),
        };
        let of = &stream.source.stream;
        self.event(
            id,
            format!("the consumer {name} of the stream {of} stays at its server: {why}"),
            "consumer",
        );
    }
}
