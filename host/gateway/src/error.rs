//! API errors. This is the only place that defines their HTTP statuses and bodies.

use super::{embeddings, grpc};
use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use weir_call::Fault;
use weir_call::{headers, status};
use weir_sandbox::component::compile::CompileError;
use weir_storage::DiskFull;
use weir_storage::blobs::BlobError;
use weir_types::api::{ErrorBody, SloRefusal};
use weir_types::{ErrorCode, Version};

/// Error format that a client can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `error` is a string, as in the Open Inference Protocol.
    Weir,
    /// `error` is an object with a `message`.
    OpenAi,
    /// A gRPC status in the trailers.
    Grpc,
}

impl Dialect {
    /// Returns the error format for `path`.
    pub fn for_path(path: &str) -> Self {
        match path {
            embeddings::PATH => Self::OpenAi,
            path if grpc::is_grpc(path) => Self::Grpc,
            _ => Self::Weir,
        }
    }
}

/// An API error. The gateway adds the request id when it responds.
#[derive(Debug, Clone)]
pub struct ApiError {
    pub code: ErrorCode,
    pub text: String,
    /// Estimate that caused a rejection by admission control.
    pub slo: Option<Box<SloRefusal>>,
    /// Seconds after which the request may succeed, if they are known.
    pub retry_after_s: Option<u64>,
    /// Version of the function whose call failed.
    pub version: Option<Version>,
}

impl ApiError {
    pub fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), slo: None, retry_after_s: None, version: None }
    }

    /// Returns an error for a fault inside the node.
    pub fn internal(error: &dyn std::fmt::Display) -> Self {
        Self::new(ErrorCode::Internal, error.to_string())
    }

    /// Builds the response to the request `request_id`. The details of an internal error are only
    /// logged, and the client gets a reference to the log.
    pub fn respond(&self, dialect: Dialect, request_id: &str) -> Response {
        if dialect == Dialect::Grpc {
            return grpc::refuse(self);
        }
        let text = if self.code == ErrorCode::Internal {
            tracing::error!(request_id, error = self.text, "internal error during a request");
            format!("internal error of the node; see the node's log for request {request_id}")
        } else {
            self.text.clone()
        };
        let mut response = if dialect == Dialect::OpenAi {
            (status(self.code), axum::Json(embeddings::error(self.code, &text))).into_response()
        } else {
            let code = self.code;
            let slo = self.slo.as_deref().copied();
            let body = ErrorBody { error: text, code, request_id: request_id.to_owned(), slo };
            (status(self.code), axum::Json(body)).into_response()
        };
        response.headers_mut().insert(headers::ERROR_CODE, HeaderValue::from_static(self.code.as_str()));
        if let Some(version) = self.version {
            response.headers_mut().insert(headers::VERSION, version.0.into());
        }
        use ErrorCode as Code;
        if matches!(
            self.code,
            Code::QueueFull
                | Code::RateLimited
                | Code::AsyncQueueFull
                | Code::AnswersFull
                | Code::Unavailable
                | Code::NoDevice
                | Code::SloUnattainable
                | Code::IntermediateLost
        ) {
            let estimated_s = self.slo.as_ref().map(|slo| retry_after_s(slo));
            let after_s = self.retry_after_s.or(estimated_s).unwrap_or(1);
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
            BlobError::DiskFull(full) => full.clone().into(),
            BlobError::OutOfReach(_) => Self::new(ErrorCode::Unavailable, format!("{error}; try again")),
            _ => Self::internal(&error),
        }
    }
}

impl From<DiskFull> for ApiError {
    fn from(full: DiskFull) -> Self {
        Self::new(ErrorCode::DiskFull, full.to_string())
    }
}

/// Returns the seconds by which the call would have missed its objective, as an estimate of when
/// the load is low enough. At most a minute, since the load changes meanwhile.
fn retry_after_s(slo: &SloRefusal) -> u64 {
    let late_ns = slo.estimated_ns.saturating_sub(slo.slo_ns.unwrap_or(slo.estimated_ns));
    late_ns.div_ceil(1_000_000_000).clamp(1, 60)
}
