//! Limits and usage of a store.

/// Limits of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommLimits {
    /// The share of the device's free memory that intermediates may take, in per cent.
    pub free_percent_max: u64,
    /// The most intermediates, on the device and the host together.
    pub entries_max: usize,
    /// The most device memory that stays mapped for later intermediates, if recent ones have needed
    /// it and no other consumer does: mapping it again takes longer than a copy.
    pub idle_bytes_max: u64,
}

/// Usage of a store, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CommUsage {
    /// Intermediates on the device.
    pub device_bytes: u64,
    /// Device memory mapped for them, in whole blocks.
    pub mapped_bytes: u64,
    /// Intermediates on the host.
    pub host_bytes: u64,
}
