//! The state of a device, for metrics and status output.

use serde::{Deserialize, Serialize};
use weir_types::api::{DeviceStatus, MemoryMap, ModelBytes};
use weir_types::{ModelId, TenantId};

/// The state of one device of a node, for metrics and status output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// The name, such as `cpu` or `cuda:0`.
    pub name: String,
    /// The class of the device: devices of one kind have equal costs.
    #[serde(default)]
    pub kind: String,
    /// The software that runs models on it.
    pub backend: String,
    /// The number of concurrent runs.
    pub slots: u32,
    /// The runs that wait for a slot.
    pub runs_waiting: u64,
    /// The memory for models.
    pub capacity_bytes: u64,
    /// The memory that models take.
    pub used_bytes: u64,
    /// The models in its memory.
    pub resident: Vec<ModelId>,
    /// The use of the memory.
    #[serde(default)]
    pub memory: DeviceMemory,
    /// The reason why the device is lost; `None` while it is up.
    #[serde(default)]
    pub lost: Option<String>,
}

/// The use of a device's memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// Bytes of each model. Parts that models share are divided among them.
    pub models: Vec<(ModelId, u64)>,
    /// Bytes of tensors that runs have left on the device.
    pub intermediates_bytes: u64,
    /// Bytes that runs hold for their intermediate results.
    pub workspace_bytes: u64,
}

impl DeviceReport {
    /// Converts the report for `tenant`, which sees its own models only.
    pub fn status(self, tenant: &TenantId) -> DeviceStatus {
        let own = self.resident.iter().filter(|model| model.tenant == *tenant);
        let resident = own.map(|model| format!("{}:{}", model.name, model.version)).collect();
        let DeviceMemory { models, intermediates_bytes, workspace_bytes } = self.memory;
        let own = models.into_iter().filter(|(model, _)| model.tenant == *tenant);
        let models: Vec<_> = own
            .map(|(model, bytes)| ModelBytes { model: format!("{}:{}", model.name, model.version), bytes })
            .collect();
        let own_bytes = models.iter().map(|model| model.bytes).fold(0, u64::saturating_add);
        let memory = MemoryMap {
            models,
            other_models_bytes: self.used_bytes.saturating_sub(own_bytes),
            intermediates_bytes,
            workspace_bytes,
            free_bytes: self.capacity_bytes.saturating_sub(self.used_bytes),
        };
        let Self { name, kind, backend, slots, runs_waiting, capacity_bytes, used_bytes, lost, .. } = self;
        DeviceStatus {
            name,
            kind,
            backend,
            slots,
            runs_waiting,
            capacity_bytes,
            used_bytes,
            resident,
            memory: Some(memory),
            lost,
        }
    }

    /// Whether the device is up and has all of these models in its memory.
    pub fn holds(&self, models: &[ModelId]) -> bool {
        self.lost.is_none() && models.iter().all(|model| self.resident.contains(model))
    }
}
