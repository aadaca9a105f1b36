//! Export of a node's traces and metrics over OTLP, the protocol of OpenTelemetry.
//!
//! Ended spans are encoded by the threads that end them and wait in a bounded queue
//! (`SpanQueue`). A background task sends them in batches, and another task sends
//! all metrics at an interval. Neither delays a request: spans that do not fit into the queue are
//! dropped and counted.

mod config;
mod error;
mod settings;

mod openmetrics;
mod queue;
mod resource;
mod spans;
mod wire;

mod client;
mod exporter;

pub use config::{OtlpConfig, OtlpProtocol, TracesConfig};
pub use error::OtlpError;
pub use exporter::{ExportTask, Exporter};
pub use resource::NodeResource;
pub use settings::OtlpSettings;
