//! A client of etcd's gRPC API: requests with a time limit, fail-over between servers and
//! authentication.
//! A request goes to the current server. If that server fails, the client switches to the next one.
//! It sends the request again if etcd can apply it twice without harm, or if the failed server
//! never received it. A watch stays with its server until its stream breaks.

mod calls;
mod error;
pub(super) mod protocol;
mod servers;
mod session;
#[cfg(test)]
mod tests;
mod watch_stream;

pub(super) use calls::{AnswerRevision, EtcdCall};
pub(super) use error::ClientError;
pub(super) use watch_stream::WatchStream;

use super::EtcdAddress;
use servers::{EtcdServer, Servers};
use session::UserSession;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tonic::transport::ClientTlsConfig;

/// Time limit of a request, over all servers that the client tries.
pub(super) const REQUEST_TIME_MAX: Duration = Duration::from_secs(5);

type ClientResult<T, E = ClientError> = Result<T, E>;

/// A client of one etcd cluster. Cheap to clone.
#[derive(Clone)]
pub(super) struct EtcdClient {
    shared: Arc<ClientShared>,
}

struct ClientShared {
    servers: Servers,
    session: UserSession,
}

impl EtcdClient {
    /// Creates a client of the servers at `address`, starting with the first. Connects on the first
    /// request.
    pub(super) fn new(address: &EtcdAddress, tls: &ClientTlsConfig) -> ClientResult<Self> {
        let servers = Servers::new(&address.endpoints, tls)?;
        let session = UserSession::new(address.user.clone());
        Ok(Self { shared: Arc::new(ClientShared { servers, session }) })
    }

    /// Sends `request` and returns the answer of the first server that answers in time.
    pub(super) async fn call<C: EtcdCall>(&self, request: &C) -> ClientResult<C::Answer> {
        let servers = &self.shared.servers;
        let deadline = Instant::now() + REQUEST_TIME_MAX;
        // Tries every server, and then the first one again: a connection that broke while idle does
        // not mean that its server is down.
        for _ in 0..servers.len() {
            match self.attempt(request, &servers.current(), deadline).await {
                Err(error) if error.is_of_server() && C::RESEND.allows(&error) => {}
                answer => return answer,
            }
        }
        self.attempt(request, &servers.current(), deadline).await
    }

    /// Sends `request` to `server`. If `server` fails, the client switches to the next one.
    async fn attempt<C: EtcdCall>(
        &self,
        request: &C,
        server: &EtcdServer,
        deadline: Instant,
    ) -> ClientResult<C::Answer> {
        let ClientShared { servers, session } = &*self.shared;
        let answer = timeout_at(deadline, session.call(request, &server.channel)).await;
        let answer = answer.unwrap_or(Err(ClientError::Timeout));
        if let Err(error) = &answer
            && error.is_of_server()
        {
            tracing::debug!(server = server.url, %error, "etcd server failed");
            servers.leave(server);
        }
        answer
    }
}
