//! Reads the public trace of Azure Functions from a file.
//!
//! Columns: `HashOwner,HashApp,HashFunction,Trigger,1,2,…,1440`. The numbered columns are
//! invocations in each minute of a day.

use super::generate::{counts_of, table_models};
use super::workload::{MB, SimRequest, Workload, WorkloadError};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::collections::BTreeMap;

/// Turns a trace into a workload: its most invoked functions, each with a model of Table I of the
/// LALB paper.
#[derive(Debug, Clone, PartialEq)]
pub struct AzureRecipe {
    /// Number of functions kept: the working set.
    pub functions: u32,
    /// Index of the first minute, from 0.
    pub first_minute: u32,
    /// Number of minutes.
    pub minutes: u32,
    /// Invocations in each minute, distributed as in the trace; `None` keeps the numbers of the
    /// trace.
    pub per_minute: Option<u32>,
    /// Number of devices.
    pub devices: u32,
    /// Memory of each device.
    pub capacity_mb: u64,
}

/// Maximum number of arrivals in a workload.
const REQUESTS_MAX: u64 = 10_000_000;

const NAMES: usize = 4;
const MINUTE_NS: f64 = 60e9;

struct Function {
    owner: String,
    total: u64,
    minutes: Vec<u32>,
}

impl AzureRecipe {
    /// Reads the workload of a file. `seed` determines the times within a minute and the assignment
    /// of models. Owners become tenants.
    ///
    /// # Errors
    /// If the file is not such a trace, or has no invocations in those minutes.
    pub fn read(&self, csv: impl std::io::Read, seed: u64) -> Result<Workload, WorkloadError> {
        let functions = self.functions(csv)?;
        if functions.is_empty() {
            return Err(WorkloadError::Missing("an invocation in those minutes"));
        }
        let mut rng = Pcg64::seed_from_u64(seed);
        let count = u32::try_from(functions.len()).unwrap_or(u32::MAX);
        let models = table_models(count, &mut rng);
        let mut tenants = BTreeMap::new();
        for function in &functions {
            let next = u32::try_from(tenants.len()).unwrap_or(u32::MAX);
            tenants.entry(function.owner.as_str()).or_insert(next);
        }
        let mut requests = Vec::new();
        for minute in 0..self.minutes {
            let counts = functions.iter().map(|function| function.minutes[minute as usize]).collect();
            for ((model, function), count) in (0..).zip(&functions).zip(self.share_out(counts)) {
                let tenant = tenants[function.owner.as_str()];
                requests.extend((0..count).map(|_| {
                    let at_ns = (f64::from(minute) + rng.random::<f64>()) * MINUTE_NS;
                    SimRequest { arrived_at_ns: super::generate::at(at_ns), model, tenant }
                }));
            }
        }
        requests.sort_unstable_by_key(|request| (request.arrived_at_ns, request.model));
        Workload::new(models, requests, self.devices, self.capacity_mb * MB)
    }

    /// The functions that are kept, most invoked first.
    fn functions(&self, csv: impl std::io::Read) -> Result<Vec<Function>, WorkloadError> {
        let mut rows = csv::Reader::from_reader(csv);
        let first = NAMES + self.first_minute as usize;
        let mut functions = Vec::new();
        for (index, row) in rows.records().enumerate() {
            let row = row.map_err(|error| WorkloadError::Csv(error.to_string()))?;
            let bad = |why: String| WorkloadError::Bad { what: "function", index, why };
            let count = |at: usize| match row.get(at) {
                None => Err(bad(format!("there is no minute {}", at + 1 - NAMES))),
                Some(count) => count.trim().parse::<u32>().map_err(|_| bad(format!("{count:?} is no count"))),
            };
            let minutes: Vec<u32> =
                (first..first + self.minutes as usize).map(count).collect::<Result<_, _>>()?;
            let total = minutes.iter().map(|count| u64::from(*count)).sum();
            let owner = row.get(0).unwrap_or_default().to_owned();
            functions.push(Function { owner, total, minutes });
        }
        functions.sort_by_key(|function| std::cmp::Reverse(function.total));
        functions.truncate(self.functions as usize);
        functions.retain(|function| function.total > 0);
        let all: u64 = functions.iter().map(|function| function.total).sum();
        if self.per_minute.is_none() && all > REQUESTS_MAX {
            return Err(WorkloadError::Csv(format!("{all} invocations are more than {REQUESTS_MAX}")));
        }
        Ok(functions)
    }

    fn share_out(&self, counts: Vec<u32>) -> Vec<u32> {
        let total: f64 = counts.iter().map(|count| f64::from(*count)).sum();
        match self.per_minute {
            Some(per_minute) if total > 0.0 => {
                let shares: Vec<f64> = counts.iter().map(|count| f64::from(*count) / total).collect();
                counts_of(&shares, per_minute)
            }
            _ => counts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CSV: &str = "HashOwner,HashApp,HashFunction,Trigger,1,2,3\n\
        alice,a,f,http,9,0,4\n\
        bob,b,g,timer,1,1,1\n\
        alice,a,h,queue,0,0,40\n";

    fn recipe(functions: u32, per_minute: Option<u32>) -> AzureRecipe {
        AzureRecipe { functions, first_minute: 0, minutes: 3, per_minute, devices: 2, capacity_mb: 8_192 }
    }

    #[test]
    fn trace_counts_become_arrivals_of_the_most_invoked_functions() {
        let workload = recipe(2, None).read(CSV.as_bytes(), 1).unwrap();
        let of = |model: u32, minute: u64| {
            let is_it = |request: &&SimRequest| {
                request.model == model && request.arrived_at_ns / 60_000_000_000 == minute
            };
            workload.requests().iter().filter(is_it).count()
        };
        assert_eq!([of(0, 0), of(0, 1), of(0, 2)], [0, 0, 40]);
        assert_eq!([of(1, 0), of(1, 1), of(1, 2)], [9, 0, 4]);
        assert_eq!(workload, recipe(2, None).read(CSV.as_bytes(), 1).unwrap(), "a seed says it all");
    }

    #[test]
    fn trace_minutes_scale_to_a_rate_and_owners_become_tenants() {
        let workload = recipe(3, Some(100)).read(CSV.as_bytes(), 1).unwrap();
        assert_eq!(workload.requests().len(), 300);
        let bobs = workload.requests().iter().filter(|request| request.tenant == 1).count();
        assert_eq!(bobs, 10 + 100 + 2, "a tenth, all, and a forty-fifth of the minutes");
    }

    #[test]
    fn invalid_traces_are_rejected() {
        for csv in
            ["", "HashOwner,HashApp,HashFunction,Trigger,1\na,b,c,d,1\n", "o,a,f,t,1,2,3\na,b,c,d,1,-2,3\n"]
        {
            assert!(recipe(1, None).read(csv.as_bytes(), 1).is_err(), "{csv:?}");
        }
        let silent = "o,a,f,t,1,2,3\na,b,c,d,0,0,0\n";
        assert!(recipe(1, Some(5)).read(silent.as_bytes(), 1).is_err());
    }
}
