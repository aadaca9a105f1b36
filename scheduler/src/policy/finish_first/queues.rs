//! What waits, by models and tenant.

use crate::{ModelKey, Request, TenantKey};
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashMap, VecDeque};
use weir_types::InvocationId;

/// Places in line: when one arrived, less the lead that it is given, and what makes it unique.
pub(super) type Order = (u64, u64);

/// A queue, for as long as something is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueueKey(u32);

/// Queues, each in order.
#[derive(Debug, Default)]
pub(super) struct Queues {
    queues: Vec<VecDeque<(Order, Request)>>,
    free: Vec<QueueKey>,
    keys: HashMap<Class, QueueKey>,
    heads: BTreeSet<(Order, QueueKey)>,
    /// The queues that need a model.
    by_model: HashMap<ModelKey, SmallVec<[QueueKey; 2]>>,
    places: HashMap<InvocationId, (QueueKey, Order)>,
    arrivals: u64,
}

/// What those in one queue have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Class {
    tenant: TenantKey,
    lead_ns: u64,
    models: SmallVec<[ModelKey; 1]>,
}

/// The most urgent are treated as if they had arrived this much earlier.
const LEAD_NS: u64 = 2_000_000_000;

impl Class {
    fn of(request: &Request) -> Self {
        let lead_ns = LEAD_NS.checked_div(u64::from(request.priority)).unwrap_or(0);
        Self {
            tenant: request.tenant,
            lead_ns,
            models: request.models.iter().map(|demand| demand.model).collect(),
        }
    }
}

impl Queues {
    pub(super) fn push(&mut self, request: Request) {
        let class = Class::of(&request);
        // So that leads make a difference from the first second on.
        let order = (request.arrived_at_ns.saturating_add(LEAD_NS - class.lead_ns), self.arrivals);
        self.arrivals += 1;
        let key = self.keys.get(&class).copied().unwrap_or_else(|| self.open(class));
        let queue = &mut self.queues[key.0 as usize];
        if queue.is_empty() {
            self.heads.insert((order, key));
        }
        self.places.insert(request.invocation, (key, order));
        queue.push_back((order, request));
    }

    /// The one at this place, if it still waits.
    pub(super) fn get(&self, key: QueueKey, order: Order) -> Option<&Request> {
        let queue = &self.queues[key.0 as usize];
        let (at, request) = queue.get(queue.partition_point(|(other, _)| *other < order))?;
        (*at == order).then_some(request)
    }

    /// The first behind this place for which `holds`, which is true for all behind one for which it is.
    pub(super) fn first_behind(
        &self,
        key: QueueKey,
        order: Order,
        mut holds: impl FnMut(Order) -> bool,
    ) -> Option<Order> {
        let queue = &self.queues[key.0 as usize];
        let (last, _) = queue.back()?;
        if *last == order || !holds(*last) {
            return None;
        }
        let (front, _) = queue.front()?;
        let from = if *front == order { 1 } else { queue.partition_point(|(other, _)| *other <= order) };
        let (mut low, mut high) = (from, queue.len() - 1);
        while low < high {
            let middle = low.midpoint(high);
            if holds(queue[middle].0) { high = middle } else { low = middle + 1 }
        }
        queue.get(low).map(|(order, _)| *order)
    }

    /// Take the one at this place, and say where the next behind it stands.
    pub(super) fn take(&mut self, key: QueueKey, order: Order) -> Option<(Request, Option<Order>)> {
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

    pub(super) fn remove(&mut self, invocation: InvocationId) -> Option<Request> {
        let (key, order) = *self.places.get(&invocation)?;
        self.take(key, order).map(|(request, _)| request)
    }

    /// All heads, in order.
    pub(super) fn heads(&self) -> impl Iterator<Item = (Order, QueueKey)> {
        self.heads.iter().copied()
    }

    pub(super) fn heads_len(&self) -> usize {
        self.heads.len()
    }

    /// The heads that need a model.
    pub(super) fn heads_for(&self, model: ModelKey) -> impl Iterator<Item = (Order, QueueKey)> {
        self.keys_for(model).filter_map(|key| Some((self.queues[key.0 as usize].front()?.0, key)))
    }

    /// How many that need a model stand before a place.
    pub(super) fn before(&self, model: ModelKey, order: Order) -> usize {
        let count = |key: QueueKey| self.queues[key.0 as usize].partition_point(|(other, _)| *other < order);
        self.keys_for(model).map(count).sum()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    fn keys_for(&self, model: ModelKey) -> impl Iterator<Item = QueueKey> {
        self.by_model.get(&model).into_iter().flatten().copied()
    }

    fn open(&mut self, class: Class) -> QueueKey {
        let key = self.free.pop().unwrap_or_else(|| {
            self.queues.push(VecDeque::new());
            QueueKey(u32::try_from(self.queues.len() - 1).unwrap_or(u32::MAX))
        });
        for model in &class.models {
            self.by_model.entry(*model).or_default().push(key);
        }
        self.keys.insert(class, key);
        key
    }

    /// A queue has lost its head: note the next one, or close it.
    fn tidy(&mut self, key: QueueKey, last: &Request) {
        if let Some((next, _)) = self.queues[key.0 as usize].front() {
            self.heads.insert((*next, key));
            return;
        }
        let class = Class::of(last);
        for model in &class.models {
            if let Some(keys) = self.by_model.get_mut(model) {
                keys.retain(|other| *other != key);
                if keys.is_empty() {
                    self.by_model.remove(model);
                }
            }
        }
        self.keys.remove(&class);
        self.free.push(key);
    }
}
