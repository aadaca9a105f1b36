//! Requests to the collector, over gRPC or HTTP.

use crate::{OtlpError, OtlpProtocol};
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body_util::{BodyExt, Limited};
use prost::Message;
use std::error::Error;
use std::fmt::{self, Write as _};
use std::time::Duration;
use weir_telemetry::Signal;

/// Size limit of a response.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

const TE: HeaderName = HeaderName::from_static("te");
const GRPC_STATUS: &str = "grpc-status";
const GRPC_MESSAGE: &str = "grpc-message";

/// Statuses of gRPC after which a request may be repeated (OTLP, "Failures").
const RETRYABLE: [u8; 7] = [
    1,  // cancelled
    4,  // deadline exceeded
    8,  // resource exhausted
    10, // aborted
    11, // out of range
    14, // unavailable
    15, // data loss
];

/// A collector.
pub(crate) struct Endpoint {
    pub(crate) url: String,
    pub(crate) protocol: OtlpProtocol,
    pub(crate) headers: HeaderMap,
    /// The authority of its certificate, in PEM; none for the system's authorities.
    pub(crate) ca: Option<Vec<u8>>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the values of the headers nor a password in the URL.
        f.debug_struct("Endpoint").field("protocol", &self.protocol).finish_non_exhaustive()
    }
}

/// Sends messages to a collector, over one connection.
pub(crate) struct Client {
    http: reqwest::Client,
    protocol: OtlpProtocol,
    traces: reqwest::Url,
    metrics: reqwest::Url,
}

/// The collector's answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// Rejected spans or points.
    pub(crate) rejected: u64,
    /// Reason of the rejections.
    pub(crate) why: String,
}

/// A request that failed.
#[derive(Debug)]
pub(crate) struct SendError {
    pub(crate) text: String,
    pub(crate) is_retryable: bool,
    /// The earliest time of the next attempt, if the collector asks for one.
    pub(crate) after: Option<Duration>,
}

/// `ExportTraceServiceResponse` and `ExportMetricsServiceResponse`, which are equal.
#[derive(Clone, PartialEq, Message)]
struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected: i64,
    #[prost(string, tag = "2")]
    why: String,
}

impl Client {
    pub(crate) fn new(endpoint: Endpoint, timeout: Duration) -> Result<Self, OtlpError> {
        let Endpoint { url, protocol, mut headers, ca } = endpoint;
        let base = reqwest::Url::parse(&url).ok().filter(reqwest::Url::has_host);
        let base = base.filter(|url| matches!(url.scheme(), "http" | "https"));
        let base = base.ok_or_else(|| OtlpError::Endpoint(url))?;
        let target = |grpc: &str, http: &str| {
            let path = match protocol {
                OtlpProtocol::Grpc => grpc,
                OtlpProtocol::Http => http,
            };
            let mut url = base.clone();
            url.set_path(&format!("{}{path}", base.path().trim_end_matches('/')));
            url
        };
        let traces = target("/opentelemetry.proto.collector.trace.v1.TraceService/Export", "/v1/traces");
        let metrics =
            target("/opentelemetry.proto.collector.metrics.v1.MetricsService/Export", "/v1/metrics");
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(protocol.content_type()));
        if protocol == OtlpProtocol::Grpc {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
        // The provider of this process. Another part of the node may have set it before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .default_headers(headers)
            .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .timeout(timeout);
        if protocol == OtlpProtocol::Grpc {
            builder = builder.http2_prior_knowledge();
        }
        if let Some(pem) = ca {
            let certificates = reqwest::Certificate::from_pem_bundle(&pem).map_err(OtlpError::Client)?;
            builder = builder.tls_certs_only(certificates);
        } else if base.scheme() == "http" {
            // A machine without authorities can still use plain HTTP.
            builder = builder.tls_certs_only([]);
        }
        let http = builder.build().map_err(OtlpError::Client)?;
        Ok(Self { http, protocol, traces, metrics })
    }

    /// Frames a message for the protocol.
    pub(crate) fn frame(&self, message: Vec<u8>) -> Bytes {
        match self.protocol {
            OtlpProtocol::Http => message.into(),
            OtlpProtocol::Grpc => {
                let mut framed = BytesMut::with_capacity(message.len() + 5);
                // Not compressed.
                framed.extend_from_slice(&[0]);
                framed.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
                framed.extend_from_slice(&message);
                framed.freeze()
            }
        }
    }

    /// Sends a framed message.
    pub(crate) async fn send(&self, signal: Signal, framed: Bytes) -> Result<Accepted, SendError> {
        let url = match signal {
            Signal::Traces => self.traces.clone(),
            Signal::Metrics => self.metrics.clone(),
        };
        let sent = self.http.post(url).body(framed).send().await;
        let response = http::Response::<reqwest::Body>::from(sent.map_err(|error| SendError::lost(&error))?);
        let (head, body) = response.into_parts();
        let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
        let body = body.map_err(|error| SendError::lost(&*error))?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        let body = body.to_bytes();
        if head.status != StatusCode::OK {
            return Err(SendError::refused(head.status, &head.headers, &body));
        }
        match self.protocol {
            OtlpProtocol::Http => Ok(accepted(&body)),
            OtlpProtocol::Grpc => {
                let told = |name| head.headers.get(name).or_else(|| trailers.get(name));
                let status = told(GRPC_STATUS).and_then(|status| status.to_str().ok()?.parse().ok());
                match status {
                    Some(0) => Ok(accepted(body.get(5..).unwrap_or_default())),
                    Some(status) => {
                        let why = told(GRPC_MESSAGE).map_or_else(String::new, |why| printable(why.as_bytes()));
                        Err(SendError {
                            text: format!("the collector answered with status {status} of gRPC: {why}"),
                            is_retryable: RETRYABLE.contains(&status),
                            after: None,
                        })
                    }
                    None => Err(SendError {
                        text: "the answer has no status of gRPC; is the protocol http/protobuf? (traces.otlp.protocol)".to_owned(),
                        is_retryable: false,
                        after: None,
                    }),
                }
            }
        }
    }
}

impl OtlpProtocol {
    fn content_type(self) -> &'static str {
        match self {
            Self::Grpc => "application/grpc",
            Self::Http => "application/x-protobuf",
        }
    }
}

impl SendError {
    /// The collector was not reached, or did not answer.
    fn lost(error: &(dyn Error + 'static)) -> Self {
        let mut text = String::new();
        let mut next = Some(error);
        while let Some(cause) = next {
            let separator = if text.is_empty() { "" } else { ": " };
            // Writing to a text never fails.
            let _ = write!(text, "{separator}{cause}");
            next = cause.source();
        }
        Self { text, is_retryable: true, after: None }
    }

    fn refused(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let is_retryable = matches!(status.as_u16(), 429 | 502 | 503 | 504);
        let after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let text = format!("the collector answered {status}: {}", printable(body));
        Self { text, is_retryable, after: after.map(Duration::from_secs) }
    }
}

fn accepted(body: &[u8]) -> Accepted {
    let response = ExportResponse::decode(body).unwrap_or_default();
    let PartialSuccess { rejected, why } = response.partial_success.unwrap_or_default();
    Accepted { rejected: u64::try_from(rejected).unwrap_or(0), why: printable(why.as_bytes()) }
}

/// The start of a text of the collector, for the log.
fn printable(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(300)]);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
