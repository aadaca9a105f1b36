//! Required copies of a model (`copies_min`).

use crate::client::Client;
use weir_types::api::{DeviceStatus, ModelVersion, Status};

/// Copies of a model, over all devices of the node or of its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Copies {
    required: usize,
    kept: usize,
    /// Devices that may keep a copy.
    devices: usize,
}

impl Copies {
    /// Counts the copies; `None` for a model without required copies, or if the client may not read
    /// the node's status.
    pub(super) fn count(client: &Client, model: &ModelVersion) -> Option<Self> {
        if model.manifest.copies_min == 0 {
            return None;
        }
        let status: Status = client.get("/v1/status", "count the copies").ok()?;
        Some(Self::from_status(&status, model))
    }

    fn from_status(status: &Status, model: &ModelVersion) -> Self {
        let all: Vec<&DeviceStatus> = match &status.cluster {
            None => status.devices.iter().collect(),
            Some(cluster) => cluster.nodes.iter().flat_map(|node| &node.devices).collect(),
        };
        // Whether the model runs on devices of other nodes is unknown here.
        let unsuitable = model.devices.iter().filter(|device| device.why_not.is_some()).count();
        let key = format!("{}:{}", model.name, model.version);
        Self {
            required: usize::try_from(model.manifest.copies_min).unwrap_or(usize::MAX),
            kept: all.iter().filter(|device| device.resident.contains(&key)).count(),
            devices: all.len().saturating_sub(unsuitable),
        }
    }

    /// The number of copies for `weir models show`.
    pub(super) fn text(self) -> String {
        let Self { required, kept, .. } = self;
        format!("{kept} of {required} kept in the memory of devices")
    }

    /// A warning about copies that no device can keep.
    pub(super) fn warning(self) -> Option<String> {
        let Self { required, devices, .. } = self;
        (devices < required).then(|| {
            let available = if devices == 1 { "1 device".to_owned() } else { format!("{devices} devices") };
            format!("--copies-min {required} cannot be met: {available} can keep the model")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn copies_are_counted_over_the_devices_that_can_keep_them() {
        let device = |name: &str, resident: &[&str]| json!({"name": name, "backend": "onnx", "slots": 1, "capacity_bytes": 1, "used_bytes": 0, "resident": resident});
        let mut status = json!({
            "version": "0", "state": "ready", "uptime_ms": 0, "functions": 0, "models": 1, "running": 0, "queued": 0,
            "devices": [device("cpu", &["m:2"])],
        });
        let model: ModelVersion = serde_json::from_value(json!({
            "tenant": "default", "name": "m", "version": 2, "digest": "0".repeat(64), "model_bytes": 1,
            "weight_bytes": 1, "pushed_at_ms": 0, "inputs": [], "outputs": [], "manifest": {"copies_min": 2},
            "resident": true, "profile": weir_types::Profile::default(), "devices": [],
        }))
        .unwrap();
        let count = |status: &serde_json::Value| {
            Copies::from_status(&serde_json::from_value(status.clone()).unwrap(), &model)
        };
        let copies = count(&status);
        assert_eq!(copies.text(), "1 of 2 kept in the memory of devices");
        assert!(copies.warning().unwrap().contains("--copies-min 2 cannot be met: 1 device can"));
        let member = |devices: &[serde_json::Value]| json!({"node": 1, "address": "a", "running": 0, "queued": 0, "devices": devices});
        let nodes = [member(&[device("cpu", &["m:2"])]), member(&[device("cpu", &["m:1", "m:2"])])];
        status["cluster"] = json!({"node": 1, "address": "a", "dispatcher": 1, "asks_dispatcher": false, "linked": [], "nodes": nodes});
        let copies = count(&status);
        assert_eq!(
            (copies.text().as_str(), copies.warning()),
            ("2 of 2 kept in the memory of devices", None)
        );
    }
}
