//! The memory and table limits of one instance, over all its memories and tables.

use super::usage::SandboxUsage;
use crate::TenantMemory;
use std::sync::Arc;
use wasmtime::ResourceLimiter;
use weir_telemetry::InstanceScope;
use weir_types::Limits;

/// The limit that refused a growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RefusedGrowth {
    /// The function's memory limit.
    Memory,
    /// The function's limit of table elements.
    Table,
    /// The memory limit of all guests of the tenant or of the node.
    AllGuests(InstanceScope),
}

/// Sums up all memories and tables of a store; wasmtime's own limits apply to each memory
/// separately.
#[derive(Debug)]
pub(super) struct MemoryMeter {
    memory_bytes: usize,
    memory_bytes_max: usize,
    table_elements: usize,
    table_elements_max: usize,
    /// The size of the last growth, in case it fails after it was allowed.
    last_memory_growth_bytes: usize,
    last_table_growth: usize,
    refused: Option<RefusedGrowth>,
    usage: Arc<SandboxUsage>,
    /// The memory of all guests of the tenant, which includes `memory_bytes`.
    tenant: TenantMemory,
}

impl MemoryMeter {
    pub(super) fn new(limits: &Limits, usage: Arc<SandboxUsage>, tenant: TenantMemory) -> Self {
        Self {
            memory_bytes: 0,
            memory_bytes_max: usize::try_from(limits.memory_bytes).unwrap_or(usize::MAX),
            table_elements: 0,
            table_elements_max: limits.table_elements as usize,
            last_memory_growth_bytes: 0,
            last_table_growth: 0,
            refused: None,
            usage,
            tenant,
        }
    }

    /// Starts the next invocation with the memory that the instance already has; `usage` receives
    /// its consumption.
    pub(super) fn begin(&mut self, usage: Arc<SandboxUsage>) {
        self.refused = None;
        self.usage = usage;
        self.usage.set_memory_bytes(self.memory_bytes);
    }

    /// The size of all linear memories.
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// The limit that a growth exceeded, if any. A guest that traps after that most likely failed
    /// because of it.
    pub(super) fn refused(&self) -> Option<RefusedGrowth> {
        self.refused
    }

    /// Notes the limit that a growth exceeds. Returns false: the growth is not allowed.
    fn refuse(&mut self, limit: RefusedGrowth) -> bool {
        self.refused = Some(limit);
        self.last_memory_growth_bytes = 0;
        self.last_table_growth = 0;
        false
    }

    /// The memory of all guests of the tenant.
    pub(super) fn tenant(&self) -> &TenantMemory {
        &self.tenant
    }
}

impl Drop for MemoryMeter {
    fn drop(&mut self) {
        self.tenant.release(self.memory_bytes);
    }
}

impl ResourceLimiter for MemoryMeter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let growth = desired.saturating_sub(current);
        if growth > self.memory_bytes_max.saturating_sub(self.memory_bytes) {
            return Ok(self.refuse(RefusedGrowth::Memory));
        }
        if let Err(scope) = self.tenant.reserve(growth) {
            return Ok(self.refuse(RefusedGrowth::AllGuests(scope)));
        }
        self.memory_bytes += growth;
        self.last_memory_growth_bytes = growth;
        self.usage.set_memory_bytes(self.memory_bytes);
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        let failed = std::mem::take(&mut self.last_memory_growth_bytes);
        self.memory_bytes -= failed;
        self.tenant.release(failed);
        self.usage.set_memory_bytes(self.memory_bytes);
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let growth = desired.saturating_sub(current);
        if growth > self.table_elements_max.saturating_sub(self.table_elements) {
            return Ok(self.refuse(RefusedGrowth::Table));
        }
        self.table_elements += growth;
        self.last_table_growth = growth;
        Ok(true)
    }

    fn table_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.table_elements -= std::mem::take(&mut self.last_table_growth);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GuestMemory;
    use weir_telemetry::Metrics;
    use weir_types::TenantId;

    #[test]
    fn memories_share_one_budget() {
        let usage = Arc::<SandboxUsage>::default();
        let limits = Limits { memory_bytes: 100, ..Limits::default() };
        let all = GuestMemory::new(1_000, |_| 1_000, Metrics::new());
        let mut meter = MemoryMeter::new(&limits, usage.clone(), all.tenant(&TenantId::default()));
        assert!(meter.memory_growing(0, 60, None).unwrap());
        assert!(!meter.memory_growing(0, 60, None).unwrap(), "a second memory got its own budget");
        assert_eq!(meter.refused(), Some(RefusedGrowth::Memory));
        assert!(meter.memory_growing(60, 100, None).unwrap());
        meter.memory_grow_failed(wasmtime::Error::msg("no pages")).unwrap();
        assert_eq!(usage.memory_bytes(), 60);
    }

    #[test]
    fn guests_share_the_memory_of_their_tenant_until_they_are_dropped() {
        let all = GuestMemory::new(1_000, |_| 100, Metrics::new());
        let tenant = all.tenant(&TenantId::default());
        let meter = || MemoryMeter::new(&Limits::default(), Arc::default(), tenant.clone());
        let [mut first, mut second] = [meter(), meter()];
        assert!(first.memory_growing(0, 60, None).unwrap());
        assert!(!second.memory_growing(0, 60, None).unwrap(), "the first guest has 60 of 100 bytes");
        assert_eq!(second.refused(), Some(RefusedGrowth::AllGuests(InstanceScope::Tenant)));
        second.memory_grow_failed(wasmtime::Error::msg("refused")).unwrap();
        assert!(first.memory_growing(60, 100, None).unwrap());
        first.memory_grow_failed(wasmtime::Error::msg("no pages")).unwrap();
        assert!(second.memory_growing(0, 40, None).unwrap(), "a growth that failed still counts");
        drop(first);
        assert!(second.memory_growing(40, 100, None).unwrap(), "a dropped guest still counts");
        drop(second);
        assert_eq!(tenant.lacks(100), None);
    }
}
