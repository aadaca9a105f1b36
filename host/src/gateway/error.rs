//! API errors. This is the only place that defines their HTTP statuses and bodies.

use super::{embeddings, grpc, headers};
use crate::blobs::BlobError;
use crate::component::compile::CompileError;
use crate::instance::Fault;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode};
use weir_types::ErrorCode;
use weir_types::api::{ErrorBody, SloRefusal};

/// Error format that a client can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `error` is a string, as in the Open Inference Protocol.
    Weir,
    /// `error` is an object with a `message`.
    OpenAi,
    /// A gRPC status in the trailers.
    Grpc,
}

impl Dialect {
    /// Returns the error format for `path`.
    pub(crate) fn of(path: &str) -> Self {
        match path {
            embeddings::PATH => Self::OpenAi,
            path if grpc::is_call(path) => Self::Grpc,
            _ => Self::Weir,
        }
    }
}

/// An API error. The gateway adds the request id when it responds.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) code: ErrorCode,
    pub(crate) text: String,
    /// Estimate behind a rejection by admission control.
    pub(crate) slo: Option<Box<SloRefusal>>,
}

impl ApiError {
    pub(crate) fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), slo: None }
    }

    /// Returns an error for a fault inside the node.
    pub(crate) fn internal(error: &dyn std::fmt::Display) -> Self {
        Self::new(ErrorCode::Internal, error.to_string())
    }

    /// Builds the response to the request `request_id`. The details of an internal error are only
    /// logged, and the client gets a reference to the log.
    pub(crate) fn respond(&self, dialect: Dialect, request_id: &str) -> Response {
        if dialect == Dialect::Grpc {
            return grpc::refuse(self);
        }
        let text = if self.code == ErrorCode::Internal {
            tracing::error!(request_id, error = self.text, "request failed inside the node");
            format!("the node has a fault; its log tells more about request {request_id}")
        } else {
            self.text.clone()
        };
        let mut response = if dialect == Dialect::OpenAi {
            (status(self.code), axum::Json(embeddings::error(self.code, &text))).into_response()
        } else {
            let (code, slo) = (self.code, self.slo.as_deref().copied());
            let body = ErrorBody { error: text, code, request_id: request_id.to_owned(), slo };
            (status(self.code), axum::Json(body)).into_response()
        };
        response.headers_mut().insert(headers::ERROR_CODE, HeaderValue::from_static(self.code.as_str()));
        use ErrorCode as Code;
        if matches!(
            self.code,
            Code::QueueFull
                | Code::AsyncQueueFull
                | Code::Unavailable
                | Code::SloUnattainable
                | Code::IntermediateLost
        ) {
            let after_s = self.slo.as_ref().map_or(1, |slo| retry_after_s(slo));
            response.headers_mut().insert(http::header::RETRY_AFTER, after_s.into());
        }
        if self.code == ErrorCode::Unauthorized {
            response.headers_mut().insert(http::header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The error travels as a response extension until the request id is known.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = status(self.code).into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Fault> for ApiError {
    fn from(fault: Fault) -> Self {
        Self { slo: fault.slo, ..Self::new(fault.code, fault.text) }
    }
}

impl From<ApiError> for Fault {
    fn from(error: ApiError) -> Self {
        Self { slo: error.slo, ..Self::new(error.code, error.text) }
    }
}

impl From<CompileError> for ApiError {
    fn from(error: CompileError) -> Self {
        Self::new(error.code, error.text)
    }
}

impl From<BlobError> for ApiError {
    fn from(error: BlobError) -> Self {
        match &error {
            BlobError::OutOfReach(_) => Self::new(ErrorCode::Unavailable, format!("{error}; try again")),
            _ => Self::internal(&error),
        }
    }
}

/// Returns the seconds by which the call would have missed its objective, as an estimate of when
/// the load is low enough. At most a minute, since the load changes meanwhile.
fn retry_after_s(slo: &SloRefusal) -> u64 {
    let late_ns = slo.estimated_ns.saturating_sub(slo.slo_ns.unwrap_or(slo.estimated_ns));
    late_ns.div_ceil(1_000_000_000).clamp(1, 60)
}

/// Returns the HTTP status of a code.
pub(crate) fn status(code: ErrorCode) -> StatusCode {
    use ErrorCode as Code;
    match code {
        Code::InvalidName
        | Code::InvalidRequest
        | Code::InvalidManifest
        | Code::LimitOverCap
        | Code::BodyMismatch => StatusCode::BAD_REQUEST,
        Code::InvalidComponent
        | Code::UnknownImport
        | Code::NoEntryPoint
        | Code::CompileLimit
        | Code::InvalidModel
        | Code::ExternalData
        | Code::ModelLimit
        | Code::InvalidWorkflow
        | Code::InvalidKernelGraph
        | Code::NoConfiguration
        | Code::IdempotencyMismatch => StatusCode::UNPROCESSABLE_ENTITY,
        Code::VersionConflict | Code::Conflict | Code::NotEnded => StatusCode::CONFLICT,
        Code::Unauthorized => StatusCode::UNAUTHORIZED,
        Code::NotGranted => StatusCode::FORBIDDEN,
        Code::RouteNotFound
        | Code::FunctionNotFound
        | Code::ModelNotFound
        | Code::WorkflowNotFound
        | Code::VersionNotFound
        | Code::InvocationNotFound
        | Code::ObjectNotFound => StatusCode::NOT_FOUND,
        Code::InvocationExpired => StatusCode::GONE,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::QueueFull | Code::AsyncQueueFull => StatusCode::TOO_MANY_REQUESTS,
        // The function exceeded its limits: its owner can fix that, and the caller cannot.
        Code::MemoryLimit
        | Code::TableLimit
        | Code::HandleLimit
        | Code::HostCallLimit
        | Code::NoCapacity
        | Code::ObjectsFull => StatusCode::INSUFFICIENT_STORAGE,
        Code::CpuTimeLimit | Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::ResponseTooLarge | Code::NoResponse | Code::GuestError | Code::NodeLost => {
            StatusCode::BAD_GATEWAY
        }
        Code::NotSupported => StatusCode::NOT_IMPLEMENTED,
        Code::GuestTrap | Code::StackOverflow | Code::ModelError | Code::Internal => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        Code::Unavailable | Code::SloUnattainable | Code::IntermediateLost => StatusCode::SERVICE_UNAVAILABLE,
        // nginx's "client closed request". The client is gone, but logs and metrics show the
        // status.
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_an_error_status() {
        for &code in ErrorCode::ALL {
            let status = status(code);
            assert!(status.is_client_error() || status.is_server_error(), "{code} is {status}");
        }
    }
}
