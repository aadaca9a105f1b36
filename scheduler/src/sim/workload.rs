//! What arrives, and what it costs.

/// What a model costs on every device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// Device memory that it takes.
    pub bytes: u64,
    /// Time to bring it there.
    pub load_time_ns: u64,
    /// Time of one run.
    pub run_time_ns: u64,
}

/// One arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimRequest {
    /// When.
    pub arrived_at_ns: u64,
    /// The index of its model. Every model has one function.
    pub model: u32,
    /// Whose it is.
    pub tenant: u32,
}

/// A workload, and the devices that it is meant for. Arrivals are in order, and every model fits.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    models: Vec<Costs>,
    requests: Vec<SimRequest>,
    devices: u32,
    capacity_bytes: u64,
}

/// The bytes of the files' unit of memory.
pub(super) const MB: u64 = 1_000_000;

/// The most devices that are simulated.
const DEVICES_MAX: u32 = 100_000;

/// Why something is not a workload.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// It cannot be read.
    #[error("this is no workload: {0}")]
    Json(#[from] serde_json::Error),
    /// It cannot be read.
    #[error("this is no trace of invocations: {0}")]
    Csv(String),
    /// A number is not what it should be.
    #[error("{what} {index}: {why}")]
    Bad {
        /// What the number belongs to.
        what: &'static str,
        /// Which one.
        index: usize,
        /// What is wrong.
        why: String,
    },
    /// There is nothing to place, or nowhere to place it.
    #[error("a workload needs {0}")]
    Missing(&'static str),
    /// More than can be simulated.
    #[error("at most {DEVICES_MAX} devices can be simulated, not {0}")]
    TooManyDevices(u32),
}

impl Workload {
    /// Check what was put together.
    ///
    /// # Errors
    /// If arrivals are not in order or name a model that is not there, if a model is larger than a device or takes no time at all, or if
    /// there is nothing.
    pub fn new(
        models: Vec<Costs>,
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
        Ok(Self { models, requests, devices, capacity_bytes })
    }

    /// The same for another number of devices, or with another memory of each.
    ///
    /// # Errors
    /// If it does not fit there.
    pub fn on(self, devices: Option<u32>, capacity_mb: Option<u64>) -> Result<Self, WorkloadError> {
        let capacity_bytes = capacity_mb.map_or(self.capacity_bytes, |mb| mb.saturating_mul(MB));
        Self::new(self.models, self.requests, devices.unwrap_or(self.devices), capacity_bytes)
    }

    /// What its models cost.
    #[must_use]
    pub fn models(&self) -> &[Costs] {
        &self.models
    }

    /// What arrives, in order.
    #[must_use]
    pub fn requests(&self) -> &[SimRequest] {
        &self.requests
    }

    /// How many devices there are.
    #[must_use]
    pub fn devices(&self) -> u32 {
        self.devices
    }

    /// The memory of each.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }
}

/// Seconds of a file as nanoseconds, rounded up so that nothing can start before it arrived.
pub(super) fn ns_of(seconds: f64) -> Result<u64, String> {
    // A century: no sum of such times overflows.
    if !(0.0..3.2e9).contains(&seconds) {
        return Err(format!("{seconds} is not a time in seconds"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just now")]
    let ns = (seconds * 1e9 - 1e-3).ceil() as u64;
    Ok(ns)
}
