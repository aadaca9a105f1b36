//! The internal API for intermediates: `GET /cluster/v1/intermediates/{tenant}/{number}` returns
//! the bytes, `DELETE` removes the intermediate. Only for nodes that show the cluster's secret.

use super::{Index, Intermediates, lost};
use crate::dispatch::refusal;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{Method, StatusCode};
use weir_call::Fault;
use weir_call::body::{BodyLimit, receive_whole};
use weir_cluster::Cluster;
use weir_device::{Arena, Buffer};
use weir_types::{ErrorCode, TenantId};

/// The path of the API.
pub const PATH: &str = "/cluster/v1/intermediates/";

/// The size limit of another node's error response.
const REFUSAL_BYTES_MAX: u64 = 64 << 10;

/// Responds to a node that has shown the cluster's secret.
pub fn answer(intermediates: &Intermediates, method: &Method, path: &str) -> Result<Response, Fault> {
    let asked = path.strip_prefix(PATH).and_then(|asked| asked.split_once('/'));
    let asked = asked.and_then(|(tenant, number)| Some((TenantId::new(tenant).ok()?, number.parse().ok()?)));
    let Some((tenant, number)) = asked else {
        return Err(Fault::new(ErrorCode::InvalidRequest, format!("{path} is no intermediate")));
    };
    match *method {
        Method::GET => Ok(Body::from(Bytes::from(intermediates.find(&tenant, number)?)).into_response()),
        Method::DELETE => {
            intermediates.forget(&tenant, number);
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        _ => {
            Err(Fault::new(ErrorCode::MethodNotAllowed, "an intermediate is read (GET) or released (DELETE)"))
        }
    }
}

/// Fetches the bytes of an intermediate from the node that has it.
pub(super) async fn take(
    cluster: &Cluster,
    arena: &Arena,
    tenant: &TenantId,
    index: Index,
    bytes: u64,
) -> Result<Buffer, Fault> {
    let lost = |why: String| lost(index, &why);
    let response = ask(cluster, Method::GET, tenant, index).await.map_err(lost)?;
    let (head, body) = response.into_parts();
    let is_there = head.status.is_success();
    let bytes_max = if is_there { bytes } else { REFUSAL_BYTES_MAX };
    let limit = BodyLimit { bytes_max, setting: "the known size" };
    let body = receive_whole(body, is_there.then_some(bytes), &arena.tenant(tenant), limit).await;
    let body = body.map_err(|error| match error.code {
        ErrorCode::Unavailable | ErrorCode::QueueFull => error,
        _ => lost(format!("node {} broke off: {}", index.node.0, error.text)),
    })?;
    if is_there { Ok(body) } else { Err(refusal(&head.headers, &body)) }
}

/// Removes an intermediate without readers from the node that has it.
pub(super) async fn let_go(cluster: &Cluster, tenant: &TenantId, index: Index) -> Result<(), String> {
    let answer = ask(cluster, Method::DELETE, tenant, index).await?;
    let status = answer.status();
    if status.is_success() { Ok(()) } else { Err(format!("it answered {status}")) }
}

async fn ask(cluster: &Cluster, method: Method, tenant: &TenantId, index: Index) -> Result<Response, String> {
    let target = format!("{PATH}{tenant}/{}", index.number);
    cluster.ask(index.node, method, &target).await
}
