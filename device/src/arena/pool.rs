//! The idle blocks of one size.

use crate::block::MemoryBlock;

/// Returns to a pool between two sweeps of its idle blocks.
pub(super) const RETURNS_PER_SWEEP: u32 = 1_024;

/// Idle blocks of one size; the most recently used is taken first.
#[derive(Default)]
pub(super) struct Pool {
    idle: Vec<MemoryBlock>,
    /// The fewest idle blocks since the last sweep: this many blocks, from the front, were not
    /// needed.
    idle_len_min: usize,
    returns: u32,
}

impl Pool {
    pub(super) fn take(&mut self) -> Option<MemoryBlock> {
        let block = self.idle.pop()?;
        self.idle_len_min = self.idle_len_min.min(self.idle.len());
        Some(block)
    }

    /// Adds `block`; returns the blocks to free if a sweep is due.
    pub(super) fn put(&mut self, block: MemoryBlock) -> Vec<MemoryBlock> {
        self.idle.push(block);
        self.returns += 1;
        if self.returns < RETURNS_PER_SWEEP {
            return Vec::new();
        }
        self.take_unused()
    }

    pub(super) fn take_unused(&mut self) -> Vec<MemoryBlock> {
        let unused = self.idle.drain(..self.idle_len_min).collect();
        self.idle_len_min = self.idle.len();
        self.returns = 0;
        unused
    }

    pub(super) fn take_all(&mut self) -> Vec<MemoryBlock> {
        self.idle_len_min = 0;
        std::mem::take(&mut self.idle)
    }
}
