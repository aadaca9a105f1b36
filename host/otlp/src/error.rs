//! Errors of the settings.

use std::io;
use std::path::PathBuf;
use weir_storage::PrivateFileError;

/// Unusable settings of the export.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The URL of the collector is invalid.
    #[error(
        "{0:?} is no URL of an OpenTelemetry collector (traces.otlp.endpoint, OTEL_EXPORTER_OTLP_ENDPOINT); \
         write it like http://127.0.0.1:4317"
    )]
    Endpoint(String),
    /// The protocol in the environment is unknown.
    #[error("{0:?} is no protocol (OTEL_EXPORTER_OTLP_PROTOCOL); use grpc or http/protobuf")]
    Protocol(String),
    /// The time limit in the environment is no number.
    #[error("{0:?} is no number of milliseconds (OTEL_EXPORTER_OTLP_TIMEOUT)")]
    Timeout(String),
    /// A header is invalid. Its value may be a secret and is not shown.
    #[error("header {0} of the collector is invalid (traces.otlp.headers_file, OTEL_EXPORTER_OTLP_HEADERS)")]
    Header(usize),
    /// The file of headers cannot be used.
    #[error("cannot use {path:?} (traces.otlp.headers_file): {source}")]
    HeadersFile {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        source: PrivateFileError,
    },
    /// The file of the authority cannot be read.
    #[error("cannot read {path:?} (traces.otlp.ca): {source}")]
    CaFile {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// A resource attribute in the environment is invalid.
    #[error("{0:?} is no list of KEY=VALUE, separated by commas (OTEL_RESOURCE_ATTRIBUTES)")]
    Resource(String),
    /// The client cannot be created.
    #[error("the client for the OpenTelemetry collector cannot be created (traces.otlp): {0}")]
    Client(#[source] reqwest::Error),
}
