//! Authentication: the token that etcd issues for a user's password, and the headers of every
//! request.

use super::protocol::AuthenticateRequest;
use super::protocol::auth_client::AuthClient;
use super::{ClientError, ClientResult, EtcdCall};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tonic::metadata::AsciiMetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

type Token = AsciiMetadataValue;

/// Connection to a server, with the headers of its requests.
pub(in crate::etcd) type EtcdConnection = InterceptedService<Channel, EtcdHeaders>;

/// The headers of a request.
#[derive(Clone)]
pub(in crate::etcd) struct EtcdHeaders {
    token: Option<Token>,
}

/// Session of a user, which outlives the user's tokens. A session without a user has no token.
pub(super) struct UserSession {
    /// User name and password.
    user: Option<(String, String)>,
    token: Mutex<Option<Token>>,
    /// Serialises authentications: each costs etcd about a tenth of a second of processor time.
    authentications: Semaphore,
}

impl UserSession {
    pub(super) fn new(user: Option<(String, String)>) -> Self {
        Self { user, token: Mutex::new(None), authentications: Semaphore::new(1) }
    }

    /// Sends `request` with the session's token. If etcd rejects the token, sends the request once
    /// more with a new token.
    pub(super) async fn call<C: EtcdCall>(&self, request: &C, channel: &Channel) -> ClientResult<C::Answer> {
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

    /// The session's token, requested from etcd if necessary; `None` without a user.
    async fn token(&self, channel: &Channel) -> ClientResult<Option<Token>> {
        let Some((name, password)) = &self.user else { return Ok(None) };
        let issued = || self.token.lock().clone();
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
        *self.token.lock() = Some(token.clone());
        Ok(Some(token))
    }

    /// Drops a rejected token, unless another request has already replaced it.
    fn forget(&self, refused: Option<&Token>) {
        self.token.lock().take_if(|token| Some(&*token) == refused);
    }
}

fn connection(channel: &Channel, token: Option<Token>) -> EtcdConnection {
    InterceptedService::new(channel.clone(), EtcdHeaders { token })
}

impl Interceptor for EtcdHeaders {
    fn call(&mut self, mut request: Request<()>) -> ClientResult<Request<()>, Status> {
        let headers = request.metadata_mut();
        // With this header, a server that has lost its peers rejects the request and ends its
        // watches, instead of letting them wait.
        headers.insert("hasleader", Token::from_static("true"));
        if let Some(token) = &self.token {
            headers.insert("token", token.clone());
        }
        Ok(request)
    }
}
