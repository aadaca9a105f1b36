//! Where the node's spans and metrics go.

use crate::config::NodeConfig;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::runtime::Handle;
use weir_gateway::NodeState;
use weir_otlp::{ExportTask, Exporter, NodeResource, OtlpSettings};
use weir_telemetry::{Metrics, SpanLog, SpanSink, Tracer};

/// The tracer of a node, and the export of its spans, if it has a collector.
pub(super) struct Telemetry {
    pub(super) tracer: Tracer,
    pub(super) exporter: Option<Exporter>,
}

impl Telemetry {
    /// Prepares the export to the collector that the settings or the environment name. Without a
    /// collector, spans go to the node's log.
    pub(super) async fn open(config: &NodeConfig, metrics: &Arc<Metrics>) -> anyhow::Result<Self> {
        let otlp = config.traces.otlp.clone();
        let metrics = metrics.clone();
        // Reads files.
        let opening = tokio::task::spawn_blocking(move || {
            let settings = OtlpSettings::resolve(&otlp, |name| std::env::var(name).ok())?;
            settings.map(|settings| Exporter::new(settings, metrics)).transpose()
        });
        let exporter = opening.await??;
        let sink = exporter
            .as_ref()
            .map_or_else(|| Arc::new(SpanLog::default()) as Arc<dyn SpanSink>, Exporter::sink);
        let tracer = Tracer::new(config.traces.sampler(), sink, config.traces.recent_calls());
        Ok(Self { tracer, exporter })
    }
}

/// Starts to send spans and metrics.
pub(super) fn start(
    exporter: Exporter,
    runtime: &Handle,
    state: &NodeState,
    local_addr: SocketAddr,
) -> ExportTask {
    let node = state.dispatch.placements.node().0;
    // Outside a cluster, all nodes have the same number.
    let address = state.cluster.is_none().then_some(local_addr);
    exporter.start(runtime, &NodeResource { node, address })
}
