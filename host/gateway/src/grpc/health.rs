//! gRPC's health protocol, `grpc.health.v1`, for probes and load balancers. Needs no token, as the
//! health checks over HTTP.

use super::{PATH, refuse};
use crate::error::ApiError;
use axum::body::Body;
use axum::response::Response;
use tonic::Status;
use tonic::server::Grpc;
use weir_grpc::{BoundedCodec, HealthCheckRequest, HealthCheckResponse, ServingStatus};
use weir_types::ErrorCode;

/// Path prefix of the service's methods.
const HEALTH_PATH: &str = "/grpc.health.v1.Health/";
/// Limit of a request, which has the name of a service.
const REQUEST_BYTES_MAX: usize = 4 << 10;

/// The method that a path names; `None` for paths of other services.
pub(crate) fn method(path: &str) -> Option<&str> {
    path.strip_prefix(HEALTH_PATH)
}

/// Serves a call of `method`. `is_ready` is the state of the node, and of each of its services.
pub(crate) async fn serve(is_ready: bool, method: &str, request: http::Request<Body>) -> Response {
    if method != "Check" {
        let text = format!("{HEALTH_PATH}{method} is not supported here; call Check repeatedly");
        return refuse(&ApiError::new(ErrorCode::NotSupported, text));
    }
    let check = tower::service_fn(move |request: tonic::Request<HealthCheckRequest>| async move {
        answer(is_ready, &request.into_inner().service).map(tonic::Response::new)
    });
    let codec = BoundedCodec::<HealthCheckResponse, HealthCheckRequest>::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(REQUEST_BYTES_MAX);
    grpc.unary(check, request).await.map(Body::new)
}

fn answer(is_ready: bool, service: &str) -> Result<HealthCheckResponse, Status> {
    let own = [PATH, HEALTH_PATH].map(|path| path.trim_matches('/'));
    if !service.is_empty() && !own.contains(&service) {
        return Err(Status::not_found("this server has no such service"));
    }
    let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
    Ok(HealthCheckResponse { status: status.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    /// A request or response with one string or number field.
    fn framed(message: &[u8]) -> Vec<u8> {
        let len = u8::try_from(message.len()).unwrap();
        [&[0, 0, 0, 0, len], message].concat()
    }

    /// Calls a method about `service`. Returns the gRPC status and the body.
    async fn call(is_ready: bool, path: &str, service: &str) -> (String, Vec<u8>) {
        let len = u8::try_from(service.len()).unwrap();
        let message = if service.is_empty() { vec![] } else { [&[0x0a, len], service.as_bytes()].concat() };
        let request = http::Request::post(path).header("content-type", "application/grpc");
        let request = request.body(Body::from(framed(&message))).unwrap();
        let response = serve(is_ready, method(path).unwrap(), request).await;
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned().unwrap_or_default();
        let status = head.headers.get("grpc-status").or_else(|| trailers.get("grpc-status")).cloned();
        (status.unwrap().to_str().unwrap().to_owned(), body.to_bytes().to_vec())
    }

    #[tokio::test]
    async fn check_tells_whether_the_node_is_ready() {
        let path = "/grpc.health.v1.Health/Check";
        for service in ["", "inference.GRPCInferenceService", "grpc.health.v1.Health"] {
            assert_eq!(call(true, path, service).await, ("0".to_owned(), framed(&[0x08, 1])), "{service}");
            assert_eq!(call(false, path, service).await, ("0".to_owned(), framed(&[0x08, 2])), "{service}");
        }
        assert_eq!(call(true, path, "other.Service").await, ("5".to_owned(), vec![]));
    }

    #[tokio::test]
    async fn watch_is_unimplemented() {
        let (status, body) = call(true, "/grpc.health.v1.Health/Watch", "").await;
        assert_eq!((status.as_str(), body.len()), ("12", 0));
        assert_eq!(method("/inference.GRPCInferenceService/ServerLive"), None);
    }
}
