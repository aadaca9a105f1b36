//! HTTP statuses of error codes: the only place that chooses them.

use http::StatusCode;
use weir_types::ErrorCode;

/// Returns the HTTP status of a code.
pub fn status(code: ErrorCode) -> StatusCode {
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
        | Code::OperatorNotAllowed
        | Code::ModelLimit
        | Code::InvalidWorkflow
        | Code::InvalidKernelGraph
        | Code::InvalidTrigger
        | Code::NoConfiguration
        | Code::IdempotencyMismatch => StatusCode::UNPROCESSABLE_ENTITY,
        Code::VersionConflict | Code::SignatureChanged | Code::Conflict | Code::NotEnded => {
            StatusCode::CONFLICT
        }
        Code::Unauthorized => StatusCode::UNAUTHORIZED,
        Code::NotGranted | Code::Forbidden | Code::CrossSite => StatusCode::FORBIDDEN,
        Code::ForeignHost => StatusCode::MISDIRECTED_REQUEST,
        Code::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        Code::RouteNotFound
        | Code::FunctionNotFound
        | Code::ModelNotFound
        | Code::WorkflowNotFound
        | Code::VersionNotFound
        | Code::CanaryNotFound
        | Code::ShadowNotFound
        | Code::InvocationNotFound
        | Code::ObjectNotFound
        | Code::KeyNotFound
        | Code::SecretNotFound
        | Code::TriggerNotFound => StatusCode::NOT_FOUND,
        Code::InvocationExpired => StatusCode::GONE,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::BodyStalled => StatusCode::REQUEST_TIMEOUT,
        Code::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::QueueFull | Code::RateLimited | Code::AsyncQueueFull | Code::AnswersFull => {
            StatusCode::TOO_MANY_REQUESTS
        }
        // The function exceeded its limits: its owner can fix that, and the caller cannot.
        Code::MemoryLimit
        | Code::TableLimit
        | Code::HandleLimit
        | Code::HostCallLimit
        | Code::NoCapacity
        | Code::ObjectsFull
        | Code::QuotaExceeded
        | Code::DiskFull => StatusCode::INSUFFICIENT_STORAGE,
        Code::CpuTimeLimit | Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::ResponseTooLarge | Code::NoResponse | Code::GuestError | Code::NodeLost => {
            StatusCode::BAD_GATEWAY
        }
        Code::NotSupported => StatusCode::NOT_IMPLEMENTED,
        Code::GuestTrap
        | Code::StackOverflow
        | Code::ModelError
        | Code::ComponentDamaged
        | Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        Code::Unavailable
        | Code::NoDevice
        | Code::SloUnattainable
        | Code::IntermediateLost
        | Code::WorkerLost
        | Code::ModelQuarantined
        | Code::SecretUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        // nginx's "client closed request". The client has disconnected, but logs and metrics show
        // the status.
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
