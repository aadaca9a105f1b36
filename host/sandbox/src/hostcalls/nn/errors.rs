//! Implements `wasi:nn/errors`.

use super::bindings::wasi::nn::errors::{ErrorCode, Host, HostError};
use crate::hostcalls::bindings::weir::inference::tensors::Error as GuestError;
use crate::hostcalls::{CallError, InferenceView};
use wasmtime::component::{Resource, ResourceTableError};

/// An error that a guest holds.
#[derive(Debug, Clone)]
pub struct NnError {
    pub(super) code: ErrorCode,
    text: String,
}

/// The reason why a call failed: like [`CallError`], with the errors of `wasi:nn`.
pub(super) enum NnFailure {
    Guest(NnError),
    Trap(wasmtime::Error),
}

/// The result of a call that can fail.
pub(super) type NnResult<T> = wasmtime::Result<Result<T, Resource<NnError>>>;

impl NnError {
    pub(super) fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

impl From<NnError> for NnFailure {
    fn from(error: NnError) -> Self {
        Self::Guest(error)
    }
}

impl From<ResourceTableError> for NnFailure {
    fn from(error: ResourceTableError) -> Self {
        Self::Trap(error.into())
    }
}

impl From<CallError> for NnFailure {
    fn from(error: CallError) -> Self {
        let error = match error {
            CallError::Guest(error) => error,
            CallError::Trap(error) => return Self::Trap(error),
        };
        let (code, text) = match error {
            GuestError::InvalidArgument(text) => (ErrorCode::InvalidArgument, text),
            GuestError::NotFound(text) => (ErrorCode::NotFound, text),
            GuestError::NotGranted(text) => (ErrorCode::Security, text),
            GuestError::ResourceExhausted(text) => (ErrorCode::TooLarge, text),
            GuestError::DeadlineExceeded => (ErrorCode::Timeout, "the deadline passed".to_owned()),
            GuestError::Cancelled => (ErrorCode::RuntimeError, "the run was cancelled".to_owned()),
            GuestError::Unavailable(text) | GuestError::Internal(text) => (ErrorCode::RuntimeError, text),
        };
        Self::Guest(NnError { code, text })
    }
}

impl InferenceView<'_> {
    /// Converts the result of a call for the guest: a failure becomes a resource.
    pub(super) fn answer<T>(&mut self, done: Result<T, NnFailure>) -> NnResult<T> {
        match done {
            Ok(value) => Ok(Ok(value)),
            Err(NnFailure::Guest(error)) => {
                if error.code == ErrorCode::Security {
                    self.sink.refused(&error.text);
                }
                Ok(Err(self.table.push(error)?))
            }
            Err(NnFailure::Trap(error)) => Err(error),
        }
    }
}

impl Host for InferenceView<'_> {}

impl HostError for InferenceView<'_> {
    fn code(&mut self, error: Resource<NnError>) -> wasmtime::Result<ErrorCode> {
        Ok(self.table.get(&error)?.code)
    }

    fn data(&mut self, error: Resource<NnError>) -> wasmtime::Result<String> {
        Ok(self.table.get(&error)?.text.clone())
    }

    fn drop(&mut self, error: Resource<NnError>) -> wasmtime::Result<()> {
        self.table.delete(error)?;
        Ok(())
    }
}
