//! The interface by which asynchronous invocations use the node's gateway.

use axum::extract::Request;
use axum::response::Response;
use weir_call::Fault;
use weir_types::api::InvocationKind;
use weir_types::{Name, TenantId, Version};

/// Runs the requests of asynchronous invocations.
pub trait RequestRunner: Clone + Send + Sync + 'static {
    /// Runs a request that was accepted earlier. Returns the response that a synchronous caller
    /// would have received, or the node's error.
    /// `version` was fixed at the acceptance, unless the request names a version.
    fn run(
        &self,
        tenant: TenantId,
        version: Option<Version>,
        request: Request,
    ) -> impl Future<Output = Result<Response, Fault>> + Send;

    /// Returns the hosts that callbacks of calls of `name` may reach.
    fn callback_hosts(&self, tenant: &TenantId, kind: InvocationKind, name: &Name) -> Vec<String>;
}
