//! Headers with a meaning to Weir itself.

use http::HeaderName;
use weir_types::api::{
    CALLBACK_HEADER, ERROR_CODE_HEADER, REQUEST_ID_HEADER, VERSION_HEADER, VERSION_KEY_HEADER,
};

/// Request id, in both directions.
pub const REQUEST_ID: HeaderName = HeaderName::from_static(REQUEST_ID_HEADER);
/// Error code of an error that comes from Weir itself.
pub const ERROR_CODE: HeaderName = HeaderName::from_static(ERROR_CODE_HEADER);
/// Priority of an invocation: 1 is the most urgent, 0 the default.
pub const PRIORITY: HeaderName = HeaderName::from_static("weir-priority");
/// Token, for requests whose `authorization` belongs to the function.
pub const TOKEN: HeaderName = HeaderName::from_static("weir-token");
/// Size of the JSON at the start of an inference's body, in bytes; the rest are tensors.
pub const INFERENCE_HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");
/// Role of the response cache in a response: `hit`, `miss` or `bypass`.
pub const CACHE: HeaderName = HeaderName::from_static("weir-cache");
/// Device that ran a direct model inference.
pub const DEVICE: HeaderName = HeaderName::from_static("weir-device");
/// Reason why the model ran on another device than the scheduler had chosen.
pub const FALLBACK: HeaderName = HeaderName::from_static("weir-fallback");
/// Asks for the placement of the call in the response.
pub const EXPLAIN: HeaderName = HeaderName::from_static("weir-explain");
/// The placement of the call, as JSON.
pub const PLACEMENT: HeaderName = HeaderName::from_static("weir-placement");
/// Version of the function that answered.
pub const VERSION: HeaderName = HeaderName::from_static(VERSION_HEADER);
/// Marks a copy of a call for a shadow.
pub const SHADOW: HeaderName = HeaderName::from_static("weir-shadow");
/// Key whose calls all use the same version of a function, such as the id of a user.
pub const VERSION_KEY: HeaderName = HeaderName::from_static(VERSION_KEY_HEADER);
/// Span of the caller (W3C Trace Context).
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Preferences for the handling of a request (RFC 7240).
pub const PREFER: HeaderName = HeaderName::from_static("prefer");
/// Idempotency key of an asynchronous request.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Callback address for the result of an asynchronous request.
pub const CALLBACK: HeaderName = HeaderName::from_static(CALLBACK_HEADER);
