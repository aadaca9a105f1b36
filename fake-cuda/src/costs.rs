//! Costs: the time that a real driver and host would spend on a test's calls.

use crate::Fake;

/// Accumulated time by category since the driver was opened. README.md has the prices and their
/// sources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DriverCosts {
    /// Creating, mapping, opening, unmapping and releasing device memory.
    pub mapping_ns: u64,
    /// Allocating and freeing pinned memory.
    pub pinning_ns: u64,
    /// Copies by the host into pinned memory, on one thread.
    pub host_copy_ns: u64,
    /// Number of copies over the bus whose bytes the host copied before.
    pub host_copies: u64,
    /// Bytes copied by the host.
    pub host_copy_bytes: u64,
    /// Page faults of those copies, on one thread.
    pub page_fault_ns: u64,
    /// Copies from pinned memory over the bus, in sequence.
    pub bus_ns: u64,
    /// Work still unfinished at calls that synchronise implicitly.
    pub synchronisation_ns: u64,
    /// Number of copies over the bus.
    pub copies: u64,
    /// Bytes copied over the bus.
    pub bytes: u64,
}

/// Threads that copy into pinned memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyThreadCosts {
    /// Number of threads that copy at once.
    pub count: u64,
    /// Time to start or wake a thread for a piece.
    pub start_ns: u64,
    /// Bytes that a thread copies at a time. At least the length of a block: each thread copies
    /// whole blocks.
    pub piece_bytes: u64,
}

impl Fake {
    /// Costs of all calls so far.
    #[must_use]
    pub fn costs(&self) -> DriverCosts {
        let spent_ns = |calls: &[&str]| calls.iter().map(|call| self.count(&format!("ns of {call}"))).sum();
        DriverCosts {
            mapping_ns: spent_ns(&[
                "cuMemCreate",
                "cuMemMap",
                "cuMemSetAccess",
                "cuMemUnmap",
                "cuMemRelease",
            ]),
            pinning_ns: spent_ns(&["cuMemHostAlloc", "cuMemFreeHost"]),
            host_copy_ns: spent_ns(&["copies of the host"]),
            host_copies: self.calls("copies of the host"),
            host_copy_bytes: self.count("bytes of copies of the host"),
            page_fault_ns: spent_ns(&["page faults"]),
            bus_ns: spent_ns(&["copies to the device"]),
            synchronisation_ns: spent_ns(&["implicit synchronisation"]),
            copies: self.count("calls of copies to the device"),
            bytes: self.count("bytes_to_device"),
        }
    }

    /// Number of calls of a driver function that has a price.
    #[must_use]
    pub fn calls(&self, function: &str) -> u64 {
        self.count(&format!("calls of {function}"))
    }
}

impl DriverCosts {
    /// Costs since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            mapping_ns: self.mapping_ns - before.mapping_ns,
            pinning_ns: self.pinning_ns - before.pinning_ns,
            host_copy_ns: self.host_copy_ns - before.host_copy_ns,
            host_copies: self.host_copies - before.host_copies,
            host_copy_bytes: self.host_copy_bytes - before.host_copy_bytes,
            page_fault_ns: self.page_fault_ns - before.page_fault_ns,
            bus_ns: self.bus_ns - before.bus_ns,
            synchronisation_ns: self.synchronisation_ns - before.synchronisation_ns,
            copies: self.copies - before.copies,
            bytes: self.bytes - before.bytes,
        }
    }

    /// Estimate the time of a load with these costs. Driver calls run in sequence, before the
    /// copies. After the first block, the host's copies overlap with the bus, and the slower of the
    /// two determines the time. The threads copy pieces of the same block, the first block first.
    #[must_use]
    pub fn load_ns(&self, threads: CopyThreadCosts) -> u64 {
        let mut first_ns = 0;
        let mut host_ns = 0;
        if self.host_copies > 0 {
            let count = threads.count.max(1);
            let piece_bytes = threads.piece_bytes.max(1);
            let pieces = self.host_copies.max(self.host_copy_bytes.div_ceil(piece_bytes));
            let all_ns = self.host_copy_ns + self.page_fault_ns + pieces * threads.start_ns;
            let rounds = pieces.div_ceil(self.host_copies).div_ceil(count);
            first_ns = rounds * all_ns / pieces;
            host_ns = all_ns / count;
        }
        self.mapping_ns + self.pinning_ns + self.synchronisation_ns + first_ns + self.bus_ns.max(host_ns)
    }
}
