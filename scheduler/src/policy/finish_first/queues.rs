//! Waiting invocations, grouped by function, models and tenant.

use crate::{FunctionKey, InputsOn, ModelKey, PlacementRequest, TenantKey};
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashMap, VecDeque};
use weir_types::InvocationId;

/// A place in line: the arrival time less the invocation's lead, and a unique number.
pub(super) type LinePosition = (u64, u64);

/// The key of a queue, valid while the queue is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueueKey(u32);

/// Queues of invocations, each in order.
#[derive(Debug, Default)]
pub(super) struct Queues {
    queues: Vec<VecDeque<(LinePosition, PlacementRequest)>>,
    free: Vec<QueueKey>,
    keys: HashMap<QueueClass, QueueKey>,
    heads: BTreeSet<(LinePosition, QueueKey)>,
    /// The queues that need a model.
    by_model: Vec<SmallVec<[QueueKey; 2]>>,
    places: HashMap<InvocationId, (QueueKey, LinePosition)>,
    arrivals: u64,
}

/// The grouping key of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct QueueClass {
    tenant: TenantKey,
    function: FunctionKey,
    lead_ns: u64,
    models: SmallVec<[ModelKey; 1]>,
    inputs: Box<[InputsOn]>,
}

/// Lead of the most urgent priority: its invocations are ordered as if they had arrived this much
/// earlier.
const LEAD_NS: u64 = 2_000_000_000;

impl QueueClass {
    fn for_request(request: &PlacementRequest) -> Self {
        let lead_ns = LEAD_NS.checked_div(u64::from(request.priority)).unwrap_or(0);
        Self {
            tenant: request.tenant,
            function: request.function,
            lead_ns,
            models: request.models.iter().map(|demand| demand.model).collect(),
            inputs: request.inputs.clone(),
        }
    }
}

impl Queues {
    /// Queues a request, and returns its place.
    pub(super) fn push(&mut self, request: PlacementRequest) -> (LinePosition, QueueKey) {
        let class = QueueClass::for_request(&request);
        // Adding `LEAD_NS` first makes leads effective from the first second on.
        let order = (request.arrived_at_ns.saturating_add(LEAD_NS - class.lead_ns), self.arrivals);
        self.arrivals += 1;
        let key = self.keys.get(&class).copied().unwrap_or_else(|| self.open(class));
        let queue = &mut self.queues[key.0 as usize];
        self.places.insert(request.invocation, (key, order));
        // A request that returns to the queue gets its former place.
        let at = match queue.back() {
            Some((last, _)) if *last > order => queue.partition_point(|(other, _)| *other < order),
            _ => queue.len(),
        };
        if at == 0 {
            if let Some((before, _)) = queue.front() {
                self.heads.remove(&(*before, key));
            }
            self.heads.insert((order, key));
        }
        queue.insert(at, (order, request));
        (order, key)
    }

    /// The request at a place, if it still waits.
    pub(super) fn get(&self, key: QueueKey, order: LinePosition) -> Option<&PlacementRequest> {
        let queue = &self.queues[key.0 as usize];
        let (at, request) = queue.get(queue.partition_point(|(other, _)| *other < order))?;
        (*at == order).then_some(request)
    }

    /// When the first request of a queue arrived.
    pub(super) fn waits_since_ns(&self, key: QueueKey) -> u64 {
        self.queues[key.0 as usize].front().map_or(u64::MAX, |(_, request)| request.arrived_at_ns)
    }

    /// The first place after `order` for which `holds` is true. `holds` must be monotonic: if it is
    /// true for a place, it is true for all later places.
    pub(super) fn first_behind(
        &self,
        key: QueueKey,
        order: LinePosition,
        mut holds: impl FnMut(LinePosition) -> bool,
    ) -> Option<LinePosition> {
        let queue = &self.queues[key.0 as usize];
        let (last, _) = queue.back()?;
        if *last == order || !holds(*last) {
            return None;
        }
        let (front, _) = queue.front()?;
        let from = if *front == order { 1 } else { queue.partition_point(|(other, _)| *other <= order) };
        let mut low = from;
        let mut high = queue.len() - 1;
        while low < high {
            let middle = low.midpoint(high);
            if holds(queue[middle].0) { high = middle } else { low = middle + 1 }
        }
        queue.get(low).map(|(order, _)| *order)
    }

    /// Removes the request at a place. Returns the request and the next place.
    pub(super) fn take(
        &mut self,
        key: QueueKey,
        order: LinePosition,
    ) -> Option<(PlacementRequest, Option<LinePosition>)> {
        let queue = &mut self.queues[key.0 as usize];
        let at = queue.partition_point(|(other, _)| *other < order);
        let (_, request) = queue.remove(at)?;
        let next = queue.get(at).map(|(order, _)| *order);
        self.places.remove(&request.invocation);
        if at == 0 {
            self.heads.remove(&(order, key));
            self.tidy(key, &request);
        }
        Some((request, next))
    }

    pub(super) fn remove(&mut self, invocation: InvocationId) -> Option<PlacementRequest> {
        let (key, order) = *self.places.get(&invocation)?;
        self.take(key, order).map(|(request, _)| request)
    }

    /// All heads, in order.
    pub(super) fn heads(&self) -> impl Iterator<Item = (LinePosition, QueueKey)> {
        self.heads.iter().copied()
    }

    pub(super) fn heads_len(&self) -> usize {
        self.heads.len()
    }

    /// The heads that need a model.
    pub(super) fn heads_for(&self, model: ModelKey) -> impl Iterator<Item = (LinePosition, QueueKey)> {
        self.keys_for(model).filter_map(|key| Some((self.queues[key.0 as usize].front()?.0, key)))
    }

    /// Number of requests that need a model and stand before a place.
    pub(super) fn before(&self, model: ModelKey, order: LinePosition) -> usize {
        let count = |key: QueueKey| self.queues[key.0 as usize].partition_point(|(other, _)| *other < order);
        self.keys_for(model).map(count).sum()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    fn keys_for(&self, model: ModelKey) -> impl Iterator<Item = QueueKey> {
        self.by_model.get(model.index()).into_iter().flatten().copied()
    }

    fn open(&mut self, class: QueueClass) -> QueueKey {
        let key = self.free.pop().unwrap_or_else(|| {
            self.queues.push(VecDeque::new());
            QueueKey(u32::try_from(self.queues.len() - 1).unwrap_or(u32::MAX))
        });
        for model in &class.models {
            if self.by_model.len() <= model.index() {
                self.by_model.resize_with(model.index() + 1, SmallVec::new);
            }
            self.by_model[model.index()].push(key);
        }
        self.keys.insert(class, key);
        key
    }

    /// Updates the heads after a queue lost its head, and closes an empty queue.
    fn tidy(&mut self, key: QueueKey, last: &PlacementRequest) {
        if let Some((next, _)) = self.queues[key.0 as usize].front() {
            self.heads.insert((*next, key));
            return;
        }
        let class = QueueClass::for_request(last);
        for model in &class.models {
            self.by_model[model.index()].retain(|other| *other != key);
        }
        self.keys.remove(&class);
        self.free.push(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slo;
    use crate::policy::OpenableModel;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum QueueStep {
        Push { tenant: u32, models: Vec<u32>, priority: u32, after_ns: u64, waited_ns: u64 },
        Remove(usize),
        TakeHead(usize),
    }

    fn step() -> impl Strategy<Value = QueueStep> {
        let waited_ns = prop_oneof![3 => Just(0), 1 => 0_u64..3_000_000_000];
        let models = prop::collection::btree_set(0_u32..4, 1..3);
        let push = (0_u32..2, models, 0_u32..3, 0_u64..3_000_000_000, waited_ns);
        prop_oneof![
            5 => push.prop_map(|(tenant, models, priority, after_ns, waited_ns)| QueueStep::Push {
                tenant,
                models: models.into_iter().collect(),
                priority,
                after_ns,
                waited_ns,
            }),
            1 => any::<usize>().prop_map(QueueStep::Remove),
            3 => any::<usize>().prop_map(QueueStep::TakeHead),
        ]
    }

    fn request(
        invocation: u64,
        tenant: u32,
        models: &[u32],
        priority: u32,
        arrived_at_ns: u64,
    ) -> PlacementRequest {
        let demand = |model: &u32| OpenableModel {
            model: ModelKey(*model),
            bytes: 1,
            load_time_ns: None,
            runs_on: weir_types::Platforms::ALL,
            parts: Default::default(),
        };
        PlacementRequest {
            invocation: InvocationId(invocation),
            tenant: TenantKey(tenant),
            function: FunctionKey(0),
            models: models.iter().map(demand).collect(),
            arrived_at_ns,
            deadline_at_ns: u64::MAX,
            priority,
            batch: 1,
            run_time_ns: None,
            told_ns: Box::default(),
            slo: Slo::NONE,
            inputs: Box::default(),
            batch_items_max: 0,
            is_step: false,
        }
    }

    proptest! {
        /// The indexes agree with an exhaustive search of all waiting requests.
        #[test]
        fn queue_indexes_match_exhaustive_search(steps in prop::collection::vec(step(), 1..120), at in any::<usize>()) {
            let mut queues = Queues::default();
            let mut all: Vec<(LinePosition, QueueKey, PlacementRequest)> = Vec::new();
            let mut now_ns = 0;
            for (invocation, step) in (0..).zip(steps) {
                match step {
                    QueueStep::Push { tenant, models, priority, after_ns, waited_ns } => {
                        now_ns += after_ns;
                        let arrived_at_ns = now_ns.saturating_sub(waited_ns);
                        let request = request(invocation, tenant, &models, priority, arrived_at_ns);
                        let (order, key) = queues.push(request.clone());
                        all.push((order, key, request));
                    }
                    QueueStep::Remove(index) if !all.is_empty() => {
                        let (_, _, request) = all.remove(index % all.len());
                        prop_assert_eq!(queues.remove(request.invocation), Some(request));
                    }
                    QueueStep::TakeHead(index) if !all.is_empty() => {
                        let heads: Vec<_> = queues.heads().collect();
                        let (order, key) = heads[index % heads.len()];
                        let (request, next) = queues.take(key, order).unwrap();
                        all.retain(|(_, _, other)| *other != request);
                        prop_assert_eq!(next, all.iter().filter(|(_, other, _)| *other == key).map(|(order, ..)| *order).min());
                    }
                    QueueStep::Remove(_) | QueueStep::TakeHead(_) => {}
                }
                check(&queues, &all, at)?;
            }
        }
    }

    fn check(
        queues: &Queues,
        all: &[(LinePosition, QueueKey, PlacementRequest)],
        at: usize,
    ) -> Result<(), TestCaseError> {
        let mut heads: Vec<_> = all.iter().map(|(order, key, _)| (*order, *key)).collect();
        heads.sort_unstable_by_key(|(order, key)| (*key, *order));
        heads.dedup_by_key(|(_, key)| *key);
        heads.sort_unstable();
        prop_assert_eq!(queues.heads().collect::<Vec<_>>(), heads);
        prop_assert_eq!(queues.len(), all.len());
        let place: LinePosition = all.get(at % all.len().max(1)).map_or((0, 0), |(order, ..)| *order);
        for model in (0..4).map(ModelKey) {
            let needs =
                |request: &PlacementRequest| request.models.iter().any(|demand| demand.model == model);
            let before = all.iter().filter(|(order, _, request)| *order < place && needs(request)).count();
            prop_assert_eq!(queues.before(model, place), before);
        }
        for (order, key, request) in all {
            prop_assert_eq!(queues.get(*key, *order), Some(request));
            let behind =
                all.iter().filter(|(other, of, _)| of == key && other > order).map(|(other, ..)| *other);
            let first = behind.filter(|other| *other >= place).min();
            prop_assert_eq!(queues.first_behind(*key, *order, |other| other >= place), first);
        }
        Ok(())
    }
}
