//! What a tenant has used of devices.

use crate::{Name, TenantId, Version};
use serde::{Deserialize, Serialize};

/// The answer of `GET /v1/usage`: what a tenant has used of the devices of the node that was asked, since that was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Who.
    pub tenant: TenantId,
    /// Since when, in Unix milliseconds.
    pub since_ms: u64,
    /// In all, by device. What is not deployed any more, and so has no row, is part of this.
    pub total: Vec<DeviceUsage>,
    /// By function, model and device.
    pub rows: Vec<UsageRow>,
}

/// What was used of a model on one device, on behalf of a function or of clients: one row in [`Usage`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRow {
    /// The function that ran it. None where clients asked the model itself, or a workflow; loads and memory are there, too, whoever wanted the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<Name>,
    /// The model; none for those that the function has brought along.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Name>,
    /// Its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// How much.
    #[serde(flatten)]
    pub used: DeviceUsage,
}

/// What was used of one device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceUsage {
    /// The device's name: `cpu`, `cuda:0`.
    pub device: String,
    /// What kind of device it is.
    pub kind: String,
    /// Requests that it worked on, those that failed or were stopped included.
    pub runs: u64,
    /// How long it worked on them, in microseconds. What it ran together is parted by items.
    pub device_time_us: u64,
    /// Loads of models into its memory.
    pub loads: u64,
    /// How long they took, in microseconds.
    pub load_time_us: u64,
    /// Bytes of its memory that models took, times the seconds for which they did. What several have in common is parted among them.
    pub byte_seconds: u64,
}
