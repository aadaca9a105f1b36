//! The groups of a simulated cluster: a scheduler for each, and the router that chooses one.

use super::cluster::SimulatedCluster;
use super::layout::DeviceLayout;
use super::workload::{ModelCosts, Workload};
use crate::{DemandMeter, FamilyKey, GroupId, GroupReport, GroupRouter, Policy, RoutedCall, Scheduler};

/// Demand above which reports name a family, in run slots.
const REPORTED_SLOTS_MIN: f64 = 1.0;

pub(super) struct SimulatedGroups {
    groups: Vec<SimulatedGroup>,
    /// Nodes of the cluster, which are divided evenly.
    nodes: u32,
    /// `None` with one group, which needs no choice.
    routing: Option<Routing>,
}

struct SimulatedGroup {
    scheduler: Scheduler,
    demand: DemandMeter,
}

struct Routing {
    router: GroupRouter,
    interval_ns: u64,
    /// By model.
    families: Vec<FamilyKey>,
    /// Requests that were routed to another group than the first of their family.
    elsewhere: u64,
}

impl SimulatedGroups {
    /// Creates the schedulers, with their devices.
    pub(super) fn new(
        workload: &Workload,
        cluster: &SimulatedCluster,
        layout: &DeviceLayout,
        mut policy: impl FnMut() -> Box<dyn Policy>,
    ) -> Self {
        let nodes = u32::try_from(layout.nodes().count()).unwrap_or(u32::MAX);
        let count = cluster.groups.clamp(1, nodes);
        let mut group = || SimulatedGroup {
            scheduler: Scheduler::with_policy(&cluster.settings, policy()),
            demand: DemandMeter::default(),
        };
        let groups = (0..count).map(|_| group()).collect();
        let family = |model: u32| FamilyKey::new("simulated", &format!("m{model}"));
        let routing = (count > 1).then(|| Routing {
            router: GroupRouter::default(),
            interval_ns: cluster.report_interval_ns.max(1),
            families: (0_u32..).take(workload.models().len()).map(family).collect(),
            elsewhere: 0,
        });
        let mut all = Self { groups, nodes, routing };
        for node in layout.nodes() {
            let group = all.of_node(node);
            all.scheduler(group).handle(0, layout.up(node), &mut Vec::new());
        }
        all.report(0);
        all
    }

    /// The group of a node. Groups differ by at most one node.
    pub(super) fn of_node(&self, node: u32) -> u32 {
        let group = u64::from(node) * self.groups.len() as u64 / u64::from(self.nodes.max(1));
        u32::try_from(group).unwrap_or(0)
    }

    pub(super) fn scheduler(&mut self, group: u32) -> &mut Scheduler {
        &mut self.groups[group as usize].scheduler
    }

    pub(super) fn schedulers(&self) -> impl Iterator<Item = &Scheduler> {
        self.groups.iter().map(|group| &group.scheduler)
    }

    /// Whether the policy starts the requests of a tenant in order. Groups keep their own order
    /// only.
    pub(super) fn keep_order(&self) -> bool {
        self.routing.is_none() && self.schedulers().all(|scheduler| scheduler.policy().keeps_order())
    }

    /// The interval between reports; `None` with one group.
    pub(super) fn report_interval_ns(&self) -> Option<u64> {
        self.routing.as_ref().map(|routing| routing.interval_ns)
    }

    /// Requests that were routed to another group than the first of their family.
    pub(super) fn elsewhere(&self) -> u64 {
        self.routing.as_ref().map_or(0, |routing| routing.elsewhere)
    }

    /// Reports the work of all groups to the router.
    pub(super) fn report(&mut self, now_ns: u64) {
        let Some(routing) = &mut self.routing else { return };
        for (id, SimulatedGroup { scheduler, demand }) in (0..).map(GroupId).zip(&mut self.groups) {
            let demands = demand.report(now_ns, REPORTED_SLOTS_MIN);
            routing.router.report(id, GroupReport { backlog: scheduler.backlog(), demands });
        }
    }

    /// Chooses the group of a request.
    pub(super) fn route(&mut self, now_ns: u64, request: u32, model: u32, costs: &ModelCosts) -> u32 {
        let Some(routing) = &mut self.routing else { return 0 };
        let family = routing.families[model as usize];
        let call = RoutedCall {
            family,
            number: u64::from(request),
            run_time_ns: costs.run_time_ns,
            load_time_ns: costs.load_time_ns,
        };
        let GroupId(group) = routing.router.route(now_ns, &call).unwrap_or(GroupId(0));
        routing.elsewhere += u64::from(routing.router.home(family) != Some(GroupId(group)));
        self.groups[group as usize].demand.arrived(now_ns, family, costs.run_time_ns);
        group
    }
}
