//! HTTP gateway of a node: serves function calls directly, and all other requests through a router.

mod access;
mod alias;
mod answers;
mod arriving;
mod auth;
mod backup;
mod body;
mod cached;
mod calls;
mod canary;
mod config;
mod dashboard;
mod embeddings;
mod error;
mod events;
mod failures;
mod functions;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod grpc;
mod guest_url;
mod head;
mod health;
mod invocations;
mod invoke;
mod json;
mod keys;
mod lookups;
mod manifest;
mod models;
mod objects;
mod openai;
mod openapi;
mod pages;
mod permission;
mod permits;
mod placements;
mod prefer;
mod public;
mod quotas;
mod remote;
mod request_id;
mod routes;
mod scrape;
mod secrets;
mod server;
mod shadow;
mod state;
mod table;
mod traces;
mod triggers;
mod unread;
mod uploads;
mod usage;
mod v2;
mod versions;
mod visibility;
mod websocket;
mod workflows;

pub use access::Access;
pub use auth::Tokens;
pub use canary::watch_canaries;
pub use config::{AccessConfig, AnswersConfig, ArrivalConfig, GatewayConfig, PagesConfig};
pub use pages::PageGuard;
pub use permission::Caller;
pub use placements::GivenIds;
pub use quotas::{QuotaConfig, TenantQuotas};
pub use server::{ListenerTls, Server, Threads};
pub use state::{NodeState, Permits, RequestConfig, RequestTracking, Shutdown};
pub use table::documented_paths;

use access::Audited;
use answers::{AnswerOwner, CountedBytes, Scopes};
use arriving::BodyArrival;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use error::{ApiError, Dialect};
use guest_url::OverTls;
use health::Monitoring;
use http::header::{ALLOW, CONNECTION, SEC_WEBSOCKET_VERSION};
use http::{HeaderValue, Version};
use invoke::CallTarget;
use prometheus_client::metrics::gauge::Gauge;
use request_id::RequestId;
use std::net::IpAddr;
use std::sync::Arc;
use tower::ServiceExt;
use unread::Unread;
use visibility::{VISIBLE_PATH, answer_visible};
use weir_call::Fault;
use weir_call::headers::{ERROR_CODE, EXPLAIN, PLACEMENT};
use weir_cluster::ForwardGrant;
use weir_cluster::{
    EVENTS_PATH, GRANT, LINK_PATH, OUTCOMES_PATH, answer_events, answer_link, answer_outcome, refused,
    restore_host,
};
use weir_dispatch::{intermediates, refusal};
use weir_types::api::InvocationKind;
use weir_types::{ErrorCode, Name, TenantId};

/// Size limit of the text of a rejection by axum itself.
const REJECTION_BYTES_MAX: usize = 4 << 10;

/// Response whose memory is counted.
pub(crate) struct Admitted {
    pub(crate) response: Response,
    pub(crate) scopes: Arc<Scopes>,
    /// Memory of a response that is complete from its start.
    pub(crate) whole: Option<CountedBytes>,
}

/// Gateway of a node. Cheap to clone.
#[derive(Clone)]
pub struct Gateway {
    node: Arc<NodeState>,
    router: Router,
}

impl Gateway {
    /// Creates a gateway with the routes of the API.
    pub fn new(node: Arc<NodeState>) -> Self {
        let router = table::routes().into_router(node.clone());
        Self { node, router }
    }

    /// Serves one request of a connection from `address`, whose answers take `answer_bytes`. Dropping
    /// the future, as the server does when the client disconnects, cancels the work that the request
    /// started.
    pub(crate) async fn serve(&self, request: Request, address: IpAddr, answer_bytes: &Gauge) -> Admitted {
        let id = RequestId::from_headers(request.headers());
        let dialect = Dialect::for_path(request.uri().path());
        let is_h1 = request.version() <= Version::HTTP_11;
        let (request, arrival) = BodyArrival::watch(request, &self.node.config.gateway.arrival);
        let (request, unread) = Unread::watch(request);
        let mut owner = None;
        let mut audited = Audited::new(&request, address, self.node.access.needs_tokens());
        let mut response = self.route(request, &id, answer_bytes, &mut owner, &mut audited).await;
        let stalled = arrival.error();
        let must_close = stalled.is_some() && is_h1;
        if let Some(error) = stalled.filter(|_| response.status().as_u16() >= 400) {
            response = error.into_response();
        }
        let budget = &self.node.permits.answers;
        let scopes = budget.scopes(answer_bytes, owner);
        let whole = match budget.admit_whole(&scopes, &mut response) {
            Ok(whole) => whole,
            Err(fault) => {
                response = ApiError::from(fault).into_response();
                None
            }
        };
        if let Some(error) = response.extensions_mut().remove::<ApiError>() {
            let kept =
                [ALLOW, SEC_WEBSOCKET_VERSION].map(|name| (response.headers_mut().remove(&name), name));
            response = error.respond(dialect, id.as_str());
            let kept = kept.into_iter().filter_map(|(value, name)| Some((name, value?)));
            response.headers_mut().extend(kept);
            if !unread.drain().await || must_close {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
        }
        self.node.access.audit(audited, &id, &response);
        id.echo(&mut response);
        Admitted { response, scopes, whole }
    }

    /// Routes a request, and sets the `owner` of its answer as soon as the tenant is known.
    async fn route(
        &self,
        mut request: Request,
        id: &RequestId,
        answer_bytes: &Gauge,
        owner: &mut Option<AnswerOwner>,
        audited: &mut Audited,
    ) -> Response {
        if let Err(error) = head::check_host(&request) {
            return error.into_response();
        }
        let monitoring = Monitoring::from_path(request.uri().path());
        // Health checks say nothing that a web page may not read.
        if let Some(check) = monitoring.filter(|route| route.is_open()) {
            return check
                .serve(&self.node, audited.address, request)
                .await
                .unwrap_or_else(IntoResponse::into_response);
        }
        if let Some(path) = dashboard::path(request.uri().path()) {
            return dashboard::serve(path, &request);
        }
        if let Some(method) = grpc::health::method(request.uri().path()) {
            let method = method.to_owned();
            return grpc::health::serve(self.node.why_unready().is_none(), &method, request).await;
        }
        let is_forwarded = request.headers().contains_key(GRANT);
        if let Some(pages) = &self.node.access.pages
            && let Err(error) = pages.check(&request, is_forwarded)
        {
            return error.into_response();
        }
        if let Some(metrics) = monitoring {
            return metrics
                .serve(&self.node, audited.address, request)
                .await
                .unwrap_or_else(IntoResponse::into_response);
        }
        let path = request.uri().path();
        let is_of_cluster = is_forwarded
            || path == LINK_PATH
            || path.starts_with(intermediates::PATH)
            || path.starts_with(OUTCOMES_PATH)
            || path == EVENTS_PATH
            || path == VISIBLE_PATH
            || path == canary::CANARIES_PATH
            || path == shadow::SHADOWS_PATH;
        if is_of_cluster {
            return Box::pin(self.route_of_cluster(request, id, owner))
                .await
                .unwrap_or_else(IntoResponse::into_response);
        }
        if let Err(error) = head::check_size(&request) {
            return error.into_response();
        }
        websocket::lift_token(&mut request);
        let caller = match self.identify(&mut request, audited).await {
            Ok(caller) => caller,
            Err(error) => return error.into_response(),
        };
        if caller.is_anonymous {
            request.extensions_mut().insert(websocket::Anonymous);
        }
        let permit = match self.node.permits.quotas.admit(&caller.tenant, caller.is_anonymous) {
            Ok(permit) => permit,
            Err(error) => return error.into_response(),
        };
        let owner = owner.insert(self.node.permits.answers.owner(&caller.tenant, Some(permit)));
        if may_be_large(request.uri().path())
            && let Err(fault) = self.node.permits.answers.check(answer_bytes, owner)
        {
            return ApiError::from(fault).into_response();
        }
        self.call(caller, request, id).await
    }

    /// Identifies the client of a request: by its token, or as an anonymous client of a public
    /// function.
    async fn identify(&self, request: &mut Request, audited: &mut Audited) -> Result<Caller, ApiError> {
        if let Some(admitted) = public::admit(&self.node, request).await {
            return admitted;
        }
        self.node.access.identify(audited.address, request.headers_mut(), Some(audited)).await?.caller()
    }

    /// Serves a request on behalf of `caller`.
    async fn call(&self, caller: Caller, request: Request, id: &RequestId) -> Response {
        let runs_none = self.node.models.devices().is_empty();
        let _in_progress = runs_none.then(|| self.node.shutdown.requests.token());
        if id.is_given() && !caller.is_anonymous {
            self.node.tracking.given_ids.note(&caller.tenant, id.shared(), id.invocation);
        }
        let is_explained = request.headers().contains_key(EXPLAIN);
        let explained_to = is_explained.then(|| caller.tenant.clone());
        let mut response = self.call_route(caller, request, id).await;
        dashboard::confine(response.headers_mut());
        if let Some(tenant) = explained_to
            && let Some(placement) = placements::header(&self.node, &tenant, id.invocation)
        {
            response.headers_mut().insert(PLACEMENT, placement);
        }
        response
    }

    async fn call_route(&self, caller: Caller, mut request: Request, id: &RequestId) -> Response {
        if let Some(call) = request.uri().path().strip_prefix("/fn/") {
            // Keep only lengths, because the request itself is moved to the function.
            let target = CallTarget::parse(call);
            if let Err(error) = caller.check_call(&table::CALL, request.method(), target.name(call)) {
                return error.into_response();
            }
            // Boxed: each enclosing future would contain and copy it.
            return Box::pin(invoke::invoke(&self.node, caller.tenant, target, request, id))
                .await
                .unwrap_or_else(IntoResponse::into_response);
        }
        let permitted = match grpc::method(request.uri().path()) {
            Some(method) => caller.check(&table::grpc_access(method), request.method()),
            None => Ok(()),
        };
        if let Err(error) = permitted {
            return error.into_response();
        }
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(id.clone());
        if grpc::is_call(request.uri().path()) {
            return Box::pin(grpc::serve(&self.node, request)).await;
        }
        if let Some(method) = grpc::reflection::method(request.uri().path()) {
            let method = method.to_owned();
            return grpc::reflection::serve(&method, request).await;
        }
        // Infallible: every error is already a response.
        let response = self.router.clone().oneshot(request.map(Body::new)).await.into_response();
        let is_told = |extensions: &http::Extensions| {
            extensions.get::<ApiError>().is_some() || extensions.get::<AsItWas>().is_some()
        };
        if response.status().is_client_error() && !is_told(response.extensions()) {
            return rejected(response).await.into_response();
        }
        response
    }
}

impl weir_asynchronous::RequestRunner for Gateway {
    async fn run(
        &self,
        tenant: TenantId,
        version: Option<weir_types::Version>,
        mut request: Request,
    ) -> Result<Response, Fault> {
        if let Some(version) = version {
            request.extensions_mut().insert(canary::FixedVersion(version));
        }
        let id = RequestId::from_headers(request.headers());
        // The request was checked when it was accepted. Boxed: a future of this size would
        // otherwise be part of every enclosing future.
        let mut response = Box::pin(self.call(Caller::unrestricted(tenant), request, &id)).await;
        if let Some(error) = response.extensions_mut().remove::<ApiError>() {
            return Err(Fault::new(error.code, error.text));
        }
        if !response.headers().contains_key(ERROR_CODE) {
            return Ok(response);
        }
        // An error response from the node that the call was forwarded to.
        let (head, body) = response.into_parts();
        let text = axum::body::to_bytes(body, REJECTION_BYTES_MAX).await.unwrap_or_default();
        let error = refusal(&head.headers, &text);
        Err(Fault::new(error.code, error.text))
    }

    fn callback_hosts(&self, tenant: &TenantId, kind: InvocationKind, name: &Name) -> Vec<String> {
        self.node.callback_hosts(tenant, kind, name)
    }
}

/// Interface for the other nodes of the cluster.
impl Gateway {
    async fn route_of_cluster(
        &self,
        mut request: Request,
        id: &RequestId,
        owner: &mut Option<AnswerOwner>,
    ) -> Result<Response, ApiError> {
        let cluster = self.node.cluster.as_ref();
        let Some(cluster) = cluster.filter(|cluster| cluster.auth().admits(&mut request)) else {
            let needs = cluster.map_or("and this node is in none", |cluster| cluster.auth().needs());
            let text = format!("this is for nodes of the cluster, {needs}");
            return Err(ApiError::new(ErrorCode::Unauthorized, text));
        };
        if request.uri().path().starts_with(intermediates::PATH) {
            let intermediates = &self.node.dispatch.intermediates;
            return Ok(intermediates::answer(intermediates, request.method(), request.uri().path())?);
        }
        if request.uri().path().starts_with(OUTCOMES_PATH) {
            let placements = &self.node.dispatch.placements;
            return Ok(answer_outcome(placements, request.method(), request.uri().path())?);
        }
        if request.uri().path() == EVENTS_PATH {
            return Ok(answer_events(&self.node.metrics.events, request.method(), request.uri())?);
        }
        if request.uri().path() == VISIBLE_PATH {
            return answer_visible(&self.node, request.method(), request.uri()).await;
        }
        if request.uri().path() == canary::CANARIES_PATH {
            return Ok(axum::Json(canary::counts_here(&self.node)).into_response());
        }
        if request.uri().path() == shadow::SHADOWS_PATH {
            return Ok(axum::Json(shadow::counts_here(&self.node)).into_response());
        }
        let Some(grant) = request.headers_mut().remove(GRANT) else {
            let placements = &self.node.dispatch.placements;
            return Ok(answer_link(cluster, placements, request, &self.node.shutdown.leaving));
        };
        let grant: ForwardGrant = serde_json::from_slice(grant.as_bytes()).map_err(|error| {
            ApiError::new(ErrorCode::InvalidRequest, format!("the grant of a call cannot be read: {error}"))
        })?;
        if !self.node.takes_calls() {
            return Ok(refused("the node is shutting down\n"));
        }
        // The other node's connection may be encrypted although the client's was not.
        request.extensions_mut().remove::<OverTls>();
        restore_host(&mut request);
        // The node that received the request has counted it for the quotas.
        *owner = Some(self.node.permits.answers.owner(&grant.tenant, None));
        if let Some(target) = request.uri().path().strip_prefix("/fn/").map(CallTarget::parse) {
            return invoke::invoke_granted(&self.node, grant, target, request, id).await;
        }
        request.extensions_mut().insert(Caller::unrestricted(grant.tenant.clone()));
        request.extensions_mut().insert(grant);
        request.extensions_mut().insert(id.clone());
        Ok(self.router.clone().oneshot(request.map(Body::new)).await.into_response())
    }
}

/// Whether requests to `path` may have answers that take much memory.
fn may_be_large(path: &str) -> bool {
    let prefixes = ["/fn/", "/v1/objects/", "/v1/invocations/"];
    prefixes.iter().any(|prefix| path.starts_with(prefix))
        || path.ends_with("/infer")
        || path == embeddings::PATH
        || grpc::is_call(path)
}

/// Converts axum's rejection of a path or query to an API error.
async fn rejected(response: Response) -> ApiError {
    let text = axum::body::to_bytes(response.into_body(), REJECTION_BYTES_MAX).await.unwrap_or_default();
    ApiError::new(ErrorCode::InvalidRequest, String::from_utf8_lossy(&text))
}

/// Response extension that marks a function's own response, live or stored, so that the gateway
/// does not rewrite it as an API error.
#[derive(Debug, Clone)]
struct AsItWas;
