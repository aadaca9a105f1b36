//! The scheduler's knowledge of the cluster: nodes, their devices, resident models and running
//! invocations.

mod device;
pub use device::{DeviceView, EvictionCandidate, Need};

mod memory;
pub use memory::ModelParts;
pub(crate) use memory::{CombinedModelSize, ModelSize, together_bytes};

mod freeing;
pub use freeing::Freeing;

mod models;
pub use models::ModelView;

mod nodes;
pub use nodes::NodeView;

mod residency;
mod running;
pub(crate) use running::InvocationEnd;

mod committed;
mod functions;

mod commitments;
use commitments::Commitments;

mod costs;

use crate::estimate::Network;
use crate::keys::KeyTable;
use crate::policy::OpenableModel;
use crate::{
    Arrival, DeviceKey, DeviceKind, FunctionKey, KindKey, ModelDemand, ModelKey, PartId, PlacementRequest,
    Settings, Tenants,
};
use functions::{AllTimes, FunctionTimes};
use models::ModelTable;
use running::StartedInvocation;
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use weir_types::{DeviceId, FunctionId, InvocationId, ModelId, NodeId, Platform};

/// Maximum number of functions with remembered run times; see [`KeyTable`].
const FUNCTIONS_MAX: usize = 16_384;

/// The cluster as the scheduler sees it. Policies read it; only [`Scheduler`](crate::Scheduler)
/// changes it.
#[derive(Debug)]
pub struct View {
    nodes: BTreeMap<NodeId, NodeView>,
    /// By key. Entries of nodes that went down are reused.
    devices: Vec<Option<DeviceView>>,
    /// Devices that accept one more invocation, most dispatches first.
    open: BTreeSet<(Reverse<u64>, DeviceKey)>,
    /// Devices that accept no more invocations, by the expected end of their first invocation.
    closed: BTreeSet<(u64, DeviceKey)>,
    kinds: Vec<DeviceKind>,
    /// By kind: the platform of its devices, and how many of them belong to nodes that are up.
    kinds_up: Vec<(Platform, u32)>,
    models: ModelTable,
    /// Number of events so far.
    events: u64,
    /// Devices that freed something since the last event.
    eased: SmallVec<[DeviceKey; 8]>,
    /// When the first invocation arrived.
    watched_from_ns: Option<u64>,
    functions: KeyTable<FunctionId, FunctionTimes>,
    tenants: Tenants,
    running: HashMap<InvocationId, StartedInvocation>,
    all_times: AllTimes,
    network: Network,
    commitments: Commitments,
    /// Number of grants so far, which orders models by last use.
    clock: u64,
    freed: u64,
    capacity_bytes_max: Option<u64>,
}

impl View {
    pub(crate) fn new(settings: &Settings) -> Self {
        let (nodes, devices, open, closed, kinds, kinds_up, running) = Default::default();
        Self {
            nodes,
            devices,
            open,
            closed,
            kinds,
            kinds_up,
            models: ModelTable::new(),
            events: 0,
            eased: SmallVec::new(),
            watched_from_ns: None,
            functions: KeyTable::new(FUNCTIONS_MAX),
            tenants: Tenants::new(settings.tenants.clone(), settings.tenant_default.clone()),
            running,
            all_times: AllTimes::default(),
            network: settings.network,
            commitments: Commitments::new(settings),
            clock: 0,
            freed: 0,
            capacity_bytes_max: None,
        }
    }

    /// The devices of all nodes that are up.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceKey, &DeviceView)> {
        (0..).zip(&self.devices).filter_map(|(key, device)| Some((DeviceKey(key), device.as_ref()?)))
    }

    /// A device, if its node is up.
    #[must_use]
    pub fn device(&self, device: DeviceKey) -> Option<&DeviceView> {
        self.devices.get(device.index())?.as_ref()
    }

    /// The key of a device, if its node is up.
    #[must_use]
    pub fn device_key(&self, device: DeviceId) -> Option<DeviceKey> {
        self.nodes.get(&device.node)?.devices.get(usize::try_from(device.ordinal).ok()?).copied()
    }

    /// Devices that accept one more invocation, most dispatches first, ties by key.
    pub fn open(&self) -> impl Iterator<Item = DeviceKey> {
        self.open.iter().map(|(_, device)| *device)
    }

    /// The devices of [`open`](Self::open) in reverse order: fewest dispatches first.
    pub fn open_last(&self) -> impl Iterator<Item = DeviceKey> {
        self.open.iter().rev().map(|(_, device)| *device)
    }

    /// Devices that accept no more invocations, earliest expected end first.
    pub fn closed(&self) -> impl Iterator<Item = DeviceKey> {
        self.closed.iter().map(|(_, device)| *device)
    }

    /// The number of the event being handled.
    #[must_use]
    pub fn event(&self) -> u64 {
        self.events
    }

    /// Devices that gained capacity since the last event: by an end, an eviction, or because they
    /// are new.
    #[must_use]
    pub fn eased(&self) -> &[DeviceKey] {
        &self.eased
    }

    /// The name of a kind of device.
    #[must_use]
    pub fn kind_name(&self, kind: KindKey) -> Option<&DeviceKind> {
        self.kinds.get(kind.index())
    }

    /// The key of a kind of device, if it exists or has existed.
    #[must_use]
    pub fn kind_key(&self, kind: &DeviceKind) -> Option<KindKey> {
        let at = self.kinds.iter().position(|known| known == kind)?;
        u32::try_from(at).ok().map(KindKey)
    }

    /// Number of kinds of devices that exist or have existed.
    #[must_use]
    pub fn kinds_len(&self) -> usize {
        self.kinds.len()
    }

    /// The device after `last` in key order, wrapping around to the first.
    #[must_use]
    pub fn device_after(&self, last: Option<DeviceKey>) -> Option<DeviceKey> {
        let from = last.map_or(0, |last| last.index() + 1).min(self.devices.len());
        let (before, behind) = self.devices.split_at(from);
        let at = behind.iter().position(Option::is_some).map(|at| from + at);
        let at = at.or_else(|| before.iter().position(Option::is_some))?;
        u32::try_from(at).ok().map(DeviceKey)
    }

    /// Recent arrivals per second that asked for a model.
    #[must_use]
    pub fn demand_per_s(&self, model: ModelKey, now_ns: u64) -> f64 {
        let watched_ns = now_ns.saturating_sub(self.watched_from_ns.unwrap_or(now_ns));
        self.models.get(model).demand_per_s(now_ns, watched_ns)
    }

    /// A model that is waited for, running or held.
    #[must_use]
    pub fn model(&self, model: ModelKey) -> &ModelView {
        self.models.get(model)
    }

    /// The devices with a model that contains this part and was not given up.
    pub fn holders_of(&self, part: PartId) -> impl Iterator<Item = DeviceKey> {
        self.models.holders_of(part)
    }

    /// The name of a model that is waited for, running or held.
    #[must_use]
    pub fn model_id(&self, model: ModelKey) -> &ModelId {
        self.models.id(model)
    }

    /// The key of a model, if it has one.
    #[must_use]
    pub fn model_key(&self, model: &ModelId) -> Option<ModelKey> {
        self.models.key(model)
    }

    /// The memory of the largest device; `None` without devices.
    #[must_use]
    pub fn capacity_bytes_max(&self) -> Option<u64> {
        self.capacity_bytes_max
    }

    /// Usage and limits of tenants.
    #[must_use]
    pub fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// A counter that rises whenever capacity is freed or added, so that a request without a
    /// placement may find one.
    #[must_use]
    pub fn freed(&self) -> u64 {
        self.freed
    }

    /// Begins the handling of an event.
    pub(crate) fn begin(&mut self, now_ns: u64) {
        self.events += 1;
        self.eased.clear();
        for device in self.commitments.take_forming() {
            self.change(device, SmallVec::new(), DeviceView::close_batches);
        }
        while let Some(invocation) = self.commitments.next_overdue(now_ns) {
            self.lapse(invocation);
        }
        self.tenants.begin(now_ns);
    }

    pub(crate) fn tenants_mut(&mut self) -> &mut Tenants {
        &mut self.tenants
    }

    /// Resolves the names of an arrival, whose models must be distinct. [`forget`](Self::forget)
    /// undoes it.
    pub(crate) fn resolve(&mut self, arrival: &Arrival, now_ns: u64) -> PlacementRequest {
        self.watched_from_ns.get_or_insert(now_ns);
        let request = self.resolve_names(arrival, now_ns);
        for demand in &request.models {
            self.models.get_mut(demand.model).demand(now_ns);
        }
        request
    }

    /// Resolves the names of an arrival that does not count as demand for its models.
    /// [`forget_names`](Self::forget_names) undoes it.
    pub(crate) fn resolve_names(&mut self, arrival: &Arrival, now_ns: u64) -> PlacementRequest {
        let tenant = self.tenants.retain(&arrival.function.tenant);
        let function = FunctionKey(self.functions.retain(&arrival.function));
        let demands = arrival.models.iter().map(|demand| {
            let model = self.models.retain(&demand.model);
            let ModelDemand { bytes, load_time_ns, runs_on, .. } = *demand;
            OpenableModel {
                model,
                bytes,
                load_time_ns,
                runs_on,
                parts: ModelParts::new(bytes, &demand.parts),
            }
        });
        let models = demands.collect();
        let told = arrival.run_times_ns.iter();
        let told_ns = told.filter_map(|(kind, ns)| Some((self.kind_key(kind)?, *ns))).collect();
        PlacementRequest {
            invocation: arrival.invocation,
            tenant,
            function,
            models,
            arrived_at_ns: now_ns,
            deadline_at_ns: arrival.deadline_at_ns,
            priority: arrival.priority,
            batch: arrival.batch,
            run_time_ns: arrival.run_time_ns,
            told_ns,
            slo: arrival.slo.unwrap_or_default(),
            inputs: arrival.inputs.as_slice().into(),
            batch_items_max: arrival.batch_items_max,
            is_step: false,
        }
    }

    /// Releases the references of a request that no longer waits.
    pub(crate) fn forget(&mut self, request: &PlacementRequest) {
        for demand in &request.models {
            self.models.get_mut(demand.model).waits_no_more();
        }
        self.forget_names(request);
    }

    /// Undoes [`resolve_names`](Self::resolve_names).
    pub(crate) fn forget_names(&mut self, request: &PlacementRequest) {
        for demand in &request.models {
            self.models.release(demand.model);
        }
        self.functions.release(request.function.0);
        self.tenants.release(request.tenant);
    }
}
