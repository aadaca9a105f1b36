//! Headers with a meaning to Weir itself.

use http::HeaderName;
use weir_types::api::{CALLBACK_HEADER, ERROR_CODE_HEADER, REQUEST_ID_HEADER};

/// Request id, in both directions.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static(REQUEST_ID_HEADER);
/// Error code of an error that comes from Weir itself.
pub(crate) const ERROR_CODE: HeaderName = HeaderName::from_static(ERROR_CODE_HEADER);
/// Priority of an invocation: 1 is the most urgent, 0 the default.
pub(crate) const PRIORITY: HeaderName = HeaderName::from_static("weir-priority");
/// Token, for requests whose `authorization` belongs to the function.
pub(crate) const TOKEN: HeaderName = HeaderName::from_static("weir-token");
/// Size of the JSON at the start of an inference's body, in bytes; the rest are tensors.
pub(crate) const INFERENCE_HEADER_LENGTH: HeaderName =
    HeaderName::from_static("inference-header-content-length");
/// Role of the response cache in a response: `hit`, `miss` or `bypass`.
pub(crate) const CACHE: HeaderName = HeaderName::from_static("weir-cache");
/// Device that ran a direct model inference.
pub(crate) const DEVICE: HeaderName = HeaderName::from_static("weir-device");
/// Reason why the model ran on another device than the scheduler had chosen.
pub(crate) const FALLBACK: HeaderName = HeaderName::from_static("weir-fallback");
/// Span of the caller (W3C Trace Context).
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Preferences for the handling of a request (RFC 7240).
pub(crate) const PREFER: HeaderName = HeaderName::from_static("prefer");
/// Idempotency key of an asynchronous request.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Callback address for the result of an asynchronous request.
pub(crate) const CALLBACK: HeaderName = HeaderName::from_static(CALLBACK_HEADER);
