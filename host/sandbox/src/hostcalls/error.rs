//! The two ways in which a host call fails: an error for the guest, or a fault of the host that
//! traps the guest.

use super::InferenceView;
use super::bindings::weir::inference::tensors::Error as GuestError;
use weir_inference::InferenceError;

/// The reason why a host call failed.
#[derive(Debug)]
pub enum CallError {
    /// The guest receives the error and decides how to continue.
    Guest(GuestError),
    /// The invocation ends.
    Trap(wasmtime::Error),
}

impl CallError {
    #[expect(clippy::needless_pass_by_value, reason = "shaped for map_err")]
    pub(crate) fn invalid(text: impl ToString) -> Self {
        Self::Guest(GuestError::InvalidArgument(text.to_string()))
    }

    #[expect(clippy::needless_pass_by_value, reason = "shaped for map_err")]
    pub(crate) fn exhausted(text: impl ToString) -> Self {
        Self::Guest(GuestError::ResourceExhausted(text.to_string()))
    }
}

impl From<GuestError> for CallError {
    fn from(error: GuestError) -> Self {
        Self::Guest(error)
    }
}

impl From<wasmtime::component::ResourceTableError> for CallError {
    fn from(error: wasmtime::component::ResourceTableError) -> Self {
        // A full table means the handle limit: it ends the invocation, since a guest cannot handle
        // it midway through a call.
        Self::Trap(error.into())
    }
}

impl From<weir_device::ArenaExhausted> for CallError {
    fn from(error: weir_device::ArenaExhausted) -> Self {
        Self::exhausted(error)
    }
}

impl From<InferenceError> for CallError {
    fn from(error: InferenceError) -> Self {
        let text = error.to_string();
        Self::Guest(match error.kind() {
            weir_inference::ErrorKind::InvalidArgument => GuestError::InvalidArgument(text),
            weir_inference::ErrorKind::ResourceExhausted => GuestError::ResourceExhausted(text),
            weir_inference::ErrorKind::DeadlineExceeded => GuestError::DeadlineExceeded,
            weir_inference::ErrorKind::Cancelled => GuestError::Cancelled,
            weir_inference::ErrorKind::Unavailable => GuestError::Unavailable(text),
            weir_inference::ErrorKind::Internal => GuestError::Internal(text),
        })
    }
}

impl InferenceView<'_> {
    /// Converts the error of a failed call, for the generated bindings. Also logs missing grants to
    /// the function's log, since guests often hide them.
    pub(super) fn convert(&self, error: CallError) -> wasmtime::Result<GuestError> {
        match error {
            CallError::Guest(error) => {
                if let GuestError::NotGranted(text) = &error {
                    self.sink.refused(text);
                }
                Ok(error)
            }
            CallError::Trap(error) => Err(error),
        }
    }
}
