//! Clockwork, for comparison: earliest due time first, among the resident models.

use super::{OpenableModel, PlacementDecision, PlacementRequest, Policy, RoomFinder};
use crate::{DeviceKey, DeviceView, FunctionKey, ModelKey, View};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use weir_types::InvocationId;

/// The baseline of the KaaS thesis, chapter 4, after Gujarati et al., *Serving DNNs like Clockwork*
/// (OSDI 2020).
///
/// One controller keeps a queue per function, ordered by due time. A free device runs the
/// invocation with the earliest due time among those whose models it holds. If there is none, it
/// loads the models with the most waiting work per device that already holds them. An invocation
/// that would miss its due time even if it ran at once is given up. That happens late, once the
/// miss is certain; admission control would reject it on arrival.
///
/// The paper's other features, batches by deadline and loads ahead of requests, are left out: the
/// other policies here lack them too.
pub struct Clockwork {
    placer: RoomFinder,
    /// By due time, then in order of arrival.
    queues: BTreeMap<ClockworkKey, BTreeMap<ClockworkOrder, PlacementRequest>>,
    /// The queues that need a model.
    by_model: HashMap<ModelKey, BTreeSet<ClockworkKey>>,
    /// For each invocation: its queue, its place in the queue, and the latest start with which it
    /// still meets its due time, by the run time expected on arrival.
    places: HashMap<InvocationId, (ClockworkKey, ClockworkOrder, u64)>,
    /// The invocations that have a due time, ordered by their latest start.
    last_starts: BTreeSet<(u64, InvocationId)>,
    arrivals: u64,
}

type ClockworkOrder = (u64, u64);

/// The key of a queue: function and models.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ClockworkKey(FunctionKey, SmallVec<[ModelKey; 1]>);

impl ClockworkKey {
    fn for_request(request: &PlacementRequest) -> Self {
        Self(request.function, request.models.iter().map(|demand| demand.model).collect())
    }
}

impl Clockwork {
    /// Creates the policy with a victim selection.
    #[must_use]
    pub fn new(placer: RoomFinder) -> Self {
        let (queues, by_model, places, last_starts) = Default::default();
        Self { placer, queues, by_model, places, last_starts, arrivals: 0 }
    }

    /// The invocation with the earliest due time among those whose models the device holds.
    fn hit(&self, now_ns: u64, view: &View, key: DeviceKey, device: &DeviceView) -> Option<InvocationId> {
        let classes = device.held().filter_map(|model| self.by_model.get(&model)).flatten();
        let holds_all = |class: &&ClockworkKey| class.1.iter().all(|model| device.holds(*model));
        let first = |class: &ClockworkKey| self.first(view, class);
        let mut hits: SmallVec<[_; 16]> = classes.filter(holds_all).filter_map(first).collect();
        hits.sort_unstable_by_key(|(order, _)| *order);
        let fits = |request: &&PlacementRequest| self.placer.can_start(now_ns, view, key, request);
        hits.into_iter().map(|(_, request)| request).find(fits).map(|request| request.invocation)
    }

    /// The first invocation of the queue with the most waiting work per holder of its models.
    fn miss(&self, now_ns: u64, view: &View, key: DeviceKey, device: &DeviceView) -> Option<InvocationId> {
        let work = |class: &ClockworkKey, (_, request): (ClockworkOrder, &PlacementRequest)| {
            let waits = self.queues.get(class).map_or(0, BTreeMap::len) as u64;
            let copies = request.models.iter().map(|demand| view.model(demand.model).holders().len()).min();
            let run_ns = view.run_time_ns(device, request);
            run_ns.saturating_mul(waits) / (copies.unwrap_or(0) as u64 + 1)
        };
        let is_missing = |demand: &OpenableModel| !device.holds(demand.model);
        let misses = self.queues.keys().filter_map(|class| {
            let first =
                self.first(view, class).filter(|(_, request)| request.models.iter().any(is_missing))?;
            Some((work(class, first), first))
        });
        let mut misses: Vec<_> = misses.collect();
        misses.sort_unstable_by_key(|(work, (order, _))| (std::cmp::Reverse(*work), *order));
        let mut requests = misses.into_iter().map(|(_, (_, request))| request);
        let fits = |request: &&PlacementRequest| self.placer.can_start(now_ns, view, key, request);
        requests.find(fits).map(|request| request.invocation)
    }

    /// The first invocation of a queue whose tenant may start it.
    fn first(&self, view: &View, class: &ClockworkKey) -> Option<(ClockworkOrder, &PlacementRequest)> {
        let may_start =
            |(_, request): &(&ClockworkOrder, &PlacementRequest)| view.tenants().may_start(request.tenant);
        self.queues.get(class)?.iter().find(may_start).map(|(order, request)| (*order, request))
    }

    fn take(&mut self, invocation: InvocationId) -> Option<PlacementRequest> {
        let (class, order, last_start_ns) = self.places.remove(&invocation)?;
        self.last_starts.remove(&(last_start_ns, invocation));
        let queue = self.queues.get_mut(&class)?;
        let request = queue.remove(&order)?;
        if queue.is_empty() {
            self.queues.remove(&class);
            for model in &class.1 {
                if let Some(classes) = self.by_model.get_mut(model) {
                    classes.remove(&class);
                    if classes.is_empty() {
                        self.by_model.remove(model);
                    }
                }
            }
        }
        Some(request)
    }
}

impl Policy for Clockwork {
    fn name(&self) -> &'static str {
        "clockwork"
    }

    fn arrived(&mut self, request: PlacementRequest, view: &View) {
        let class = ClockworkKey::for_request(&request);
        let due_at_ns = request.slo.due_at_ns;
        let last_start_ns = due_at_ns.saturating_sub(view.expected_run_time_ns(&request));
        if due_at_ns < u64::MAX {
            self.last_starts.insert((last_start_ns, request.invocation));
        }
        let order = (due_at_ns, self.arrivals);
        self.arrivals += 1;
        self.places.insert(request.invocation, (class.clone(), order, last_start_ns));
        for model in &class.1 {
            self.by_model.entry(*model).or_default().insert(class.clone());
        }
        self.queues.entry(class).or_default().insert(order, request);
    }

    fn next(&mut self, now_ns: u64, view: &View) -> Option<PlacementDecision> {
        if self.queues.is_empty() {
            return None;
        }
        let open = || view.open().filter_map(|key| Some((key, view.device(key)?)));
        let hit = open().find_map(|(key, device)| Some((key, self.hit(now_ns, view, key, device)?)));
        let miss = || open().find_map(|(key, device)| Some((key, self.miss(now_ns, view, key, device)?)));
        let (key, invocation) = hit.or_else(miss)?;
        let request = self.take(invocation)?;
        self.placer.place(now_ns, view, key, request).ok()
    }

    fn remove(&mut self, invocation: InvocationId, _view: &View) -> Option<PlacementRequest> {
        self.take(invocation)
    }

    fn late(&mut self, now_ns: u64, _view: &View) -> Option<PlacementRequest> {
        let (last_start_ns, invocation) = *self.last_starts.first()?;
        if last_start_ns >= now_ns {
            return None;
        }
        self.take(invocation)
    }

    fn waiting(&self) -> usize {
        self.places.len()
    }
}
