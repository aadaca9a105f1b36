//! The Open Inference Protocol over gRPC, on the same port as HTTP: HTTP/2 without TLS.
//!
//! tonic reads messages into its own memory. Their received bytes count against the arena's limit
//! for the duration of the call. Compressed messages are rejected: decompressing one would block a
//! gateway thread.

mod counted;
mod describe;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
pub(super) mod health;
mod message;
pub(super) mod reflection;

use super::Caller;
use super::canary::VersionChoice;
use super::error::ApiError;
use super::request_id::RequestId;
use super::traces::CallRoute;
use super::v2::{self, At, EXTENSIONS, InferenceCall, SERVER};
use crate::NodeState;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use counted::{CountedBody, ReservedBytes};
use futures::StreamExt;
use futures::stream::BoxStream;
use http::{HeaderMap, StatusCode};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::{Code, Status, Streaming};
use tower::ServiceExt;
use weir_call::status;
use weir_grpc::grpc_inference_service_server::{GrpcInferenceService, GrpcInferenceServiceServer};
use weir_grpc::infer_parameter::ParameterChoice;
use weir_grpc::{
    DESCRIPTION_BYTES_MAX, InferParameter, ModelConfigRequest, ModelConfigResponse, ModelInferRequest,
    ModelInferResponse, ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest, ModelReadyResponse,
    ModelStatisticsRequest, ModelStatisticsResponse, ModelStreamInferResponse, RepositoryIndexRequest,
    RepositoryIndexResponse, RepositoryModelLoadRequest, RepositoryModelLoadResponse,
    RepositoryModelUnloadRequest, RepositoryModelUnloadResponse, ServerLiveRequest, ServerLiveResponse,
    ServerMetadataRequest, ServerMetadataResponse, ServerReadyRequest, ServerReadyResponse,
};
use weir_types::ErrorCode;

/// Path prefix of the service's methods.
const PATH: &str = "/inference.GRPCInferenceService/";

/// Parameter of streamed responses that says whether a response is the last one of its request.
const FINAL_RESPONSE: &str = "triton_final_response";

/// Methods of the protocol that register shared memory, which clients on other hosts do not have.
const SHARED_MEMORY: [&str; 6] = [
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
];

/// Whether a path names a method of the service.
pub(super) fn is_call(path: &str) -> bool {
    path.starts_with(PATH)
}

/// Returns the method of the service that a path names, if any.
pub(super) fn method(path: &str) -> Option<&str> {
    path.strip_prefix(PATH)
}

/// Whether clients of a path read errors as gRPC statuses.
pub(super) fn is_grpc(path: &str) -> bool {
    is_call(path) || health::method(path).is_some() || reflection::method(path).is_some()
}

/// Whether a path names the method that takes a stream of messages.
pub(super) fn is_stream(path: &str) -> bool {
    method(path) == Some("ModelStreamInfer")
}

/// Serves a call; the request's extensions name the caller.
pub(super) async fn serve(node: &Arc<NodeState>, mut request: Request) -> Response {
    let method = request.uri().path().strip_prefix(PATH);
    if let Some(method) = method.filter(|method| SHARED_MEMORY.contains(method)) {
        return refuse(&v2::not_supported(method));
    }
    let caller = request.extensions().get::<Caller>();
    let arena = caller.map_or_else(|| node.arena.clone(), |caller| node.arena.tenant(&caller.tenant));
    let reserved = Arc::new(ReservedBytes::new(arena));
    request.extensions_mut().insert(reserved.clone());
    let request = request.map(|body| CountedBody::new(body, reserved));
    let caps = &node.config.sandbox.limit_caps;
    let message_bytes = node.config.gateway.infer_body_bytes_max.max(caps.request_body_bytes);
    let message_bytes = usize::try_from(message_bytes).unwrap_or(usize::MAX);
    let service = GrpcInferenceServiceServer::new(Service { node: node.clone() })
        .max_decoding_message_size(message_bytes.saturating_add(DESCRIPTION_BYTES_MAX));
    match service.oneshot(request).await {
        Ok(response) => response.map(Body::new),
        Err(never) => match never {},
    }
}

/// Responds to a call that was rejected before it reached the service.
pub(super) fn refuse(error: &ApiError) -> Response {
    status_of(error).into_http()
}

struct Service {
    node: Arc<NodeState>,
}

type GrpcResult<T> = Result<tonic::Response<T>, Status>;

/// Caller of a method, as the gateway identified it.
struct Asker {
    caller: Caller,
    id: RequestId,
    headers: HeaderMap,
    reserved: Arc<ReservedBytes>,
    arrived: Instant,
}

impl Asker {
    fn from_request<T>(request: &tonic::Request<T>) -> Result<Self, Status> {
        let extensions = request.extensions();
        let found = extensions.get::<Caller>().zip(extensions.get::<RequestId>());
        let (caller, id) = found.ok_or_else(|| Status::internal("the call has no caller"))?;
        let reserved = extensions.get::<Arc<ReservedBytes>>().cloned();
        Ok(Self {
            caller: caller.clone(),
            id: id.clone(),
            headers: request.metadata().clone().into_headers(),
            reserved: reserved.ok_or_else(|| Status::internal("the call's memory is not counted"))?,
            arrived: Instant::now(),
        })
    }
}

#[tonic::async_trait]
impl GrpcInferenceService for Service {
    async fn server_live(&self, _: tonic::Request<ServerLiveRequest>) -> GrpcResult<ServerLiveResponse> {
        Ok(ServerLiveResponse { live: true }.into())
    }

    async fn server_ready(&self, _: tonic::Request<ServerReadyRequest>) -> GrpcResult<ServerReadyResponse> {
        Ok(ServerReadyResponse { ready: self.node.why_unready().is_none() }.into())
    }

    async fn server_metadata(
        &self,
        _: tonic::Request<ServerMetadataRequest>,
    ) -> GrpcResult<ServerMetadataResponse> {
        let name = SERVER.to_owned();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let extensions = EXTENSIONS.iter().map(|&name| name.to_owned()).collect();
        Ok(ServerMetadataResponse { name, version, extensions }.into())
    }

    async fn model_ready(
        &self,
        request: tonic::Request<ModelReadyRequest>,
    ) -> GrpcResult<ModelReadyResponse> {
        let Asker { caller, .. } = Asker::from_request(&request)?;
        let ModelReadyRequest { name, version } = request.into_inner();
        let found = At::new(name, version).find(&self.node, &caller).await;
        match found {
            Ok(target) => {
                let ready = self.node.is_ready() && target.unready(&self.node).is_none();
                Ok(ModelReadyResponse { ready }.into())
            }
            Err(error) if status(error.code) == StatusCode::NOT_FOUND => {
                Ok(ModelReadyResponse { ready: false }.into())
            }
            Err(error) => Err(status_of(&error)),
        }
    }

    async fn model_metadata(
        &self,
        request: tonic::Request<ModelMetadataRequest>,
    ) -> GrpcResult<ModelMetadataResponse> {
        let Asker { caller, .. } = Asker::from_request(&request)?;
        let ModelMetadataRequest { name, version } = request.into_inner();
        let described = describe::metadata(&self.node, &caller, &At::new(name, version)).await;
        described.map(Into::into).map_err(|error| status_of(&error))
    }

    async fn model_config(
        &self,
        request: tonic::Request<ModelConfigRequest>,
    ) -> GrpcResult<ModelConfigResponse> {
        let Asker { caller, .. } = Asker::from_request(&request)?;
        let ModelConfigRequest { name, version } = request.into_inner();
        let described = describe::config(&self.node, &caller, &At::new(name, version)).await;
        let config = Some(described.map_err(|error| status_of(&error))?);
        Ok(ModelConfigResponse { config }.into())
    }

    async fn model_statistics(
        &self,
        request: tonic::Request<ModelStatisticsRequest>,
    ) -> GrpcResult<ModelStatisticsResponse> {
        let Asker { caller, .. } = Asker::from_request(&request)?;
        let ModelStatisticsRequest { name, version } = request.into_inner();
        let model_stats = describe::statistics(&self.node, &caller, name, version).await;
        let model_stats = model_stats.map_err(|error| status_of(&error))?;
        Ok(ModelStatisticsResponse { model_stats }.into())
    }

    async fn repository_index(
        &self,
        request: tonic::Request<RepositoryIndexRequest>,
    ) -> GrpcResult<RepositoryIndexResponse> {
        let Asker { caller, .. } = Asker::from_request(&request)?;
        let ready = request.into_inner().ready;
        Ok(RepositoryIndexResponse { models: describe::index(&self.node, &caller, ready) }.into())
    }

    async fn repository_model_load(
        &self,
        request: tonic::Request<RepositoryModelLoadRequest>,
    ) -> GrpcResult<RepositoryModelLoadResponse> {
        let Asker { caller, id, headers, .. } = Asker::from_request(&request)?;
        let RepositoryModelLoadRequest { model_name, parameters, .. } = request.into_inner();
        let at = At::new(model_name, String::new());
        let names: Vec<_> = parameters.into_keys().collect();
        let loaded = v2::load(&self.node, &caller, &id, &headers, &at, &names).await;
        loaded.map(|()| RepositoryModelLoadResponse {}.into()).map_err(|error| status_of(&error))
    }

    async fn repository_model_unload(
        &self,
        request: tonic::Request<RepositoryModelUnloadRequest>,
    ) -> GrpcResult<RepositoryModelUnloadResponse> {
        let Asker { caller, .. } = Asker::from_request(&request)?;
        let at = At::new(request.into_inner().model_name, String::new());
        let unloaded = v2::unload(&self.node, &caller, &at);
        unloaded.map(|()| RepositoryModelUnloadResponse {}.into()).map_err(|error| status_of(&error))
    }

    async fn model_infer(
        &self,
        request: tonic::Request<ModelInferRequest>,
    ) -> GrpcResult<ModelInferResponse> {
        let asker = Asker::from_request(&request)?;
        infer(&self.node, &asker, asker.arrived, request.into_inner()).await.map(Into::into)
    }

    type ModelStreamInferStream = BoxStream<'static, Result<ModelStreamInferResponse, Status>>;

    /// Runs each message as a separate inference. Responses come in the order of the messages, one
    /// at a time.
    async fn model_stream_infer(
        &self,
        request: tonic::Request<Streaming<ModelInferRequest>>,
    ) -> GrpcResult<Self::ModelStreamInferStream> {
        let asker = Asker::from_request(&request)?;
        let node = self.node.clone();
        let state = (node, asker, request.into_inner());
        let answers = futures::stream::unfold(state, async |(node, asker, mut messages)| {
            let message = match messages.next().await? {
                Ok(message) => message,
                Err(status) => return Some((Err(status), (node, asker, messages))),
            };
            let answer = match infer(&node, &asker, Instant::now(), message).await {
                Ok(mut answer) => {
                    answer.parameters.insert(FINAL_RESPONSE.to_owned(), bool_parameter(true));
                    ModelStreamInferResponse { infer_response: Some(answer), error_message: String::new() }
                }
                Err(status) => ModelStreamInferResponse {
                    infer_response: None,
                    error_message: status.message().to_owned(),
                },
            };
            // Bytes of the next message that have already arrived lose their count too. They are
            // few: the stream is read no further.
            asker.reserved.clear();
            Some((Ok(answer), (node, asker, messages)))
        });
        Ok(tonic::Response::new(answers.boxed()))
    }
}

async fn infer(
    node: &NodeState,
    asker: &Asker,
    arrived: Instant,
    message: ModelInferRequest,
) -> Result<ModelInferResponse, Status> {
    let at = At::new(message.model_name.clone(), message.model_version.clone());
    let answered = async {
        let choice = VersionChoice::from_headers(&asker.headers);
        let target = at.find_for_call(node, &asker.caller, choice).await?;
        let mut call =
            InferenceCall::new(node, target, CallRoute::Grpc, None, &asker.headers, &asker.id, arrived)?;
        if let Some(timeout) = timeout(&asker.headers) {
            call.end_by(arrived + timeout);
        }
        let limits = call.limits(node);
        let read = async |_: &InferenceCall| message::read(node, message, limits.request).await;
        call.answer(node, read, async |answered| message::write(answered, &limits)).await
    };
    answered.await.map_err(|error: ApiError| status_of(&error))
}

fn bool_parameter(value: bool) -> InferParameter {
    InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(value)) }
}

/// Returns the client's deadline in gRPC's format: up to eight digits and a unit.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3_600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Converts an error to a gRPC status, by way of its HTTP status.
fn status_of(error: &ApiError) -> Status {
    let code = match status(error.code).as_u16() {
        _ if error.code == ErrorCode::Cancelled => Code::Cancelled,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 | 410 => Code::NotFound,
        408 => Code::DeadlineExceeded,
        409 => Code::Aborted,
        413 | 429 | 431 | 507 => Code::ResourceExhausted,
        400..=499 => Code::InvalidArgument,
        501 => Code::Unimplemented,
        503 => Code::Unavailable,
        504 => Code::DeadlineExceeded,
        _ => Code::Internal,
    };
    if error.code == ErrorCode::Internal {
        tracing::error!(error = error.text, "internal error during a call");
        return Status::new(code, "internal error of the node; see the node's log");
    }
    Status::new(code, &error.text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn grpc_timeout_is_a_number_with_a_unit() {
        let of = |text: &'static str| {
            timeout(&HeaderMap::from_iter([(
                "grpc-timeout".parse().unwrap(),
                HeaderValue::from_static(text),
            )]))
        };
        assert_eq!(of("20S"), Some(Duration::from_secs(20)));
        assert_eq!(of("99999999m"), Some(Duration::from_millis(99_999_999)));
        assert_eq!((of("1000000000n"), of("S"), of(""), of("5x"), of("-1S")), (None, None, None, None, None));
    }

    #[test]
    fn every_error_code_maps_to_a_grpc_error() {
        for &code in ErrorCode::ALL {
            assert_ne!(status_of(&ApiError::new(code, "x")).code(), Code::Ok, "{code}");
        }
    }
}
