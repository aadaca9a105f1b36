//! Public functions: calls at `/fn/TENANT:NAME`, which need no token.
//!
//! Any client may call a public function. Its calls have none of the options that clients of
//! the tenant have: no priority, no explanation, no asynchronous invocation. Tensor functions cannot
//! be public, because inferences may name objects of the tenant.

use crate::NodeState;
use crate::access::Access;
use crate::error::ApiError;
use crate::guest_url;
use crate::lookups::LookupFor;
use crate::permission::Caller;
use axum::extract::Request;
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::uri::PathAndQuery;
use http::{HeaderMap, Uri};
use weir_call::headers;
use weir_types::{ErrorCode, FunctionKind, Name, TenantId};

/// Admits a call of a public function, and changes its target to that of the tenant's own calls.
/// Returns none for requests that name no tenant.
pub(crate) async fn admit(node: &NodeState, request: &mut Request) -> Option<Result<Caller, ApiError>> {
    let (tenant, name) = owner_and_name(request.uri().path())?;
    let found = match TenantId::new(tenant).ok() {
        Some(tenant) if is_public(node, &tenant, name).await => Some(tenant),
        _ => None,
    };
    let Some(found) = found else {
        // The answer does not depend on which is missing: the tenant, the function or its flag.
        let text = format!("there is no public function {name} of {tenant}");
        return Some(Err(ApiError::new(ErrorCode::FunctionNotFound, text)));
    };
    let owner_len = tenant.len() + ":".len();
    guest_url::keep_public_prefix(request);
    if let Err(error) = cut_owner(request, owner_len) {
        return Some(Err(error));
    }
    let headers = request.headers_mut();
    for name in
        [headers::PRIORITY, headers::EXPLAIN, headers::PREFER, headers::IDEMPOTENCY_KEY, headers::CALLBACK]
    {
        headers.remove(name);
    }
    hide_token(&node.access, headers).await;
    Some(Ok(Caller::anonymous(found)))
}

/// The tenant and the function in the path of a public call.
fn owner_and_name(path: &str) -> Option<(&str, &str)> {
    let call = path.strip_prefix("/fn/")?;
    let target = call.split('/').next().unwrap_or_default();
    target.split_once(':')
}

async fn is_public(node: &NodeState, tenant: &TenantId, name: &str) -> bool {
    let mut function = node.registry.get(tenant, name);
    if function.is_none()
        && let Ok(new) = Name::new(name)
        // Boxed: lookups are rare, and the futures of all requests would contain it.
        && Box::pin(node.look_up(tenant, &new, LookupFor::Stranger)).await.unwrap_or(false)
    {
        function = node.registry.get(tenant, name);
    }
    let active = function.as_ref().and_then(|function| function.active());
    active.is_some_and(|active| active.manifest.public && active.record.kind != FunctionKind::Tensor)
}

/// Removes the first `len` bytes after `/fn/` from the target.
fn cut_owner(request: &mut Request, len: usize) -> Result<(), ApiError> {
    let target = request.uri().path_and_query().map_or("", PathAndQuery::as_str);
    let target = format!("/fn/{}", &target["/fn/".len() + len..]);
    let internal = |error: &dyn std::fmt::Display| ApiError::internal(error);
    let mut parts = request.uri().clone().into_parts();
    let target = PathAndQuery::from_maybe_shared(Bytes::from(target)).map_err(|error| internal(&error))?;
    parts.path_and_query = Some(target);
    *request.uri_mut() = Uri::from_parts(parts).map_err(|error| internal(&error))?;
    Ok(())
}

/// Removes a token of this node, so that a client that sends one by mistake does not give it to the
/// function. Any other `authorization` belongs to the function.
async fn hide_token(access: &Access, headers: &mut HeaderMap) {
    headers.remove(headers::TOKEN);
    if let Some(authorization) = headers.get(AUTHORIZATION)
        && access.knows(authorization).await
    {
        headers.remove(AUTHORIZATION);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tokens;
    use http::HeaderValue;
    use std::sync::Arc;
    use weir_control::keys::ApiKeys;
    use weir_datastore::MemoryStore;
    use weir_oidc::{OidcConfig, Provider};
    use weir_storage::Changes;
    use weir_telemetry::{AuditConfig, AuditLog, Metrics};

    #[test]
    fn public_calls_name_their_tenant() {
        assert_eq!(owner_and_name("/fn/acme:hello"), Some(("acme", "hello")));
        assert_eq!(owner_and_name("/fn/acme:hello/a:b"), Some(("acme", "hello")));
        for own in ["/fn/hello", "/fn/hello/a:b", "/v1/acme:hello", "/fn/"] {
            assert_eq!(owner_and_name(own), None, "{own}");
        }
    }

    /// A function of another tenant must not learn a token that its caller sends by mistake.
    #[tokio::test]
    async fn function_sees_no_token_of_the_node() {
        let config = OidcConfig {
            issuer: Some("https://login.test".into()),
            audience: Some("weir".into()),
            tenants: vec![TenantId::new("acme").unwrap()],
            ..OidcConfig::default()
        };
        let tokens = Tokens::parse("0123456789abcdef acme").unwrap();
        let tokens = tokens.with_provider(Provider::new(&config).unwrap()).unwrap();
        let keys = ApiKeys::open(Arc::new(MemoryStore::new()), Changes::default(), true).await.unwrap().0;
        let metrics = Metrics::new();
        let audit = AuditLog::open(&AuditConfig::default(), metrics.clone()).unwrap();
        let access = Access::new(tokens, keys, None, audit, metrics);
        let seen = async |authorization: &'static str| {
            let mut headers = HeaderMap::from_iter([
                (headers::TOKEN, HeaderValue::from_static("0123456789abcdef")),
                (AUTHORIZATION, HeaderValue::from_static(authorization)),
            ]);
            hide_token(&access, &mut headers).await;
            assert!(!headers.contains_key(headers::TOKEN));
            headers.remove(AUTHORIZATION)
        };
        let own = HeaderValue::from_static("Bearer of-the-function");
        assert_eq!(seen("Bearer of-the-function").await, Some(own));
        assert_eq!(seen("Bearer 0123456789abcdef").await, None);
        // Claims of the provider and of another one. The node has no keys to check either.
        let ours = "Bearer eyJhbGciOiJFZERTQSJ9.eyJpc3MiOiJodHRwczovL2xvZ2luLnRlc3QiLCJhdWQiOiJ3ZWlyIn0.AA";
        let other = "Bearer eyJhbGciOiJFZERTQSJ9.eyJpc3MiOiJodHRwczovL290aGVyLnRlc3QiLCJhdWQiOiJ3ZWlyIn0.AA";
        assert_eq!(seen(ours).await, None);
        assert_eq!(seen(other).await, Some(HeaderValue::from_static(other)));
    }

    #[test]
    fn function_sees_its_own_path() {
        let cut = |uri: &'static str| {
            let mut request = Request::builder().uri(uri).body(axum::body::Body::empty()).unwrap();
            cut_owner(&mut request, "acme:".len()).unwrap();
            request.uri().to_string()
        };
        assert_eq!(cut("/fn/acme:hello"), "/fn/hello");
        assert_eq!(cut("/fn/acme:hello/a:b?c=d"), "/fn/hello/a:b?c=d");
        assert_eq!(cut("https://example.com/fn/acme:hello/"), "https://example.com/fn/hello/");
    }
}
