//! Who may use the node: tokens, web pages, failed attempts, and the audit log.

use crate::auth::{Identified, Identity, Tokens};
use crate::error::ApiError;
use crate::failures::Failures;
use crate::pages::PageGuard;
use crate::permission::Grant;
use crate::request_id::RequestId;
use axum::extract::Request;
use axum::response::Response;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method, Uri};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_call::headers::ERROR_CODE;
use weir_control::keys::ApiKeys;
use weir_datastore::Revision;
use weir_telemetry::{AuditEvent, AuditLog, Metrics};
use weir_types::{ErrorCode, TenantId};

/// Length limit of paths in the audit log.
const PATH_BYTES_MAX: usize = 512;

/// Authenticates clients, and records their requests in the audit log.
pub struct Access {
    /// The client tokens that the node accepts.
    tokens: Tokens,
    /// The API keys of all tenants.
    keys: Arc<ApiKeys>,
    /// Checks requests of browsers, on a node without tokens.
    pub(crate) pages: Option<PageGuard>,
    failures: Failures,
    audit: AuditLog,
    metrics: Arc<Metrics>,
}

/// A request to record in the audit log once it is answered.
pub(crate) struct Audited {
    /// The other end of the connection.
    pub(crate) address: IpAddr,
    /// Method and target, of requests that the log may record.
    target: Option<(Method, Uri)>,
    /// Whether the audit log records the request.
    is_recorded: bool,
    tenant: Option<TenantId>,
    token_hash: Option<String>,
    grant: Option<Grant>,
}

impl Access {
    /// Creates the access control of a node.
    pub fn new(
        tokens: Tokens,
        keys: Arc<ApiKeys>,
        pages: Option<PageGuard>,
        audit: AuditLog,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { tokens, keys, pages, failures: Failures::default(), audit, metrics }
    }

    /// The API keys of all tenants.
    pub fn keys(&self) -> &Arc<ApiKeys> {
        &self.keys
    }

    /// Keeps the API keys, from `revision` on, and the keys of the OpenID Connect provider current.
    pub fn follow(&self, revision: Revision) -> impl Future<Output = ()> + Send + 'static {
        let keys = self.keys.follow(revision);
        let provider = self.tokens.provider().cloned();
        let provider = async move {
            if let Some(provider) = provider {
                provider.follow().await;
            }
        };
        async move {
            tokio::join!(keys, provider);
        }
    }

    /// Whether clients need a token or an API key.
    pub(crate) fn needs_tokens(&self) -> bool {
        self.tokens.are_needed()
    }

    /// Tenants with a token.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = TenantId> {
        self.tokens.tenants()
    }

    /// Whether `tenant` is the only tenant of the node.
    pub(crate) fn serves_only(&self, tenant: &TenantId) -> bool {
        self.tokens.serve_only(tenant)
    }

    /// Identifies the client of a request, and removes its token from the headers. Unknown tokens
    /// from one address are answered more and more slowly.
    pub(crate) async fn identify(
        &self,
        address: IpAddr,
        headers: &mut HeaderMap,
        audited: Option<&mut Audited>,
    ) -> Result<Identity, ApiError> {
        let Identified { identity, hash, is_guess } = self.tokens.identify(&self.keys, headers).await;
        let failure = identity.as_ref().err().map(|error| (self.failures.note(address), error.code));
        if let Some(audited) = audited {
            audited.token_hash = hash;
            audited.tenant = identity.as_ref().ok().and_then(Identity::acts_for);
            audited.grant = identity.as_ref().ok().and_then(Identity::grant).cloned();
            // Unauthenticated clients must not displace other events in the log.
            audited.is_recorded = match &failure {
                Some((failure, _)) => failure.is_recorded,
                None => audited.is_recorded || audited.tenant.is_none(),
            };
        }
        // Other errors mean that the node could not look the token up.
        if let Some((failure, ErrorCode::Unauthorized)) = failure {
            self.metrics.access.failed.inc();
            if is_guess {
                tokio::time::sleep(failure.wait).await;
            }
        }
        identity
    }

    /// Whether `authorization` is a token for this node. A token that the OpenID Connect provider may
    /// have made for this node counts, valid or not: it may be valid in a moment.
    pub(crate) async fn knows(&self, authorization: &HeaderValue) -> bool {
        if self.tokens.is_addressed(authorization) {
            return true;
        }
        let mut headers = HeaderMap::from_iter([(AUTHORIZATION, authorization.clone())]);
        self.needs_tokens() && self.tokens.identify(&self.keys, &mut headers).await.identity.is_ok()
    }

    /// Writes an answered request to the audit log, if it belongs there.
    pub(crate) fn audit(&self, audited: Audited, id: &RequestId, response: &Response) {
        let Some((method, uri)) = audited.target.filter(|_| audited.is_recorded) else { return };
        let code = response.headers().get(ERROR_CODE).and_then(|code| code.to_str().ok());
        let (key, subject) = match audited.grant {
            Some(Grant::Key(key)) => (Some(key.name.to_string()), None),
            Some(Grant::Oidc(token)) => (None, Some(token.subject.clone())),
            None => (None, None),
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.audit.record(&AuditEvent {
            time_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            address: audited.address.to_string(),
            tenant: audited.tenant.map(|tenant| tenant.to_string()),
            token_hash: audited.token_hash,
            key,
            subject,
            method: method.to_string(),
            path: cut(uri.path()).to_owned(),
            status: response.status().as_u16(),
            code: code.map(str::to_owned),
            request_id: id.as_str().to_owned(),
        });
    }
}

impl Audited {
    /// Creates the audit record of a request. `address` is the other end of its connection, and
    /// `may_fail` says whether the request may fail to authenticate.
    pub(crate) fn new(request: &Request, address: IpAddr, may_fail: bool) -> Self {
        let is_recorded = is_change(request.method(), request.uri().path());
        Self {
            address,
            target: (is_recorded || may_fail).then(|| (request.method().clone(), request.uri().clone())),
            is_recorded,
            tenant: None,
            token_hash: None,
            grant: None,
        }
    }
}

/// The beginning of a path.
fn cut(path: &str) -> &str {
    let end = (0..=path.len().min(PATH_BYTES_MAX)).rev().find(|end| path.is_char_boundary(*end));
    path.get(..end.unwrap_or(0)).unwrap_or_default()
}

/// Whether a request changes functions, models, workflows or asynchronous invocations. Calls,
/// inferences and objects are not recorded: metrics count them.
fn is_change(method: &Method, path: &str) -> bool {
    let is_management = ["/v1/", "/v2/repository/"].iter().any(|prefix| path.starts_with(prefix));
    let is_data = ["/v1/embeddings", "/v1/objects"].iter().any(|prefix| path.starts_with(prefix));
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS];
    is_management && !is_data && !reads.contains(method) && path != "/v2/repository/index"
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use weir_datastore::{Datastore, MemoryStore};
    use weir_storage::Changes;
    use weir_telemetry::AuditConfig;

    /// While the datastore is unreachable, a node of a cluster cannot look up tokens that have the
    /// form of API keys. Clients that send such tokens must not displace other events in the audit
    /// log.
    #[tokio::test]
    async fn records_of_tokens_that_cannot_be_looked_up_are_bounded() {
        let datastore = Arc::new(MemoryStore::new());
        let (keys, _) = ApiKeys::open(datastore.clone(), Changes::default(), false).await.unwrap();
        datastore.close().await;
        let tokens = Tokens::parse("0123456789abcdef acme").unwrap();
        let metrics = Metrics::new();
        let audit = AuditLog::open(&AuditConfig::default(), metrics.clone()).unwrap();
        let access = Access::new(tokens, keys, None, audit, metrics.clone());
        let mut recorded = Vec::new();
        for attempt in 1..=64 {
            let token = HeaderValue::from_str(&format!("Bearer weir_{attempt:048x}")).unwrap();
            let mut headers = HeaderMap::from_iter([(AUTHORIZATION, token)]);
            let request = Request::put("/v1/functions/f").body(Body::empty()).unwrap();
            let address = "192.0.2.1".parse().unwrap();
            let mut audited = Audited::new(&request, address, true);
            let error = access.identify(address, &mut headers, Some(&mut audited)).await.unwrap_err();
            assert_ne!(error.code, ErrorCode::Unauthorized);
            if audited.is_recorded {
                recorded.push(attempt);
            }
        }
        assert_eq!(recorded, [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(metrics.access.failed.get(), 0, "the tokens may be valid");
    }

    #[test]
    fn changes_are_told_from_calls_and_reads() {
        for (method, path, expected) in [
            (Method::PUT, "/v1/functions/hello", true),
            (Method::POST, "/v1/functions/hello/rollback", true),
            (Method::DELETE, "/v1/models/m", true),
            (Method::POST, "/v2/repository/models/m/load", true),
            (Method::POST, "/v1/invocations/1/retry", true),
            (Method::GET, "/v1/functions/hello", false),
            (Method::POST, "/fn/hello", false),
            (Method::POST, "/v2/models/m/infer", false),
            (Method::POST, "/v2/repository/index", false),
            (Method::PUT, "/v1/objects/o", false),
            (Method::POST, "/v1/embeddings", false),
        ] {
            assert_eq!(is_change(&method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn long_paths_are_cut_at_a_character() {
        assert_eq!(cut("/v1/functions/hello"), "/v1/functions/hello");
        assert_eq!(cut(&"x".repeat(2 * PATH_BYTES_MAX)).len(), PATH_BYTES_MAX);
        assert_eq!(cut(&format!("/{}", "\u{e9}".repeat(PATH_BYTES_MAX))).len(), PATH_BYTES_MAX - 1);
    }
}
