//! Workloads: arrivals and the costs of models.

use crate::estimate::round_ns;

/// Costs of a model, the same on every device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelCosts {
    /// Bytes of device memory.
    pub bytes: u64,
    /// Load time.
    pub load_time_ns: u64,
    /// Run time.
    pub run_time_ns: u64,
}

/// An arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimRequest {
    /// Arrival time.
    pub arrived_at_ns: u64,
    /// Index of the model. Every model has one function.
    pub model: u32,
    /// The tenant.
    pub tenant: u32,
}

/// A workload, and the devices that it is meant for. Arrivals are in order, and every model fits
/// into a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    models: Vec<ModelCosts>,
    requests: Vec<SimRequest>,
    devices: u32,
    capacity_bytes: u64,
    /// Time of an invocation off the device, by model.
    off_device_ns: Vec<u64>,
}

/// Bytes per MB, the unit of memory in files.
pub(super) const MB: u64 = 1_000_000;

/// Minimum fraction of its life that an invocation uses the device.
const SHARE_MIN: f64 = 0.001;

/// Maximum number of simulated devices.
const DEVICES_MAX: u32 = 100_000;

/// Why a workload is invalid.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The JSON does not parse.
    #[error("this is no workload: {0}")]
    Json(#[from] serde_json::Error),
    /// The trace does not parse.
    #[error("this is no trace of invocations: {0}")]
    Csv(String),
    /// A number is invalid.
    #[error("{what} {index}: {why}")]
    Bad {
        /// The kind of item that the number belongs to.
        what: &'static str,
        /// The item's index.
        index: usize,
        /// The problem.
        why: String,
    },
    /// There are no requests to place, or no devices.
    #[error("a workload needs {0}")]
    Missing(&'static str),
    /// There are more devices than can be simulated.
    #[error("at most {DEVICES_MAX} devices can be simulated, not {0}")]
    TooManyDevices(u32),
}

impl Workload {
    /// Creates a workload from its parts, and checks them.
    ///
    /// # Errors
    /// If arrivals are out of order or name an unknown model, if a model is larger than a device or
    /// has a run time of 0, or if there is no device.
    pub fn new(
        models: Vec<ModelCosts>,
        requests: Vec<SimRequest>,
        devices: u32,
        capacity_bytes: u64,
    ) -> Result<Self, WorkloadError> {
        if devices == 0 {
            return Err(WorkloadError::Missing("at least one device"));
        }
        if devices > DEVICES_MAX {
            return Err(WorkloadError::TooManyDevices(devices));
        }
        for (index, model) in models.iter().enumerate() {
            let bad = |why: String| Err(WorkloadError::Bad { what: "model", index, why });
            if model.bytes > capacity_bytes {
                return bad(format!("{} bytes do not fit into {capacity_bytes}", model.bytes));
            }
            if model.run_time_ns == 0 {
                return bad("a run takes more than no time".to_owned());
            }
        }
        let mut before_ns = 0;
        for (index, request) in requests.iter().enumerate() {
            let bad = |why: String| Err(WorkloadError::Bad { what: "request", index, why });
            if request.model as usize >= models.len() {
                return bad(format!("there is no model {}", request.model));
            }
            if request.arrived_at_ns < before_ns {
                return bad("it arrives before the one that it follows".to_owned());
            }
            before_ns = request.arrived_at_ns;
        }
        let off_device_ns = vec![0; models.len()];
        Ok(Self { models, requests, devices, capacity_bytes, off_device_ns })
    }

    /// The same workload with invocations that use the device for this fraction of their time from
    /// start to end, by model: from 0.001 to 1. Models without an entry keep their fraction, which
    /// is 1 at first. Only the time is simulated that devices under
    /// [`DeviceRule::CommittedWork`](crate::DeviceRule::CommittedWork) leave off.
    ///
    /// # Errors
    /// If a fraction is out of bounds.
    pub fn with_device_shares(
        mut self,
        shares: impl IntoIterator<Item = f64>,
    ) -> Result<Self, WorkloadError> {
        let models = self.models.iter().zip(&mut self.off_device_ns);
        for (index, (share, (costs, off_device_ns))) in shares.into_iter().zip(models).enumerate() {
            if !(SHARE_MIN..=1.0).contains(&share) {
                let why = format!("{share} is no fraction of time from {SHARE_MIN} to 1");
                return Err(WorkloadError::Bad { what: "model", index, why });
            }
            *off_device_ns = round_ns(costs.run_time_ns as f64 * (1.0 / share - 1.0));
        }
        Ok(self)
    }

    /// The same workload on another number of devices, or with another capacity.
    ///
    /// # Errors
    /// If a model does not fit into a device.
    pub fn on(self, devices: Option<u32>, capacity_mb: Option<u64>) -> Result<Self, WorkloadError> {
        let capacity_bytes = capacity_mb.map_or(self.capacity_bytes, |mb| mb.saturating_mul(MB));
        let devices = devices.unwrap_or(self.devices);
        let on = Self::new(self.models, self.requests, devices, capacity_bytes)?;
        Ok(Self { off_device_ns: self.off_device_ns, ..on })
    }

    /// Time of an invocation off the device, by model.
    #[must_use]
    pub fn off_device_ns(&self) -> &[u64] {
        &self.off_device_ns
    }

    /// Costs of its models.
    #[must_use]
    pub fn models(&self) -> &[ModelCosts] {
        &self.models
    }

    /// The arrivals, in order.
    #[must_use]
    pub fn requests(&self) -> &[SimRequest] {
        &self.requests
    }

    /// Number of devices.
    #[must_use]
    pub fn devices(&self) -> u32 {
        self.devices
    }

    /// Memory of each device.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }
}

/// Converts seconds of a file to nanoseconds, rounded up so that no request starts before its
/// arrival.
pub(super) fn ns_of(seconds: f64) -> Result<u64, String> {
    // At most a century, so that sums of such times do not overflow.
    if !(0.0..3.2e9).contains(&seconds) {
        return Err(format!("{seconds} is not a time in seconds"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    let ns = (seconds * 1e9 - 1e-3).ceil() as u64;
    Ok(ns)
}
