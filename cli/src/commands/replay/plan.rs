//! The schedule of a replay: due times of requests and their targets.

use crate::commands::workload::unreadable;
use crate::error::Problem;
use anyhow::Result;
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::Duration;
use weir_scheduler::sim::Workload;
use weir_scheduler::{RecordedArrival, recorded_arrivals};
use weir_types::Version;

/// Placeholders in the path of a request.
pub(super) const PLACEHOLDERS: [&str; 3] = ["{model}", "{function}", "{index}"];

const INFER: &str = "/v2/models/{model}/infer";
const CALL: &str = "/fn/{function}";

/// The version under which a node records inferences of a model, and runs that profile a model.
const INFERENCE: Version = Version(0);
const PROFILING: Version = Version(u32::MAX);

/// The requests, in order of their times.
#[derive(Debug)]
pub(super) struct Plan {
    /// Source of the requests, for people.
    pub(super) source: String,
    pub(super) targets: Vec<ReplayTarget>,
    pub(super) requests: Vec<PlannedRequest>,
}

/// Function, model or workflow that a request calls.
#[derive(Debug)]
pub(super) struct ReplayTarget {
    /// Name in the report.
    pub(super) name: String,
    /// The model, if the request is an inference of a model.
    pub(super) inference: Option<String>,
    /// Rows of an inference.
    pub(super) batch: u32,
    pub(super) path: String,
    pub(super) body: Vec<u8>,
    pub(super) content_type: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlannedRequest {
    /// Time since the first request of the source, unscaled.
    pub(super) at: Duration,
    /// Index in the plan's targets.
    pub(super) target: usize,
}

impl Plan {
    pub(super) fn from_workload(workload: &Workload, source: String, template: Option<&str>) -> Self {
        let target = |index: usize| {
            let model = format!("m{index}");
            ReplayTarget {
                path: path(template.unwrap_or(INFER), &model, &format!("f{index}"), index),
                inference: template.is_none_or(|template| template == INFER).then(|| model.clone()),
                name: model,
                ..ReplayTarget::default()
            }
        };
        let request = |request: &weir_scheduler::sim::SimRequest| PlannedRequest {
            at: Duration::from_nanos(request.arrived_at_ns),
            target: request.model as usize,
        };
        Self {
            source,
            targets: (0..workload.models().len()).map(target).collect(),
            requests: workload.requests().iter().map(request).collect(),
        }
    }

    pub(super) fn from_record(file: &Path, template: Option<&str>) -> Result<Self> {
        let opened = File::open(file).map_err(|error| unreadable(file, error.into()))?;
        let arrivals = recorded_arrivals(BufReader::new(opened)).map_err(|error| {
            unreadable(file, error.into()).hint("a record is a file that a node with scheduler.record writes")
        })?;
        let plan = Self::from_arrivals(&arrivals, file.display().to_string(), template);
        if plan.requests.is_empty() {
            return Err(Problem::new(format!("{} has no calls", file.display()))
                .hint("calls without models are recorded only for tenants with limits")
                .into());
        }
        Ok(plan)
    }

    fn from_arrivals(arrivals: &[RecordedArrival], source: String, template: Option<&str>) -> Self {
        let mut plan = Self { source, targets: Vec::new(), requests: Vec::new() };
        let mut known = HashMap::new();
        let calls = arrivals.iter().filter(|read| read.arrival.function.version != PROFILING);
        let began_ns = calls.clone().next().map_or(0, |first| first.at_ns);
        for RecordedArrival { at_ns, arrival } in calls {
            let function = &arrival.function;
            let key = (function.clone(), arrival.batch);
            let target = *known.entry(key).or_insert_with(|| {
                plan.targets.push(ReplayTarget::recorded(arrival, plan.targets.len(), template));
                plan.targets.len() - 1
            });
            let at = Duration::from_nanos(at_ns.saturating_sub(began_ns));
            plan.requests.push(PlannedRequest { at, target });
        }
        plan
    }

    /// Gives all requests the same body.
    pub(super) fn set_body(&mut self, body: &[u8]) {
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok();
        for target in &mut self.targets {
            target.content_type = if is_json { "application/json" } else { "application/octet-stream" };
            body.clone_into(&mut target.body);
        }
    }
}

impl ReplayTarget {
    fn recorded(arrival: &weir_scheduler::Arrival, index: usize, template: Option<&str>) -> Self {
        let function = arrival.function.name.to_string();
        let is_inference = arrival.function.version == INFERENCE;
        let model = match arrival.models.first() {
            Some(demand) if !is_inference => demand.model.name.to_string(),
            _ => function.clone(),
        };
        let default = if is_inference { INFER } else { CALL };
        Self {
            path: path(template.unwrap_or(default), &model, &function, index),
            inference: (template.unwrap_or(default) == INFER).then(|| model.clone()),
            batch: arrival.batch.max(1),
            name: function,
            ..Self::default()
        }
    }
}

impl Default for ReplayTarget {
    fn default() -> Self {
        Self {
            name: String::new(),
            inference: None,
            batch: 1,
            path: String::new(),
            body: Vec::new(),
            content_type: "application/octet-stream",
        }
    }
}

fn path(template: &str, model: &str, function: &str, index: usize) -> String {
    template.replace("{model}", model).replace("{function}", function).replace("{index}", &index.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_scheduler::Arrival;
    use weir_types::{FunctionId, InvocationId, Name, TenantId};

    fn recorded(at_ns: u64, name: &str, version: Version, batch: u32) -> RecordedArrival {
        let arrival = Arrival {
            invocation: InvocationId(at_ns),
            function: FunctionId { tenant: TenantId::default(), name: Name::new(name).unwrap(), version },
            models: Vec::new(),
            deadline_at_ns: u64::MAX,
            priority: 0,
            batch,
            run_time_ns: None,
            run_times_ns: Vec::new(),
            slo: None,
            inputs: Vec::new(),
            batch_items_max: 1,
            is_splittable: false,
            steps: Vec::new(),
        };
        RecordedArrival { at_ns, arrival }
    }

    #[test]
    fn recorded_calls_keep_their_distances_and_targets() {
        let arrivals = [
            recorded(1_000, "m", PROFILING, 1),
            recorded(5_000, "m", INFERENCE, 1),
            recorded(6_000, "f", Version(3), 1),
            recorded(7_000, "m", INFERENCE, 4),
            recorded(9_000, "m", INFERENCE, 1),
        ];
        let plan = Plan::from_arrivals(&arrivals, "a file".into(), None);
        let paths: Vec<_> = plan.targets.iter().map(|target| (&*target.path, target.batch)).collect();
        assert_eq!(paths, [("/v2/models/m/infer", 1), ("/fn/f", 1), ("/v2/models/m/infer", 4)]);
        let inferences: Vec<_> = plan.targets.iter().map(|target| target.inference.is_some()).collect();
        assert_eq!(inferences, [true, false, true]);
        let requests: Vec<_> =
            plan.requests.iter().map(|request| (request.at.as_nanos(), request.target)).collect();
        assert_eq!(requests, [(0, 0), (1_000, 1), (2_000, 2), (4_000, 0)]);
        let plan = Plan::from_arrivals(&arrivals, "a file".into(), Some("/x/{index}/{function}/{model}"));
        assert_eq!(plan.targets[1].path, "/x/1/f/f");
        assert!(plan.targets.iter().all(|target| target.inference.is_none()));
    }

    #[test]
    fn workload_requests_name_their_model() {
        let json = br#"{"models": [[10, 1, 0.5], [20, 1, 0.5]], "requests": [[0, 1], [1.5, 0]]}"#;
        let (workload, _) = Workload::from_json(json).unwrap();
        let mut plan = Plan::from_workload(&workload, "a file".into(), Some("/fn/{function}?n={index}"));
        assert_eq!(plan.targets[1].path, "/fn/f1?n=1");
        assert_eq!(plan.requests[1], PlannedRequest { at: Duration::from_millis(1_500), target: 0 });
        plan.set_body(b"{}");
        assert_eq!((plan.targets[0].content_type, &*plan.targets[0].body), ("application/json", &b"{}"[..]));
        let plan = Plan::from_workload(&workload, "a file".into(), None);
        assert_eq!(plan.targets[1].inference.as_deref(), Some("m1"));
    }
}
