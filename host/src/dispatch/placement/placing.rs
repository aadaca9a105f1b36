//! Announces each kind of call to the scheduler and waits for the placement.

use super::placed::By;
use super::state::Refusal;
use super::{Place, Placed, Placements, Placing};
use crate::cluster::wire::Granted;
use crate::dispatch::{Inference, Invocation, WorkflowCall};
use crate::instance::Fault;
use crate::models::{Expected, Models};
use crate::objective::Objective;
use crate::workflows::{Catalog, ExpectedRun};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use weir_scheduler::{Arrival, ModelDemand, Rejection, Slo};
use weir_types::{Cost, ErrorCode, FunctionId, InvocationId, ModelId, TenantId, Version, WorkflowId};

impl Placements {
    /// Waits for a placement. Dropping the future, or the placement, reports the end of the
    /// invocation to the scheduler.
    pub(crate) async fn place(
        self: &Arc<Self>,
        invocation: &Invocation,
        catalog: &Catalog,
    ) -> Result<(Place, Placed), Fault> {
        if let Some(granted) = &invocation.granted {
            return Ok(self.granted(invocation.id, granted));
        }
        let demands = catalog.granted(&invocation.deployment);
        if demands.is_empty() && self.take_unasked(&invocation.deployment.id.tenant) {
            return Ok((Place::Here(None), self.placed(invocation.id, By::Nobody)));
        }
        let objective = invocation.objective;
        let arrival = Arrival {
            invocation: invocation.id,
            function: invocation.deployment.id.clone(),
            models: demands,
            deadline_at_ns: self.time_ns(invocation.deadline),
            priority: invocation.priority,
            batch: 1,
            run_time_ns: None,
            run_times_ns: Vec::new(),
            slo: self.slo(&objective, invocation.arrived),
            inputs: invocation.inputs.clone(),
        };
        self.settle(arrival, &objective, invocation.arrived).await
    }

    /// Like [`place`](Self::place), for a stand-alone inference of a model.
    pub(crate) async fn place_inference(
        self: &Arc<Self>,
        inference: &Inference,
        batch: u32,
        models: &Models,
    ) -> Result<(Place, Placed), Fault> {
        if let Some(granted) = &inference.granted {
            return Ok(self.granted(inference.id, granted));
        }
        let ModelId { tenant, name, .. } = inference.entry.source.id().clone();
        let objective = inference.objective;
        // The profiles of earlier runs of this node: looked up only if the objective can reject the
        // call.
        let known =
            if objective.is_none() { Expected::default() } else { models.expected(&inference.entry, batch) };
        let arrival = Arrival {
            invocation: inference.id,
            // The scheduler learns run times per function. A stand-alone model uses version 0,
            // which functions do not use.
            function: FunctionId { tenant, name, version: Version(0) },
            models: vec![ModelDemand { load_time_ns: known.load_time_ns, ..inference.entry.demand() }],
            deadline_at_ns: self.time_ns(inference.deadline),
            priority: inference.priority,
            batch,
            run_time_ns: None,
            run_times_ns: known.run_times_ns,
            slo: self.slo(&objective, inference.arrived),
            inputs: inference.inputs.clone(),
        };
        let placed = self.settle(arrival, &objective, inference.arrived).await;
        placed.map_err(|fault| match fault.code {
            ErrorCode::NoCapacity => match models.nowhere(&inference.entry) {
                Some(why) => Fault::new(ErrorCode::NoCapacity, why),
                None => fault,
            },
            _ => fault,
        })
    }

    /// Like [`place`](Self::place), for a model that is to be measured: one call with many runs and
    /// without an objective.
    pub(crate) async fn place_measuring(
        self: &Arc<Self>,
        inference: &Inference,
    ) -> Result<(Place, Placed), Fault> {
        if let Some(granted) = &inference.granted {
            return Ok(self.granted(inference.id, granted));
        }
        let ModelId { tenant, name, .. } = inference.entry.source.id().clone();
        let arrival = Arrival {
            invocation: inference.id,
            // The duration is not a run time of the model or of a function, so it gets a version
            // that neither uses.
            function: FunctionId { tenant, name, version: Version(u32::MAX) },
            models: vec![inference.entry.demand()],
            deadline_at_ns: self.time_ns(inference.deadline),
            priority: inference.priority,
            batch: 1,
            run_time_ns: None,
            run_times_ns: Vec::new(),
            slo: None,
            inputs: Vec::new(),
        };
        self.settle(arrival, &Objective::default(), inference.arrived).await
    }

    /// Like [`place`](Self::place), for a workflow, which needs all the models of its steps.
    pub(crate) async fn place_workflow(
        self: &Arc<Self>,
        call: &WorkflowCall,
        batch: u32,
        catalog: &Catalog,
    ) -> Result<(Place, Placed), Fault> {
        if let Some(granted) = &call.granted {
            return Ok(self.granted(call.id, granted));
        }
        let objective = call.objective;
        // As for a model: looked up only if the objective can reject the call.
        let ExpectedRun { models, run_times_ns } = if objective.is_none() {
            ExpectedRun { models: catalog.demands(&call.workflow), run_times_ns: Vec::new() }
        } else {
            catalog.expected(&call.workflow, batch)
        };
        let WorkflowId { tenant, name, version } = call.workflow.id.clone();
        let arrival = Arrival {
            invocation: call.id,
            // Workflows and functions share no names.
            function: FunctionId { tenant, name, version },
            models,
            deadline_at_ns: self.time_ns(call.deadline),
            priority: call.priority,
            batch,
            run_time_ns: None,
            run_times_ns,
            slo: self.slo(&objective, call.arrived),
            inputs: call.inputs.clone(),
        };
        self.settle(arrival, &objective, call.arrived).await
    }

    /// Converts an objective to the scheduler's clock.
    fn slo(&self, objective: &Objective, arrived: Instant) -> Option<Slo> {
        let due_at_ns = objective.latency.map_or(u64::MAX, |latency| self.time_ns(arrived + latency));
        let cost_max = objective.cost_max.unwrap_or(Cost::MAX);
        (!objective.is_none()).then_some(Slo { due_at_ns, cost_max })
    }

    /// The placement of a call that was granted its place on this node.
    fn granted(self: &Arc<Self>, id: InvocationId, granted: &Granted) -> (Place, Placed) {
        self.lock().books.begin(id, granted.clone());
        (Place::Here(granted.device), self.placed(id, By::Grant))
    }

    fn placed(self: &Arc<Self>, invocation: InvocationId, by: By) -> Placed {
        Placed { placements: self.clone(), invocation, by }
    }

    async fn settle(
        self: &Arc<Self>,
        arrival: Arrival,
        objective: &Objective,
        arrived: Instant,
    ) -> Result<(Place, Placed), Fault> {
        let models = arrival.models.iter().map(|demand| demand.model.clone()).collect();
        let deadline_at_ns = arrival.deadline_at_ns;
        let is_due_later = arrival.slo.is_some_and(|slo| slo.due_at_ns > deadline_at_ns);
        let placed = self.placed(arrival.invocation, By::Scheduler);
        let answer = match self.arrive(arrival, models) {
            Placing::Done(answer) => answer,
            Placing::Waits(started) => started.await.unwrap_or(Err(Refusal::NoAnswer)),
        };
        let place = answer.map_err(|refusal| match refusal {
            // The objective could be met: the caller allows less time than the objective.
            Refusal::Rejected(Rejection::Slo, estimate)
                if is_due_later && objective.cost_max.is_none_or(|cost_max| estimate.cost <= cost_max) =>
            {
                let left_ns = deadline_at_ns.saturating_sub(self.time_ns(arrived));
                let text = format!(
                    "it would be over after about {} ms, and may take {} ms (timeout, infer_time_ms_max, limits.deadline_ms)",
                    estimate.finish_after_ns() / 1_000_000,
                    left_ns / 1_000_000,
                );
                Fault::new(ErrorCode::DeadlineExceeded, text)
            }
            Refusal::Rejected(Rejection::Slo, estimate) => objective.refuse(&estimate, arrived.elapsed()),
            refusal => refusal.into(),
        })?;
        Ok((place, placed))
    }

    /// Takes one of the permits for calls that would not gain from another node and that no cap
    /// holds back.
    fn take_unasked(&self, tenant: &TenantId) -> bool {
        if self.scheduler.settings.limits_of(tenant).may_hold_back() {
            return false;
        }
        let free = |taken| (taken < self.unasked_max).then_some(taken + 1);
        self.unasked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).is_ok()
    }
}
