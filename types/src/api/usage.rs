//! Device usage per tenant.

use crate::{Name, TenantId, Version};
use serde::{Deserialize, Serialize};

/// A tenant's device usage on the queried node since the node's start. Response of `GET /v1/usage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The tenant.
    pub tenant: TenantId,
    /// Start of the measurement, in Unix milliseconds.
    pub since_ms: u64,
    /// Totals by device, including functions and models that are no longer deployed and have no
    /// row.
    pub total: Vec<DeviceUsage>,
    /// Usage by function, model and device.
    pub rows: Vec<UsageRow>,
}

/// Usage of a model on one device by one function or by direct clients. One row of [`Usage`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRow {
    /// The function that ran the model; `None` for direct requests and workflows. Loads and memory
    /// are always counted in the row without a function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<Name>,
    /// The model; `None` for models that the function loaded from its own memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Name>,
    /// Version of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// Amounts.
    #[serde(flatten)]
    pub used: DeviceUsage,
}

/// Usage of one device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceUsage {
    /// Name of the device: `cpu`, `cuda:0`.
    pub device: String,
    /// Kind of the device.
    pub kind: String,
    /// Requests run on the device, including failed and stopped requests.
    pub runs: u64,
    /// Run time, in microseconds. The time of a batch is divided among its requests by items.
    pub device_time_us: u64,
    /// Model loads into the device's memory.
    pub loads: u64,
    /// Load time, in microseconds.
    pub load_time_us: u64,
    /// Memory occupied by models, in bytes times seconds. Memory shared by several models is
    /// divided among them.
    pub byte_seconds: u64,
}
