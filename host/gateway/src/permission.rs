//! Permissions of clients: `table.rs` states the needs of each route, and this file checks them.

use crate::auth::Identity;
use crate::error::ApiError;
use crate::invoke::unknown;
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::Method;
use std::fmt;
use std::sync::Arc;
use weir_control::keys::KeyGrant;
use weir_control::registry::{Noun, RegistryError};
use weir_oidc::OidcGrant;
use weir_types::api::Scope;
use weir_types::{ErrorCode, Name, TenantId};

/// Scopes that the requests of a route need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RouteAccess {
    /// Scopes of which `GET` and `HEAD` need one; empty if any client may send them.
    pub(crate) read: &'static [Scope],
    /// Scopes of which the other methods need one.
    pub(crate) change: &'static [Scope],
    pub(crate) subject: Subject,
}

/// Subject of a route, for keys that are limited to functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Everything of the tenant: no limited key may use the route.
    Tenant,
    /// Everything of all tenants: no limited key may use the route, and tokens for backups may.
    Node,
    /// The function in the path.
    Function,
    /// Functions that the handler reads from the request or lists: the handler checks them by
    /// [`Caller::covers`].
    Checked,
}

/// A permission that a client's token states.
#[derive(Debug, Clone)]
pub(crate) enum Grant {
    /// An API key.
    Key(Arc<KeyGrant>),
    /// A token of the OpenID Connect provider.
    Oidc(Arc<OidcGrant>),
}

impl Grant {
    /// Tenant that the token acts for.
    pub(crate) fn tenant(&self) -> &TenantId {
        match self {
            Self::Key(key) => &key.tenant,
            Self::Oidc(token) => &token.tenant,
        }
    }

    fn allows(&self, scope: Scope) -> bool {
        match self {
            Self::Key(key) => key.allows(scope),
            Self::Oidc(token) => token.allows(scope),
        }
    }

    /// Whether the token is limited to some functions.
    fn is_limited(&self) -> bool {
        matches!(self, Self::Key(key) if key.is_limited())
    }

    /// Whether the token may be used for the function `name`.
    fn covers(&self, name: &str) -> bool {
        match self {
            Self::Key(key) => key.covers(name),
            Self::Oidc(_) => true,
        }
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, "the API key {}", key.name),
            Self::Oidc(token) => write!(f, "the token of {}", token.subject),
        }
    }
}

/// The client of a request.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Tenant on whose behalf the request runs.
    pub(crate) tenant: TenantId,
    /// Permissions of the client's token; none if the client may do everything that the tenant may
    /// do.
    grant: Option<Grant>,
    /// Whether the client has no token: it calls a public function of the tenant.
    pub(crate) is_anonymous: bool,
    /// Whether the client may make backups of all tenants' data, and nothing else.
    pub(crate) is_backup: bool,
}

impl Caller {
    /// A client that may do everything that the tenant may do: it has a token of the token file, or
    /// the node has none, or the request was checked when it came in.
    pub(crate) fn unrestricted(tenant: TenantId) -> Self {
        Self { tenant, grant: None, is_anonymous: false, is_backup: false }
    }

    /// A client without a token, which calls a public function of `tenant`.
    pub(crate) fn anonymous(tenant: TenantId) -> Self {
        Self { is_anonymous: true, ..Self::unrestricted(tenant) }
    }

    /// Whether the client is limited to some functions.
    pub(crate) fn is_limited(&self) -> bool {
        self.grant.as_ref().is_some_and(Grant::is_limited)
    }

    /// Whether the client may use the function `name`.
    pub(crate) fn covers(&self, name: &str) -> bool {
        self.grant.as_ref().is_none_or(|grant| grant.covers(name))
    }

    /// Checks that the client may send a request of this method.
    pub(crate) fn check(&self, access: &RouteAccess, method: &Method) -> Result<(), ApiError> {
        if self.is_backup && access.subject != Subject::Node {
            let text = "this token is for backups (POST /v1/backup) and nothing else; use a tenant's";
            return Err(ApiError::new(ErrorCode::Forbidden, text));
        }
        let Some(grant) = &self.grant else { return Ok(()) };
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        let scopes = if is_read { access.read } else { access.change };
        if !scopes.is_empty() && !scopes.iter().any(|scope| grant.allows(*scope)) {
            let needed = scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(" or ");
            let text = format!("{grant} lacks the scope {needed}, which this request needs");
            return Err(ApiError::new(ErrorCode::Forbidden, text));
        }
        if grant.is_limited() && matches!(access.subject, Subject::Tenant | Subject::Node) {
            let text = format!("{grant} is limited to functions, and this request is not about one of them");
            return Err(ApiError::new(ErrorCode::Forbidden, text));
        }
        Ok(())
    }

    /// Checks that the client may call the function `name` by a request of this method. A function
    /// that it may not call looks like a missing one.
    pub(crate) fn check_call(
        &self,
        access: &RouteAccess,
        method: &Method,
        name: &str,
    ) -> Result<(), ApiError> {
        self.check(access, method)?;
        if self.covers(name) { Ok(()) } else { Err(unknown(name)) }
    }
}

impl Identity {
    /// Returns the client on whose behalf the request runs.
    pub(crate) fn caller(self) -> Result<Caller, ApiError> {
        match self {
            Self::Anyone => Ok(Caller::unrestricted(TenantId::default())),
            Self::Tenant(tenant) => Ok(Caller::unrestricted(tenant)),
            Self::Granted(grant) => {
                let caller = Caller::unrestricted(grant.tenant().clone());
                Ok(Caller { grant: Some(grant), ..caller })
            }
            Self::Backup => Ok(Caller { is_backup: true, ..Caller::unrestricted(TenantId::default()) }),
            Self::Operator => {
                let text = "this is the operator's token, which reads /metrics and /v1/tenants and nothing else; use a tenant's";
                Err(ApiError::new(ErrorCode::NotGranted, text))
            }
        }
    }
}

/// Middleware of a route: checks that the caller may send the request.
pub(crate) async fn guard(access: RouteAccess, request: Request, next: Next) -> Response {
    match admit(access, request).await {
        Ok(request) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

async fn admit(access: RouteAccess, request: Request) -> Result<Request, ApiError> {
    let Some(caller) = request.extensions().get::<Caller>() else {
        return Err(ApiError::internal(&"the request has no caller"));
    };
    caller.check(&access, request.method())?;
    if !caller.is_limited() || access.subject != Subject::Function {
        return Ok(request);
    }
    let caller = caller.clone();
    let (mut head, body) = request.into_parts();
    let params = RawPathParams::from_request_parts(&mut head, &()).await;
    let params = params.map_err(|error| ApiError::new(ErrorCode::InvalidRequest, error.to_string()))?;
    let name = params.iter().find_map(|(key, value)| (key == "name").then_some(value)).unwrap_or_default();
    let name = Name::new(name).map_err(|error| ApiError::new(ErrorCode::InvalidName, error.to_string()))?;
    if caller.covers(name.as_str()) {
        return Ok(Request::from_parts(head, body));
    }
    Err(RegistryError::NotThere(Noun::Function, name).into())
}
