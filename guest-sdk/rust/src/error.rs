//! Errors, and their HTTP responses.

use crate::bindings::imports::weir::inference::tensors::Error as Raw;
use std::fmt;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a call to the node, or of the function itself. An error returned from a handler becomes
/// the response; see [`Error::status`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// An argument is invalid: a shape that does not match the data, an unknown input name, a wrong
    /// element type.
    InvalidArgument(String),
    /// The arguments of a model run are invalid: an unknown input name, a wrong element type or
    /// shape. The function chose them, so the client sees a failure of the function.
    InvalidRun(String),
    /// No model of that name, or no such version of it, is deployed.
    NotFound(String),
    /// The model exists, but the function's manifest does not grant access to it.
    NotGranted(String),
    /// A limit of the function or of the node is exhausted.
    ResourceExhausted(String),
    /// The deadline of the run or of the invocation has passed.
    DeadlineExceeded,
    /// The run was cancelled, by the function or because the client disconnected.
    Cancelled,
    /// A temporary failure; the call is safe to retry.
    Unavailable(String),
    /// The model failed, or the node has an internal error.
    Internal(String),
    /// An error response defined by the function.
    Status {
        /// HTTP status, 400 or higher.
        status: u16,
        /// Body of the response, for people.
        message: String,
    },
}

impl Error {
    /// Creates an error response with a status of 400 or higher and a text for the client.
    ///
    /// ```
    /// # use weir::{Error, Request, Response, Result};
    /// fn handle(request: Request) -> Result<Response> {
    ///     match request.path() {
    ///         "/" => Ok(Response::text("hello")),
    ///         other => Err(Error::new(404, format!("there is nothing at {other}"))),
    ///     }
    /// }
    /// ```
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self::Status { status, message: message.into() }
    }

    /// HTTP status of this error: 400 for [`Error::InvalidArgument`], 503 for temporary failures,
    /// 504 for a deadline, and 500 for failures that the client cannot avoid.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Status { status, .. } => *status,
            Self::InvalidArgument(_) => 400,
            Self::ResourceExhausted(_) | Self::Unavailable(_) | Self::Cancelled => 503,
            Self::DeadlineExceeded => 504,
            Self::InvalidRun(_) | Self::NotFound(_) | Self::NotGranted(_) | Self::Internal(_) => 500,
        }
    }

    /// The error of a model run.
    pub(crate) fn of_run(raw: Raw) -> Self {
        match raw.into() {
            Self::InvalidArgument(text) => Self::InvalidRun(text),
            other => other,
        }
    }

    pub(crate) fn invalid(text: impl fmt::Display) -> Self {
        Self::InvalidArgument(text.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, text) = match self {
            Self::Status { message, .. } => return f.write_str(message),
            Self::DeadlineExceeded => return f.write_str("the deadline passed"),
            Self::Cancelled => return f.write_str("the run was cancelled"),
            Self::InvalidArgument(text) => ("invalid argument", text),
            Self::InvalidRun(text) => ("invalid run", text),
            Self::NotFound(text) => ("not found", text),
            Self::NotGranted(text) => ("not granted", text),
            Self::ResourceExhausted(text) => ("resource exhausted", text),
            Self::Unavailable(text) => ("unavailable", text),
            Self::Internal(text) => ("internal error", text),
        };
        write!(f, "{kind}: {text}")
    }
}

impl std::error::Error for Error {}

/// Conversion of any error to an error response.
pub trait OrStatus<T> {
    /// Converts the error to [`Error::Status`] with the given status and the error's text.
    ///
    /// ```
    /// # use weir::{OrStatus as _, Request, Response, Result};
    /// fn handle(request: Request) -> Result<Response> {
    ///     let number: u32 = request.query_value("n").unwrap_or_default().parse().or_status(400)?;
    ///     Ok(Response::text(format!("{}\n", u64::from(number) * 2)))
    /// }
    /// ```
    fn or_status(self, status: u16) -> Result<T>;
}

impl<T, E: fmt::Display> OrStatus<T> for Result<T, E> {
    fn or_status(self, status: u16) -> Result<T> {
        self.map_err(|error| Error::new(status, error.to_string()))
    }
}

impl From<Raw> for Error {
    fn from(raw: Raw) -> Self {
        match raw {
            Raw::InvalidArgument(text) => Self::InvalidArgument(text),
            Raw::NotFound(text) => Self::NotFound(text),
            Raw::NotGranted(text) => Self::NotGranted(text),
            Raw::ResourceExhausted(text) => Self::ResourceExhausted(text),
            Raw::DeadlineExceeded => Self::DeadlineExceeded,
            Raw::Cancelled => Self::Cancelled,
            Raw::Unavailable(text) => Self::Unavailable(text),
            Raw::Internal(text) => Self::Internal(text),
        }
    }
}

/// Converts the error of a tensor function for its caller.
impl From<Error> for Raw {
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidArgument(text) => Self::InvalidArgument(text),
            Error::NotFound(text) => Self::NotFound(text),
            Error::NotGranted(text) => Self::NotGranted(text),
            Error::ResourceExhausted(text) => Self::ResourceExhausted(text),
            Error::DeadlineExceeded => Self::DeadlineExceeded,
            Error::Cancelled => Self::Cancelled,
            Error::Unavailable(text) => Self::Unavailable(text),
            Error::InvalidRun(text) | Error::Internal(text) => Self::Internal(text),
            Error::Status { status: 400..=499, message } => Self::InvalidArgument(message),
            Error::Status { message, .. } => Self::Internal(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_round_trip_through_the_host_type() {
        let text = || "why".to_owned();
        for error in [
            Error::InvalidArgument(text()),
            Error::NotFound(text()),
            Error::NotGranted(text()),
            Error::ResourceExhausted(text()),
            Error::DeadlineExceeded,
            Error::Cancelled,
            Error::Unavailable(text()),
            Error::Internal(text()),
        ] {
            assert_eq!(Error::from(Raw::from(error.clone())), error);
            assert!(error.status() >= 400);
        }
    }

    #[test]
    fn invalid_arguments_of_a_run_are_the_functions_fault() {
        let error = Error::of_run(Raw::InvalidArgument("x".to_owned()));
        assert_eq!((&error, error.status()), (&Error::InvalidRun("x".to_owned()), 500));
        assert!(matches!(Raw::from(error), Raw::Internal(text) if text == "x"));
        assert_eq!(Error::of_run(Raw::DeadlineExceeded), Error::DeadlineExceeded);
    }

    #[test]
    fn status_errors_map_to_invalid_argument_or_internal() {
        assert!(matches!(Raw::from(Error::new(404, "x")), Raw::InvalidArgument(text) if text == "x"));
        assert!(matches!(Raw::from(Error::new(502, "x")), Raw::Internal(text) if text == "x"));
        let parsed: Result<u8> = "x".parse::<u8>().or_status(422);
        assert_eq!(parsed.unwrap_err().status(), 422);
    }
}
