//! The reason why a call has no response, as reported to the caller.

use weir_types::ErrorCode;
use weir_types::api::SloRefusal;

/// Why a call failed: a code for programs, a text for people, and a detail for the function's log,
/// such as the guest's call stack.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{text}")]
pub struct Fault {
    /// The code, which decides the status of the response.
    pub code: ErrorCode,
    /// The text for the caller.
    pub text: String,
    /// For the function's log, not for the caller.
    pub detail: Option<String>,
    /// The estimate, if the call was rejected because of its objective.
    pub slo: Option<Box<SloRefusal>>,
}

impl Fault {
    /// Creates a fault without detail.
    pub fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), detail: None, slo: None }
    }
}
