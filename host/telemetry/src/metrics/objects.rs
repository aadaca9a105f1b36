//! Metrics of named objects.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use weir_types::TenantId;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ObjectLabels {
    tenant: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Read {
    tenant: String,
    /// Location of the bytes: `memory`, or `disk` for the disk and the cluster's store.
    from: &'static str,
}

/// Series of named objects. The node's configuration bounds the number of tenants.
pub struct ObjectMetrics {
    puts: Family<ObjectLabels, Counter>,
    gets: Family<Read, Counter>,
    len: Gauge,
    bytes: Gauge,
    memory_bytes: Gauge,
}

impl ObjectMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            puts: Family::default(),
            gets: Family::default(),
            len: Gauge::default(),
            bytes: Gauge::default(),
            memory_bytes: Gauge::default(),
        };
        let Self { puts, gets, len, bytes, memory_bytes } = &metrics;
        registry.register("object_puts", "Named objects stored through this node", puts.clone());
        let help = "Named objects read on this node, by the location of their bytes: in memory, or on disk or in the cluster's store";
        registry.register("object_gets", help, gets.clone());
        registry.register("objects", "Named objects on all nodes", len.clone());
        registry.register("objects_bytes", "Bytes of the named objects on all nodes", bytes.clone());
        let help = "Bytes of named objects cached in this node's tensor memory";
        registry.register("objects_memory_bytes", help, memory_bytes.clone());
        metrics
    }

    pub fn put(&self, tenant: &TenantId) {
        self.puts.get_or_create(&ObjectLabels { tenant: tenant.to_string() }).inc();
    }

    pub fn got(&self, tenant: &TenantId, was_in_memory: bool) {
        let from = if was_in_memory { "memory" } else { "disk" };
        self.gets.get_or_create(&Read { tenant: tenant.to_string(), from }).inc();
    }

    pub fn usage(&self, len: usize, bytes: u64) {
        self.len.set(gauge(len as u64));
        self.bytes.set(gauge(bytes));
    }

    pub fn memory(&self, bytes: u64) {
        self.memory_bytes.set(gauge(bytes));
    }
}

fn gauge(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
