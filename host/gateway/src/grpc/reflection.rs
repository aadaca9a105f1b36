//! gRPC's reflection protocol, with which tools such as grpcurl find the services and their messages.

use super::refuse;
use crate::error::ApiError;
use axum::body::Body;
use axum::response::Response;
use futures::stream::{BoxStream, StreamExt as _};
use std::future::{Ready, ready};
use tonic::server::{Grpc, StreamingService};
use tonic::{Status, Streaming};
use weir_grpc::{BoundedCodec, ServerReflectionRequest, ServerReflectionResponse};
use weir_types::ErrorCode;

/// Path prefixes of the service, in both versions of the protocol. Many tools ask for the older one
/// only.
const PATHS: [&str; 2] =
    ["/grpc.reflection.v1.ServerReflection/", "/grpc.reflection.v1alpha.ServerReflection/"];
/// Limit of a request, which has the name of a symbol.
const REQUEST_BYTES_MAX: usize = 4 << 10;

/// The method that a path names; `None` for paths of other services.
pub(crate) fn method(path: &str) -> Option<&str> {
    PATHS.iter().find_map(|prefix| path.strip_prefix(prefix))
}

/// Serves a call of `method`.
pub(crate) async fn serve(method: &str, request: http::Request<Body>) -> Response {
    if method != "ServerReflectionInfo" {
        let text = format!("reflection has no method {method:?}; call ServerReflectionInfo");
        return refuse(&ApiError::new(ErrorCode::NotSupported, text));
    }
    let codec = BoundedCodec::<ServerReflectionResponse, ServerReflectionRequest>::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(REQUEST_BYTES_MAX);
    grpc.streaming(Reflection, request).await.map(Body::new)
}

struct Reflection;

impl StreamingService<ServerReflectionRequest> for Reflection {
    type Response = ServerReflectionResponse;
    type ResponseStream = BoxStream<'static, Result<ServerReflectionResponse, Status>>;
    type Future = Ready<Result<tonic::Response<Self::ResponseStream>, Status>>;

    /// Answers each request in turn. The first request that cannot be read ends the stream.
    fn call(&mut self, request: tonic::Request<Streaming<ServerReflectionRequest>>) -> Self::Future {
        let requests = Some(request.into_inner());
        let answers = futures::stream::unfold(requests, async |requests| {
            let mut requests = requests?;
            Some(match requests.next().await? {
                Ok(request) => (Ok(request.answer()), Some(requests)),
                Err(status) => (Err(status), None),
            })
        });
        ready(Ok(tonic::Response::new(answers.boxed())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    /// Sends messages of field `field` with a text. Returns the gRPC status, and the body.
    async fn call(path: &str, field: u8, texts: &[&str]) -> (String, Vec<u8>) {
        let message = |text: &&str| {
            let len = u8::try_from(text.len()).unwrap();
            [&[0, 0, 0, 0, len + 2, (field << 3) | 2, len][..], text.as_bytes()].concat()
        };
        let messages: Vec<u8> = texts.iter().flat_map(message).collect();
        let request = http::Request::post(path).header("content-type", "application/grpc");
        let response = serve(method(path).unwrap(), request.body(Body::from(messages)).unwrap()).await;
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned().unwrap_or_default();
        let status = head.headers.get("grpc-status").or_else(|| trailers.get("grpc-status")).cloned();
        (status.unwrap().to_str().unwrap().to_owned(), body.to_bytes().to_vec())
    }

    fn contains(body: &[u8], text: &str) -> bool {
        body.windows(text.len()).any(|part| part == text.as_bytes())
    }

    #[tokio::test]
    async fn both_versions_answer_every_request_of_a_stream() {
        for path in PATHS.map(|prefix| format!("{prefix}ServerReflectionInfo")) {
            let (status, body) = call(&path, 7, &[""]).await;
            assert!(status == "0" && contains(&body, "inference.GRPCInferenceService"), "{path}");
            let (status, body) = call(&path, 4, &["inference.Nothing", "inference.DataType"]).await;
            assert!(status == "0" && contains(&body, "no such file") && contains(&body, "inference.proto"));
        }
    }

    #[tokio::test]
    async fn other_methods_and_long_requests_are_refused() {
        assert_eq!(call("/grpc.reflection.v1.ServerReflection/Other", 7, &[""]).await.0, "12");
        assert_eq!(method("/grpc.reflection.v2.ServerReflection/ServerReflectionInfo"), None);
        let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
        let request = http::Request::post(path).header("content-type", "application/grpc");
        let long = Body::from([&[0, 0, 1, 0, 0][..], &[0; 65_536]].concat());
        let response = serve("ServerReflectionInfo", request.body(long).unwrap()).await;
        let trailers = response.into_body().collect().await.unwrap().trailers().cloned().unwrap();
        assert_eq!(trailers["grpc-status"], "11");
    }
}
