//! OpenTelemetry collector that counts the bytes of the spans and keeps nothing.

use anyhow::Result;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// Requests of an exporter are smaller.
const BODY_BYTES_MAX: usize = 64 << 20;

/// Running collector, on its own thread in this process: its CPU time does not count as the node's.
pub(crate) struct Collector {
    url: String,
    received_bytes: Arc<AtomicU64>,
    _runtime: Runtime,
}

impl Collector {
    pub(crate) fn start() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let received_bytes = Arc::new(AtomicU64::new(0));
        let count = received_bytes.clone();
        let take = move |body: axum::body::Bytes| async move {
            count.fetch_add(body.len() as u64, Ordering::Relaxed);
        };
        let routes = Router::new().fallback(take).layer(DefaultBodyLimit::max(BODY_BYTES_MAX));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let url = format!("http://{}", listener.local_addr()?);
        runtime.spawn(async move {
            if let Err(error) = axum::serve(listener, routes).await {
                eprintln!("the collector failed: {error}");
            }
        });
        Ok(Self { url, received_bytes, _runtime: runtime })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }
}
