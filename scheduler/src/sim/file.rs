//! Workloads and schedules as JSON.
//!
//! `models` are `[MB, load s, run s]`, or with time off the device `[MB, load s, run s, device
//! share]`; `requests` are `[arrival s, model]`, or with a schedule
//! `[arrival s, model, device, start s, end s, hit]`; `capacity` is the memory of a device in MB
//! (default 8192); `gpus` is the number of devices (default 12). Other keys are ignored.

use super::workload::{MB, ModelCosts, SimRequest, Workload, WorkloadError, ns_of};
use super::{SimulatedPlacement, SimulatedSchedule, SimulationMetrics};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct File {
    models: Vec<ModelRow>,
    requests: Vec<Row>,
    capacity: Option<f64>,
    gpus: Option<u32>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(untagged)]
enum ModelRow {
    Shared(f64, f64, f64, f64),
    Whole(f64, f64, f64),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Row {
    Placed(f64, u32, u32, f64, f64, bool),
    Arrival(f64, u32),
}

#[derive(Serialize)]
struct Dump<'a> {
    policy: &'a str,
    capacity: f64,
    gpus: u32,
    models: Vec<ModelRow>,
    requests: Vec<(f64, u32, u32, f64, f64, bool)>,
    metrics: &'a SimulationMetrics,
}

/// The LALB paper's cluster.
const DEVICES: u32 = 12;
const CAPACITY_MB: f64 = 8192.0;

/// Upper bound on the memory of a device, far below an overflow of sums.
const MB_MAX: f64 = 1e9;

impl Workload {
    /// Reads a workload, with its schedule if the file has one.
    ///
    /// # Errors
    /// If the workload is invalid; see [`Workload::new`].
    pub fn from_json(json: &[u8]) -> Result<(Self, Option<Vec<SimulatedPlacement>>), WorkloadError> {
        let file: File = serde_json::from_slice(json)?;
        let bad = |what, index| move |why| WorkloadError::Bad { what, index, why };
        let share = |row: &ModelRow| if let ModelRow::Shared(.., share) = row { *share } else { 1.0 };
        let shares: Vec<f64> = file.models.iter().map(share).collect();
        let costs = |(index, row): (usize, ModelRow)| {
            let (ModelRow::Shared(mb, load_s, run_s, _) | ModelRow::Whole(mb, load_s, run_s)) = row;
            Ok(ModelCosts {
                bytes: bytes_of(mb).map_err(bad("model", index))?,
                load_time_ns: ns_of(load_s).map_err(bad("model", index))?,
                run_time_ns: ns_of(run_s).map_err(bad("model", index))?,
            })
        };
        let models = file.models.into_iter().enumerate().map(costs).collect::<Result<_, WorkloadError>>()?;
        let mut requests = Vec::with_capacity(file.requests.len());
        let mut schedule = Vec::with_capacity(file.requests.len());
        for (index, row) in file.requests.into_iter().enumerate() {
            let (Row::Arrival(arrival_s, model) | Row::Placed(arrival_s, model, ..)) = row;
            let arrived_at_ns = ns_of(arrival_s).map_err(bad("request", index))?;
            requests.push(SimRequest { arrived_at_ns, model, tenant: 0 });
            if let Row::Placed(_, _, device, start_s, end_s, hit) = row {
                let started_at_ns = ns_of(start_s).map_err(bad("request", index))?;
                let ended_at_ns = ns_of(end_s).map_err(bad("request", index))?;
                schedule.push(SimulatedPlacement { device, started_at_ns, ended_at_ns, hit });
            }
        }
        let schedule = (schedule.len() == requests.len()).then_some(schedule);
        let capacity_bytes = bytes_of(file.capacity.unwrap_or(CAPACITY_MB)).map_err(bad("capacity", 0))?;
        let workload = Self::new(models, requests, file.gpus.unwrap_or(DEVICES), capacity_bytes)?;
        Ok((workload.with_device_shares(shares)?, schedule))
    }

    /// Writes the workload with a schedule, in the format that [`from_json`](Self::from_json)
    /// reads.
    ///
    /// # Errors
    /// If writing to `out` fails.
    pub fn to_json(
        &self,
        policy: &str,
        schedule: &SimulatedSchedule,
        metrics: &SimulationMetrics,
        out: impl std::io::Write,
    ) -> Result<(), serde_json::Error> {
        let rows = self.requests().iter().zip(&schedule.placed).filter_map(|(request, placed)| {
            let placed = placed.as_ref()?;
            Some((
                s_of(request.arrived_at_ns),
                request.model,
                placed.device,
                s_of(placed.started_at_ns),
                s_of(placed.ended_at_ns),
                placed.hit,
            ))
        });
        let row = |(model, off_device_ns): (&ModelCosts, &u64)| {
            let mb = model.bytes as f64 / MB as f64;
            let load_s = s_of(model.load_time_ns);
            let run_s = s_of(model.run_time_ns);
            match *off_device_ns {
                0 => ModelRow::Whole(mb, load_s, run_s),
                off_ns => ModelRow::Shared(mb, load_s, run_s, run_s / (run_s + s_of(off_ns))),
            }
        };
        let dump = Dump {
            policy,
            capacity: self.capacity_bytes() as f64 / MB as f64,
            gpus: self.devices(),
            models: self.models().iter().zip(self.off_device_ns()).map(row).collect(),
            requests: rows.collect(),
            metrics,
        };
        serde_json::to_writer(out, &dump)
    }
}

fn s_of(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Converts MB of a file to bytes.
pub(super) fn bytes_of(mb: f64) -> Result<u64, String> {
    if !(mb > 0.0 && mb <= MB_MAX) {
        return Err(format!("{mb} is not an amount of memory in MB"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    let bytes = (mb * MB as f64).round() as u64;
    Ok(bytes)
}
