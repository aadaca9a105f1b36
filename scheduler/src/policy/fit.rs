//! Checks whether an invocation fits on a device, and which models to evict for it. Shared by all
//! policies.

use super::{OpenableModel, PlacementDecision, PlacementRequest};
use crate::{
    Alternative, DeviceKey, DeviceView, EvictionCandidate, Freeing, LeastRecentlyUsed, ModelKey,
    VictimPolicy, Victims, View, Why,
};
use smallvec::SmallVec;

/// Finds room on devices with a victim selection policy.
pub struct RoomFinder {
    victims: Box<dyn VictimPolicy>,
}

/// Maximum number of devices compared for a [`Why`], which bounds the cost of explaining a
/// placement.
const ALTERNATIVES_SCAN_MAX: usize = 16;

impl Default for RoomFinder {
    fn default() -> Self {
        Self::new(Box::new(LeastRecentlyUsed))
    }
}

impl RoomFinder {
    /// Creates a placer with a victim selection policy.
    #[must_use]
    pub fn new(victims: Box<dyn VictimPolicy>) -> Self {
        Self { victims }
    }

    /// The models to evict so that `request` can start on `device`; `None` if it does not fit. Does
    /// not check whether the device accepts one more invocation.
    #[must_use]
    pub fn fit(
        &self,
        now_ns: u64,
        view: &View,
        device: DeviceKey,
        request: &PlacementRequest,
    ) -> Option<Victims> {
        self.fit_beside(now_ns, view, device, request, &|_| false)
    }

    /// The same as [`fit`](Self::fit), but keeps the models for which `stays` is true.
    pub(crate) fn fit_beside(
        &self,
        now_ns: u64,
        view: &View,
        device: DeviceKey,
        request: &PlacementRequest,
        stays: &dyn Fn(ModelKey) -> bool,
    ) -> Option<Victims> {
        self.fit_with(now_ns, view, device, request, (stays, Copies::Stay))
    }

    /// The same as [`fit`](Self::fit), but may evict copies of the requested models on other
    /// devices to stay within the tenant's memory limit.
    pub(crate) fn fit_moved(
        &self,
        now_ns: u64,
        view: &View,
        device: DeviceKey,
        request: &PlacementRequest,
    ) -> Option<Victims> {
        self.fit_with(now_ns, view, device, request, (&|_| false, Copies::Move))
    }

    fn fit_with(
        &self,
        now_ns: u64,
        view: &View,
        device: DeviceKey,
        request: &PlacementRequest,
        (stays, copies): (&dyn Fn(ModelKey) -> bool, Copies),
    ) -> Option<Victims> {
        let state = view.device(device).filter(|state| state.takes(&request.models))?;
        let need = state.need(&request.models);
        if need.missing_bytes == 0 && need.over_bytes == 0 {
            return Some(Victims::default());
        }
        let mut victims = Victims::default();
        if need.missing_bytes > 0 {
            Self::keep_to_cap(view, (device, state), request, copies, &mut victims)?;
        }
        let mut freeing = Freeing::new(state, &request.models);
        victims.models.iter().for_each(|victim| freeing.give_up(*victim));
        if freeing.bytes() < need.over_bytes {
            let keep = |model: ModelKey| {
                is_demanded(&request.models, model) || victims.models.contains(&model) || stays(model)
            };
            let more = self.victims.choose(now_ns, view, device, need.over_bytes, freeing, &keep)?;
            victims.models.extend(more.models);
            victims.loss_ns = more.loss_ns;
        }
        Some(victims)
    }

    /// Whether `request` can start on `device` now: the device accepts it, and it fits.
    #[must_use]
    pub fn can_start(&self, now_ns: u64, view: &View, device: DeviceKey, request: &PlacementRequest) -> bool {
        view.device(device).is_some_and(|state| state.is_open_to(request))
            && self.fit(now_ns, view, device, request).is_some()
    }

    /// Places `request` on `device` if it can start there.
    ///
    /// # Errors
    /// The request itself, if it cannot start there.
    #[expect(clippy::result_large_err, reason = "the error returns the request itself")]
    pub fn place(
        &self,
        now_ns: u64,
        view: &View,
        device: DeviceKey,
        request: PlacementRequest,
    ) -> Result<PlacementDecision, PlacementRequest> {
        let Some(state) = view.device(device).filter(|state| state.is_open_to(&request)) else {
            return Err(request);
        };
        let Some(victims) = self.fit(now_ns, view, device, &request) else { return Err(request) };
        Ok(Self::place_for(now_ns, view, (device, state), request, victims))
    }

    /// Places `request` on `device`, and evicts `victims` for it.
    pub(crate) fn place_for(
        now_ns: u64,
        view: &View,
        (device, state): (DeviceKey, &DeviceView),
        request: PlacementRequest,
        victims: Victims,
    ) -> PlacementDecision {
        let estimate = view.explain(now_ns, state, &request);
        let why = Why { estimate, alternatives: alternatives(now_ns, view, device, &request), queued_ns: 0 };
        let evict = victims.models.into_vec();
        let evict_elsewhere = victims.elsewhere;
        PlacementDecision {
            node: state.id().node,
            device: Some(device),
            evict,
            evict_elsewhere,
            why,
            request,
        }
    }

    /// Chooses victims among the tenant's own models, so that loading the missing models stays
    /// within the tenant's memory limit. `None` if the limit cannot be met.
    fn keep_to_cap(
        view: &View,
        (key, state): (DeviceKey, &DeviceView),
        request: &PlacementRequest,
        copies: Copies,
        victims: &mut Victims,
    ) -> Option<()> {
        let over_bytes = view.tenants().over_bytes(request.tenant, (key, state), &request.models);
        if over_bytes == 0 {
            return Some(());
        }
        let tenant = view.tenants().id(request.tenant);
        let is_own = |model: ModelKey| view.model_id(model).tenant == *tenant;
        let mut own: SmallVec<[_; 16]> = state
            .candidates()
            .filter(|candidate| is_own(candidate.model) && !is_demanded(&request.models, candidate.model))
            .collect();
        own.sort_unstable_by_key(|candidate| (candidate.used, candidate.model));
        let mut freeing = Freeing::new(state, &request.models);
        for candidate in own {
            if freeing.bytes() >= over_bytes {
                return Some(());
            }
            freeing.give_up(candidate.model);
            victims.models.push(candidate.model);
        }
        let left_bytes = over_bytes.saturating_sub(freeing.bytes());
        let mut freed = Elsewhere::default();
        let others = if left_bytes > 0 { elsewhere(view, state, request, copies) } else { Vec::new() };
        for (device, candidate) in others {
            if freed.bytes() >= left_bytes {
                break;
            }
            freed.give_up(view, device, candidate.model);
            victims.elsewhere.push((device, candidate.model));
        }
        (freed.bytes() >= left_bytes).then_some(())
    }
}

/// Whether copies of the requested models on other devices may become victims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copies {
    Stay,
    Move,
}

/// Models that other devices evict.
#[derive(Default)]
struct Elsewhere<'a>(SmallVec<[(DeviceKey, Freeing<'a>); 4]>);

impl<'a> Elsewhere<'a> {
    fn bytes(&self) -> u64 {
        self.0.iter().fold(0, |sum, (_, freeing)| sum.saturating_add(freeing.bytes()))
    }

    fn give_up(&mut self, view: &'a View, key: DeviceKey, model: ModelKey) {
        let at = self.0.iter().position(|(other, _)| *other == key).or_else(|| {
            self.0.push((key, Freeing::new(view.device(key)?, &[])));
            Some(self.0.len() - 1)
        });
        if let Some((_, freeing)) = at.and_then(|at| self.0.get_mut(at)) {
            freeing.give_up(model);
        }
    }
}

/// Maximum number of a tenant's models searched for victims.
const OWN_SCAN_MAX: usize = 256;

/// The tenant's models that other devices could evict, least recently used first; copies of the
/// requested models last.
fn elsewhere(
    view: &View,
    here: &DeviceView,
    request: &PlacementRequest,
    copies: Copies,
) -> Vec<(DeviceKey, EvictionCandidate)> {
    let is_copy = |model: ModelKey| is_demanded(&request.models, model);
    let own = view.tenants().held(request.tenant);
    let own = own.filter(|model| copies == Copies::Move || !is_copy(*model));
    let holders = own
        .take(OWN_SCAN_MAX)
        .flat_map(|model| view.model(model).holders().iter().map(move |key| (*key, model)));
    let candidate = |(key, model): (DeviceKey, ModelKey)| {
        let device = view.device(key).filter(|device| device.id() != here.id())?;
        Some((key, device.candidate(model)?))
    };
    let mut candidates: Vec<_> = holders.filter_map(candidate).collect();
    let rank = |(key, candidate): &(_, EvictionCandidate)| {
        (is_copy(candidate.model), candidate.used, candidate.model, *key)
    };
    candidates.sort_unstable_by_key(rank);
    candidates
}

fn is_demanded(demands: &[OpenableModel], model: ModelKey) -> bool {
    demands.iter().any(|demand| demand.model == model)
}

/// The best other devices among the holders of one of the models and the open devices.
fn alternatives(now_ns: u64, view: &View, chosen: DeviceKey, request: &PlacementRequest) -> Vec<Alternative> {
    let holders = request.models.iter().flat_map(|demand| view.model(demand.model).holders().iter().copied());
    let mut seen = SmallVec::<[DeviceKey; ALTERNATIVES_SCAN_MAX]>::new();
    let mut best = SmallVec::<[(u64, &DeviceView); Why::ALTERNATIVES_MAX + 1]>::new();
    for key in holders.take(ALTERNATIVES_SCAN_MAX / 2).chain(view.open().take(ALTERNATIVES_SCAN_MAX / 2)) {
        let is_another =
            |device: &&DeviceView| key != chosen && !seen.contains(&key) && device.takes(&request.models);
        let Some(device) = view.device(key).filter(is_another) else {
            continue;
        };
        seen.push(key);
        let finish_ns = view.estimate(now_ns, device, request).finish_after_ns();
        let at = best.partition_point(|(other_ns, _)| *other_ns <= finish_ns);
        best.insert(at, (finish_ns, device));
        best.truncate(Why::ALTERNATIVES_MAX);
    }
    let explain = |device: &DeviceView| Alternative {
        device: device.id(),
        estimate: view.explain(now_ns, device, request),
    };
    best.into_iter().map(|(_, device)| explain(device)).collect()
}
