//! How much a store may take, and how much it does.

/// How much a store may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommLimits {
    /// The share of the device's free memory that intermediates may take, in per cent.
    pub free_percent_max: u64,
    /// The most intermediates, on the device and the host together.
    pub entries_max: usize,
    /// Memory of the device that is kept mapped for the next ones, while nobody else needs it: mapping it anew takes longer than a copy.
    pub idle_bytes_max: u64,
}

/// What a store has, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CommUsage {
    /// Intermediates on the device.
    pub device_bytes: u64,
    /// Memory behind them there, in whole blocks.
    pub mapped_bytes: u64,
    /// Intermediates on the host.
    pub host_bytes: u64,
}
