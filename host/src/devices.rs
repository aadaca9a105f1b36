//! The devices that a node owns, by their ordinals, and the models in their memory.
//!
//! A model is checked once, when it is pushed ([`Devices::preparer`]), and gets a form for every platform that can run it. Each device has a
//! cache of its own; what models cost is known by kind of device.

use crate::cluster::DeviceReport;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_inference::{Content, Health, ModelCache, ModelKey, Prepared, Preparer, Profiles};
use weir_scheduler::DeviceSpec;
use weir_types::Platform;

/// A device's place among those of its node.
pub(crate) type Ordinal = u32;

/// All devices of a node; there is at least one.
pub(crate) struct Devices {
    first: NodeDevice,
    others: Vec<NodeDevice>,
    preparer: Arc<dyn Preparer>,
    /// None where there are no kernel graphs.
    kernel_graphs: Option<KernelGraphs>,
}

/// How kernel graphs are taken.
pub(crate) struct KernelGraphs {
    /// What checks them.
    pub(crate) preparer: Arc<dyn Preparer>,
    /// What the worker of a tenant takes of a device, once for all of its graphs there.
    pub(crate) worker_bytes: u64,
}

/// One device.
pub(crate) struct NodeDevice {
    pub(crate) ordinal: Ordinal,
    /// What it is called: `cpu`, `cuda:0`.
    pub(crate) name: Arc<str>,
    /// What profiles and prices are kept by.
    pub(crate) kind: Arc<str>,
    pub(crate) platform: Platform,
    /// The models in its memory.
    pub(crate) cache: ModelCache,
}

impl Devices {
    /// These caches, in the order of their ordinals; none if there are none. What is pushed goes through `preparer`, and kernel graphs through one of
    /// their own, where there are any.
    pub(crate) fn new(
        caches: Vec<ModelCache>,
        preparer: Arc<dyn Preparer>,
        kernel_graphs: Option<KernelGraphs>,
    ) -> Option<Self> {
        let mut devices = (0..).zip(caches).map(|(ordinal, cache)| {
            let backend = cache.backend();
            let name = backend.device().to_string().into();
            NodeDevice { ordinal, name, kind: backend.kind().into(), platform: backend.platform(), cache }
        });
        let first = devices.next()?;
        Some(Self { first, others: devices.collect(), preparer, kernel_graphs })
    }

    /// What checks models that are pushed.
    pub(crate) fn preparer(&self) -> &dyn Preparer {
        &*self.preparer
    }

    /// What checks uploads of a kind; none where they are not taken.
    pub(crate) fn preparer_of(&self, content: Content) -> Option<&dyn Preparer> {
        match content {
            Content::Network => Some(&*self.preparer),
            Content::KernelGraph => self.kernel_graphs.as_ref().map(|graphs| &*graphs.preparer),
        }
    }

    /// What a model of that kind takes of a device besides what is its own, once for all of its tenant's there.
    pub(crate) fn worker_bytes(&self, content: Content) -> u64 {
        match content {
            Content::Network => 0,
            Content::KernelGraph => self.kernel_graphs.as_ref().map_or(0, |graphs| graphs.worker_bytes),
        }
    }

    /// The first of them, which is the processor unless the node's settings say otherwise.
    pub(crate) fn first(&self) -> &NodeDevice {
        &self.first
    }

    /// All of them, by ordinal.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &NodeDevice> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// One of them.
    pub(crate) fn get(&self, ordinal: Ordinal) -> Option<&NodeDevice> {
        self.iter().nth(usize::try_from(ordinal).ok()?)
    }

    /// The node's processor, if it runs models.
    pub(crate) fn cpu(&self) -> Option<&NodeDevice> {
        self.iter().find(|device| device.platform == Platform::Cpu)
    }

    /// Its place among those that are not the processor; none if it is that.
    pub(crate) fn accelerator(&self, ordinal: Ordinal) -> Option<u32> {
        let mut accelerators = (0..).zip(self.iter().filter(|device| device.platform != Platform::Cpu));
        accelerators.find(|(_, device)| device.ordinal == ordinal).map(|(place, _)| place)
    }

    /// What models cost, by kind of device.
    pub(crate) fn profiles(&self) -> BTreeMap<Arc<str>, &Profiles> {
        self.iter().map(|device| (device.kind.clone(), device.cache.profiles())).collect()
    }

    /// As the scheduler sees them, with so many invocations on each.
    pub(crate) fn specs(&self, invocations_max: u32) -> Vec<DeviceSpec> {
        let spec = |device: &NodeDevice| DeviceSpec {
            kind: (&*device.kind).into(),
            platform: device.platform,
            capacity_bytes: device.cache.capacity_bytes(),
            slots: device.slots(),
            invocations_max,
        };
        self.iter().map(spec).collect()
    }

    /// Have the meters of models count their time in memory up to now.
    pub(crate) fn meter_memory(&self) {
        self.iter().for_each(|device| device.cache.meter_memory());
    }

    /// As people see them.
    pub(crate) fn reports(&self) -> Vec<DeviceReport> {
        self.iter().map(NodeDevice::report).collect()
    }

    /// Have a model leave every device's memory with its last pin, and forget what it cost.
    pub(crate) fn let_go(&self, key: &ModelKey) {
        for device in self.iter() {
            // Ready once it has left, which nobody waits for.
            drop(device.cache.unload(key));
            device.cache.profiles().forget(key);
        }
    }
}

impl NodeDevice {
    /// Runs at once.
    pub(crate) fn slots(&self) -> u32 {
        u32::try_from(self.cache.slots()).unwrap_or(u32::MAX)
    }

    /// Whether it can load a model in one of its forms.
    pub(crate) fn runs(&self, prepared: &Prepared) -> bool {
        prepared.variants.iter().any(|form| self.cache.backend().runs(form))
    }

    /// Whether it is there, or why not.
    pub(crate) fn health(&self) -> Health {
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
            lost,
        }
    }
}
