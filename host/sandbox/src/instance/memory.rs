//! The memory and table limits of one instance, over all its memories and tables.

use super::usage::SandboxUsage;
use std::sync::Arc;
use wasmtime::ResourceLimiter;
use weir_types::{ErrorCode, Limits};

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
    refused: Option<ErrorCode>,
    usage: Arc<SandboxUsage>,
}

impl MemoryMeter {
    pub(super) fn new(limits: &Limits, usage: Arc<SandboxUsage>) -> Self {
        Self {
            memory_bytes: 0,
            memory_bytes_max: usize::try_from(limits.memory_bytes).unwrap_or(usize::MAX),
            table_elements: 0,
            table_elements_max: limits.table_elements as usize,
            last_memory_growth_bytes: 0,
            last_table_growth: 0,
            refused: None,
            usage,
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
    pub(super) fn refused(&self) -> Option<ErrorCode> {
        self.refused
    }
}

impl ResourceLimiter for MemoryMeter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let growth = desired.saturating_sub(current);
        if growth > self.memory_bytes_max.saturating_sub(self.memory_bytes) {
            self.refused = Some(ErrorCode::MemoryLimit);
            return Ok(false);
        }
        self.memory_bytes += growth;
        self.last_memory_growth_bytes = growth;
        self.usage.set_memory_bytes(self.memory_bytes);
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.memory_bytes -= std::mem::take(&mut self.last_memory_growth_bytes);
        self.usage.set_memory_bytes(self.memory_bytes);
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let growth = desired.saturating_sub(current);
        if growth > self.table_elements_max.saturating_sub(self.table_elements) {
            self.refused = Some(ErrorCode::TableLimit);
            return Ok(false);
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

    #[test]
    fn memories_share_one_budget() {
        let usage = Arc::<SandboxUsage>::default();
        let limits = Limits { memory_bytes: 100, ..Limits::default() };
        let mut meter = MemoryMeter::new(&limits, usage.clone());
        assert!(meter.memory_growing(0, 60, None).unwrap());
        assert!(!meter.memory_growing(0, 60, None).unwrap(), "a second memory got its own budget");
        assert_eq!(meter.refused(), Some(ErrorCode::MemoryLimit));
        assert!(meter.memory_growing(60, 100, None).unwrap());
        meter.memory_grow_failed(wasmtime::Error::msg("no pages")).unwrap();
        assert_eq!(usage.memory_bytes(), 60);
    }
}
