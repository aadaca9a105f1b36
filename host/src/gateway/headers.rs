//! The headers that have a meaning to Weir itself.

use http::HeaderName;
use weir_types::api::{CALLBACK_HEADER, ERROR_CODE_HEADER, REQUEST_ID_HEADER};

/// What a request is called, in both directions.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static(REQUEST_ID_HEADER);
/// The code of an error that is Weir's own.
pub(crate) const ERROR_CODE: HeaderName = HeaderName::from_static(ERROR_CODE_HEADER);
/// The priority of an invocation: 1 is the most urgent, 0 the default.
pub(crate) const PRIORITY: HeaderName = HeaderName::from_static("weir-priority");
/// The token, where `authorization` is the function's own.
pub(crate) const TOKEN: HeaderName = HeaderName::from_static("weir-token");
/// How many bytes of an inference's body are JSON; the rest are tensors.
pub(crate) const INFERENCE_HEADER_LENGTH: HeaderName =
    HeaderName::from_static("inference-header-content-length");
/// What the response cache had to do with an answer: `hit`, `miss` or `bypass`.
pub(crate) const CACHE: HeaderName = HeaderName::from_static("weir-cache");
/// The device that a model by itself has run on.
pub(crate) const DEVICE: HeaderName = HeaderName::from_static("weir-device");
/// Why that is not the device that the scheduler had chosen, where it is not.
pub(crate) const FALLBACK: HeaderName = HeaderName::from_static("weir-fallback");
/// The caller's span (W3C Trace Context).
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// How a request is to be answered (RFC 7240).
pub(crate) const PREFER: HeaderName = HeaderName::from_static("prefer");
/// The client's own name for a request that is to be run later.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Where the answer of such a request is to be sent.
pub(crate) const CALLBACK: HeaderName = HeaderName::from_static(CALLBACK_HEADER);
