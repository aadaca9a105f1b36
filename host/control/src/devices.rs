//! A node's devices by ordinal, and the models in their memory.
//!
//! A model is checked once, when it is pushed ([`NodeDevices::preparer`]), and gets a variant for
//! every platform that can run it. Each device has a separate cache; profiles are kept per kind of
//! device.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_inference::{Backend, Content, Health, ModelCache, ModelKey, Prepared, Preparer, Profiles};
use weir_scheduler::{DeviceRule, DeviceSpec};
use weir_telemetry::{DeviceMemory, DeviceReport};
use weir_types::{ModelId, Ordinal, Platform};

/// Invocations with a grant on one device at a time. The committed work of a device limits its
/// grants far below this number; the maximum bounds the scheduler's memory for grants with hardly
/// any work. Separate limits bound instances (`sandbox.instances_max`) and memory of guests.
const DEVICE_GRANTS_MAX: u32 = 10_000;

/// All devices of a node. A node without devices only accepts calls.
pub struct NodeDevices {
    devices: Vec<Arc<NodeDevice>>,
    preparer: Arc<dyn Preparer>,
    /// `None` if kernel graphs are disabled.
    kernel_graphs: Option<KernelGraphSupport>,
}

/// The support for kernel graphs.
pub struct KernelGraphSupport {
    /// Checks pushed kernel graphs.
    pub preparer: Arc<dyn Preparer>,
    /// The device memory of a tenant's worker process, shared by all of the tenant's graphs on the
    /// device.
    pub worker_bytes: u64,
}

/// One device of the node.
pub struct NodeDevice {
    /// The index of the device among the node's devices, from 0.
    pub ordinal: Ordinal,
    /// The name, such as `cpu` or `cuda:0`.
    pub name: Arc<str>,
    /// The key for profiles and prices.
    pub kind: Arc<str>,
    pub(crate) platform: Platform,
    /// The models in its memory.
    pub cache: ModelCache,
    run_memory: RunMemory,
}

/// Interval between two measurements of the memory of runs, while clients ask for it.
const RUN_MEMORY_EVERY: Duration = Duration::from_secs(1);

/// The memory that runs hold, by the latest measurement. Measurements block, so they run on other
/// threads, one at a time.
#[derive(Default)]
struct RunMemory(Arc<RunMemoryState>);

#[derive(Default)]
struct RunMemoryState {
    bytes: AtomicU64,
    /// Start of the latest measurement.
    asked: Mutex<Option<Instant>>,
    is_measuring: AtomicBool,
}

impl RunMemory {
    /// The latest measurement; starts the next one if it is due.
    fn latest(&self, backend: &Arc<dyn Backend>) -> u64 {
        let state = &self.0;
        let mut asked = state.asked.lock();
        if asked.is_none_or(|asked| asked.elapsed() >= RUN_MEMORY_EVERY)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
            && !state.is_measuring.swap(true, Ordering::AcqRel)
        {
            *asked = Some(Instant::now());
            let state = state.clone();
            let backend = backend.clone();
            runtime.spawn_blocking(move || {
                state.bytes.store(backend.run_memory_bytes(), Ordering::Relaxed);
                state.is_measuring.store(false, Ordering::Release);
            });
        }
        drop(asked);
        state.bytes.load(Ordering::Relaxed)
    }
}

impl NodeDevices {
    /// Creates devices with these caches, in the order of their ordinals. `preparer` checks pushed
    /// models.
    pub fn new(
        caches: Vec<ModelCache>,
        preparer: Arc<dyn Preparer>,
        kernel_graphs: Option<KernelGraphSupport>,
    ) -> Self {
        let devices = (0..).zip(caches).map(|(ordinal, cache)| {
            let backend = cache.backend();
            let name = backend.device().to_string().into();
            let kind = backend.kind().into();
            let platform = backend.platform();
            Arc::new(NodeDevice { ordinal, name, kind, platform, cache, run_memory: RunMemory::default() })
        });
        Self { devices: devices.collect(), preparer, kernel_graphs }
    }

    /// The preparer that checks pushed models.
    pub fn preparer(&self) -> &dyn Preparer {
        &*self.preparer
    }

    /// The preparer for uploads of a kind; `None` if that kind is disabled.
    pub fn preparer_of(&self, content: Content) -> Option<&dyn Preparer> {
        match content {
            Content::Network => Some(&*self.preparer),
            Content::KernelGraph => self.kernel_graphs.as_ref().map(|graphs| &*graphs.preparer),
        }
    }

    /// The device memory of the tenant's worker process for models of that kind, shared by all of
    /// the tenant's models in it.
    pub fn worker_bytes(&self, content: Content) -> u64 {
        match content {
            Content::Network => 0,
            Content::KernelGraph => self.kernel_graphs.as_ref().map_or(0, |graphs| graphs.worker_bytes),
        }
    }

    /// Whether the node has no devices.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// All devices, by ordinal.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<NodeDevice>> {
        self.devices.iter()
    }

    /// The device with this ordinal.
    pub fn get(&self, ordinal: Ordinal) -> Option<&Arc<NodeDevice>> {
        self.devices.get(usize::try_from(ordinal).ok()?)
    }

    /// The node's CPU, if it runs models.
    pub fn cpu(&self) -> Option<&Arc<NodeDevice>> {
        self.iter().find(|device| device.platform == Platform::Cpu)
    }

    /// The device's index among the accelerators; `None` for the CPU.
    pub fn accelerator(&self, ordinal: Ordinal) -> Option<u32> {
        let mut accelerators = (0..).zip(self.iter().filter(|device| device.platform != Platform::Cpu));
        accelerators.find(|(_, device)| device.ordinal == ordinal).map(|(place, _)| place)
    }

    /// The profiles of models, by kind of device.
    pub fn profiles(&self) -> BTreeMap<Arc<str>, &Profiles> {
        self.iter().map(|device| (device.kind.clone(), device.cache.profiles())).collect()
    }

    /// Describes the devices for the scheduler.
    pub fn specs(&self) -> Vec<DeviceSpec> {
        let spec = |device: &Arc<NodeDevice>| DeviceSpec {
            kind: (&*device.kind).into(),
            platform: device.platform,
            capacity_bytes: device.cache.capacity_bytes(),
            slots: device.slots(),
            invocations_max: DEVICE_GRANTS_MAX,
            rule: DeviceRule::CommittedWork,
        };
        self.iter().map(spec).collect()
    }

    /// Updates the meters of models with their time in memory so far.
    pub fn meter_memory(&self) {
        self.iter().for_each(|device| device.cache.meter_memory());
    }

    /// Describes the devices for status output.
    pub fn reports(&self) -> Vec<DeviceReport> {
        self.iter().map(|device| device.report()).collect()
    }

    /// Whether invocations hold one of these models on some device.
    pub fn is_any_pinned(&self, models: &[ModelId]) -> bool {
        self.iter().any(|device| device.cache.is_any_pinned(models))
    }

    /// Unloads a model from all devices once its last pin is dropped, and drops its profiles.
    pub fn let_go(&self, key: &ModelKey) {
        for device in self.iter() {
            // The future completes once the model is unloaded; this caller does not wait for it.
            drop(device.cache.unload(key));
            device.cache.profiles().forget(key);
        }
    }
}

impl NodeDevice {
    /// The number of concurrent runs.
    pub fn slots(&self) -> u32 {
        u32::try_from(self.cache.slots()).unwrap_or(u32::MAX)
    }

    /// Whether it can load one of a model's variants.
    pub fn runs(&self, prepared: &Prepared) -> bool {
        prepared.variants.iter().any(|form| self.cache.backend().runs(form))
    }

    /// Whether the device is up, or why it is lost.
    pub fn health(&self) -> Health {
        self.cache.health().borrow().clone()
    }

    fn report(&self) -> DeviceReport {
        let lost = match self.health() {
            Health::Up => None,
            Health::Lost(why) => Some(why.as_ref().to_owned()),
        };
        DeviceReport {
            name: self.name.as_ref().to_owned(),
            kind: self.kind.as_ref().to_owned(),
            backend: self.cache.backend().name().to_owned(),
            slots: self.slots(),
            runs_waiting: self.cache.queue_len() as u64,
            capacity_bytes: self.cache.capacity_bytes(),
            used_bytes: self.cache.used_bytes(),
            resident: self.cache.resident().into_iter().map(|model| model.id).collect(),
            memory: self.memory(),
            lost,
        }
    }

    fn memory(&self) -> DeviceMemory {
        let backend = self.cache.backend();
        let intermediates_bytes = backend.handed_over().map_or(0, |tensors| tensors.kept_bytes);
        let used_bytes = self.cache.used_bytes().saturating_add(intermediates_bytes);
        let workspace_bytes = match backend.pool_bytes() {
            Some(pool_bytes) => pool_bytes.saturating_sub(used_bytes),
            None => self.run_memory.latest(backend),
        };
        DeviceMemory {
            models: self.cache.charged_bytes().into_iter().collect(),
            intermediates_bytes,
            workspace_bytes,
        }
    }
}
