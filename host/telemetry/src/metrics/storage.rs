//! Metrics of the data folder's file system.

use super::{counter, gauge};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::Ordering;

/// Handles of the data folder.
pub struct StorageMetrics {
    free_bytes: Gauge,
    failed_writes: Counter,
    datastore_bytes: Gauge,
    datastore_quota_bytes: Gauge,
}

impl StorageMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            free_bytes: gauge(registry, "disk_free_bytes", "Free space of the data folder's file system"),
            failed_writes: counter(
                registry,
                "disk_write_failures",
                "Failed writes of the registry and of files in the data folder",
            ),
            datastore_bytes: gauge(
                registry,
                "datastore_bytes",
                "Size of the database of the etcd server that the node uses",
            ),
            datastore_quota_bytes: gauge(
                registry,
                "datastore_quota_bytes",
                "Size at which the etcd server refuses writes; etcd's default if the server does not report it",
            ),
        }
    }

    /// Sets both figures. The failures are those since the start of the node.
    pub fn set(&self, free_bytes: u64, failed_writes: u64) {
        self.free_bytes.set(i64::try_from(free_bytes).unwrap_or(i64::MAX));
        self.failed_writes.inner().fetch_max(failed_writes, Ordering::Relaxed);
    }

    /// Sets the size of the shared store and its quota.
    pub fn set_datastore(&self, bytes: u64, quota_bytes: u64) {
        let number = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.datastore_bytes.set(number(bytes));
        self.datastore_quota_bytes.set(number(quota_bytes));
    }
}
