//! Authentication: the token that etcd issues for a user's password, and the headers of every
//! request.

use super::protocol::AuthenticateRequest;
use super::protocol::auth_client::AuthClient;
use super::{Call, ClientError, Result};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;
use tonic::metadata::AsciiMetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

type Token = AsciiMetadataValue;

/// A server, with the headers that requests to it carry.
pub(in crate::etcd) type Connection = InterceptedService<Channel, Headers>;

/// The headers of a request.
#[derive(Clone)]
pub(in crate::etcd) struct Headers {
    token: Option<Token>,
}

/// A user's session, which outlives the tokens that etcd issues for it. A session without a user
/// has no token.
pub(super) struct Session {
    /// Name and password.
    user: Option<(String, String)>,
    token: Mutex<Option<Token>>,
    /// One authentication at a time: etcd spends about a tenth of a second of processor time on
    /// each.
    authentications: Semaphore,
}

impl Session {
    pub(super) fn new(user: Option<(String, String)>) -> Self {
        Self { user, token: Mutex::new(None), authentications: Semaphore::new(1) }
    }

    /// Sends `request` with a token, and once more with a new token if etcd refuses the one that
    /// the session had.
    pub(super) async fn call<C: Call>(&self, request: &C, channel: &Channel) -> Result<C::Answer> {
        let token = self.token(channel).await?;
        match request.clone().send(connection(channel, token.clone())).await {
            Err(ClientError::Token(_)) if token.is_some() => {
                self.forget(token.as_ref());
                let token = self.token(channel).await?;
                request.clone().send(connection(channel, token)).await
            }
            answer => answer,
        }
    }

    /// The session's token, issued first if need be. None without a user.
    async fn token(&self, channel: &Channel) -> Result<Option<Token>> {
        let Some((name, password)) = &self.user else { return Ok(None) };
        let issued = || self.lock().clone();
        if let Some(token) = issued() {
            return Ok(Some(token));
        }
        let _permit = self.authentications.acquire().await;
        if let Some(token) = issued() {
            return Ok(Some(token));
        }
        let request = AuthenticateRequest { name: name.clone(), password: password.clone() };
        let response = AuthClient::new(connection(channel, None)).authenticate(request).await?;
        let token: Token = response.into_inner().token.parse()?;
        *self.lock() = Some(token.clone());
        Ok(Some(token))
    }

    /// Gives up a token that etcd refused, unless another request has replaced it already.
    fn forget(&self, refused: Option<&Token>) {
        self.lock().take_if(|token| Some(&*token) == refused);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Token>> {
        // A token is replaced whole, so that a panic elsewhere leaves nothing half-done.
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connection(channel: &Channel, token: Option<Token>) -> Connection {
    InterceptedService::new(channel.clone(), Headers { token })
}

impl Interceptor for Headers {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let headers = request.metadata_mut();
        // A server that has lost its peers refuses the request, and ends its watches, instead of
        // leaving them waiting.
        headers.insert("hasleader", Token::from_static("true"));
        if let Some(token) = &self.token {
            headers.insert("token", token.clone());
        }
        Ok(request)
    }
}
