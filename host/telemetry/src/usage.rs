//! Cost attribution: device usage of tenants, by function and model, and in total.
//!
//! A row belongs to a function and a model that it runs, to a model that clients run directly, or
//! to a function that brings models along. A row exists while both are deployed, and until the last
//! handle is dropped. Usage in a row also counts in the total of the row's tenant, which remains.

use super::logs::now_ms;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use weir_device::Device;
use weir_inference::{Meter, Used};
use weir_types::{ModelId, Name, TenantId, Version};

/// Meters of all tenants. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Meters(Arc<UsageShared>);

#[derive(Debug)]
struct UsageShared {
    since_ms: u64,
    all: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    tenants: HashMap<TenantId, Meter>,
    models: HashMap<ModelId, Weak<ModelRows>>,
    functions: HashMap<(TenantId, Name), Weak<FunctionRow>>,
}

/// Meters of one version of a model. Cheap to clone; the rows are removed with the last clone.
#[derive(Debug, Clone)]
pub struct ModelMeters(Arc<ModelRows>);

#[derive(Debug)]
struct ModelRows {
    id: ModelId,
    tenant: Meter,
    own: Meter,
    functions: Mutex<BTreeMap<Name, Meter>>,
    meters: Meters,
}

/// Meter of the models that a function brings along. Cheap to clone; all rows of the function are
/// removed with the last clone.
#[derive(Debug, Clone)]
pub struct FunctionMeter(Arc<FunctionRow>);

#[derive(Debug)]
struct FunctionRow {
    key: (TenantId, Name),
    own: Meter,
    meters: Meters,
}

/// Usage on behalf of a function, by a model.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MeteredUsage {
    /// The tenant to which the usage is attributed.
    pub tenant: TenantId,
    /// None for direct inferences of the model, and for usage outside of runs: the model's loads,
    /// and its time in memory.
    pub function: Option<Name>,
    /// None for models that the function brings along.
    pub model: Option<(Name, Version)>,
}

impl Default for Meters {
    fn default() -> Self {
        Self(Arc::new(UsageShared { since_ms: now_ms(), all: Mutex::default() }))
    }
}

impl Meters {
    /// Returns the start of the metering, in Unix milliseconds.
    pub fn since_ms(&self) -> u64 {
        self.0.since_ms
    }

    /// Returns the meters of a model. All callers share them while any handle exists.
    pub fn model(&self, id: &ModelId) -> ModelMeters {
        let mut all = self.0.all.lock();
        if let Some(rows) = all.models.get(id).and_then(Weak::upgrade) {
            return ModelMeters(rows);
        }
        let tenant = all.tenant(&id.tenant);
        let own = Meter::within(&tenant);
        let meters = self.clone();
        let rows = Arc::new(ModelRows { id: id.clone(), tenant, own, functions: Mutex::default(), meters });
        all.models.insert(id.clone(), Arc::downgrade(&rows));
        ModelMeters(rows)
    }

    /// Returns the meter of a function. All callers share it while any handle exists.
    pub fn function(&self, tenant: &TenantId, name: &Name) -> FunctionMeter {
        let key = (tenant.clone(), name.clone());
        let mut all = self.0.all.lock();
        if let Some(row) = all.functions.get(&key).and_then(Weak::upgrade) {
            return FunctionMeter(row);
        }
        let own = Meter::within(&all.tenant(tenant));
        let row = Arc::new(FunctionRow { key: key.clone(), own, meters: self.clone() });
        all.functions.insert(key, Arc::downgrade(&row));
        FunctionMeter(row)
    }

    /// Returns the total usage of a tenant by device, including functions and models that are no
    /// longer deployed.
    pub fn total(&self, tenant: &TenantId) -> Vec<(Device, Used)> {
        self.0.all.lock().tenants.get(tenant).map(Meter::used).unwrap_or_default()
    }

    /// Returns all rows with usage, sorted, by device.
    pub fn rows(&self) -> Vec<(MeteredUsage, Vec<(Device, Used)>)> {
        let all = self.0.all.lock();
        let models: Vec<_> = all.models.values().filter_map(Weak::upgrade).collect();
        let functions: Vec<_> = all.functions.values().filter_map(Weak::upgrade).collect();
        drop(all);
        let of_models = models.iter().flat_map(|model| model.rows());
        let of_functions = functions.iter().map(|function| {
            let (tenant, name) = function.key.clone();
            (MeteredUsage { tenant, function: Some(name), model: None }, function.own.used())
        });
        let mut rows: Vec<_> = of_models.chain(of_functions).filter(|(_, used)| !used.is_empty()).collect();
        rows.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        rows
    }
}

impl All {
    fn tenant(&mut self, tenant: &TenantId) -> Meter {
        self.tenants.entry(tenant.clone()).or_default().clone()
    }
}

impl ModelMeters {
    /// Returns the meter of the model's loads, its time in memory, and its direct inferences.
    pub fn own(&self) -> &Meter {
        &self.0.own
    }

    /// Returns the meter of the runs of the model by a function. The caller holds a meter of that
    /// function.
    pub fn of_function(&self, function: &Name) -> Meter {
        let mut functions = self.0.functions.lock();
        if let Some(meter) = functions.get(function) {
            return meter.clone();
        }
        let meter = Meter::within(&self.0.tenant);
        functions.insert(function.clone(), meter.clone());
        meter
    }
}

impl ModelRows {
    fn rows(&self) -> Vec<(MeteredUsage, Vec<(Device, Used)>)> {
        let ModelId { tenant, name, version } = &self.id;
        let model = Some((name.clone(), *version));
        let row = |function, meter: &Meter| {
            (MeteredUsage { tenant: tenant.clone(), function, model: model.clone() }, meter.used())
        };
        let functions = self.functions.lock();
        let of_functions = functions.iter().map(|(name, meter)| row(Some(name.clone()), meter));
        std::iter::once(row(None, &self.own)).chain(of_functions).collect()
    }
}

impl FunctionMeter {
    /// Returns the meter of all usage by models that the function brings along.
    pub fn own(&self) -> &Meter {
        &self.0.own
    }
}

impl Drop for ModelRows {
    fn drop(&mut self) {
        let mut all = self.meters.0.all.lock();
        // Keep the entry if the model exists again.
        if all.models.get(&self.id).is_some_and(|rows| rows.strong_count() == 0) {
            all.models.remove(&self.id);
        }
    }
}

impl Drop for FunctionRow {
    fn drop(&mut self) {
        // Declared before the lock, so that the models are dropped after it: dropping the last
        // handle of a model takes the lock.
        let mut models = Vec::new();
        let mut all = self.meters.0.all.lock();
        if all.functions.get(&self.key).is_none_or(|row| row.strong_count() > 0) {
            // The name is in use again: keep its rows.
            return;
        }
        all.functions.remove(&self.key);
        let (tenant, name) = &self.key;
        let own = all.models.iter().filter(|(id, _)| id.tenant == *tenant);
        models.extend(own.filter_map(|(_, rows)| rows.upgrade()));
        models.iter().for_each(|model| _ = model.functions.lock().remove(name));
        drop(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: Device = Device::Cpu;

    fn run(run_time_ns: u64) -> Used {
        Used { runs: 1, run_time_ns, ..Used::default() }
    }

    fn name(name: &str) -> Name {
        Name::new(name).unwrap()
    }

    fn model(tenant: &str, model: &str) -> ModelId {
        ModelId { tenant: TenantId::new(tenant).unwrap(), name: name(model), version: Version(1) }
    }

    /// Formats rows as `tenant function model time`.
    fn shown(meters: &Meters) -> Vec<String> {
        let text = |(row, used): (MeteredUsage, Vec<(Device, Used)>)| {
            let function = row.function.map_or_else(|| "-".into(), |name| name.to_string());
            let model = row.model.map_or_else(|| "-".into(), |(name, _)| name.to_string());
            format!("{} {function} {model} {}", row.tenant, used[0].1.run_time_ns)
        };
        meters.rows().into_iter().map(text).collect()
    }

    #[test]
    fn rows_end_with_the_deployment_and_totals_remain() {
        let meters = Meters::default();
        let m = meters.model(&model("acme", "m"));
        let other = meters.model(&model("bold", "m"));
        let tenant = TenantId::new("acme").unwrap();
        let f = meters.function(&tenant, &name("f"));
        assert!(meters.rows().is_empty(), "nothing was used");
        m.own().add(CPU, &run(1));
        m.of_function(&name("f")).add(CPU, &run(20));
        meters.model(&model("acme", "m")).of_function(&name("f")).add(CPU, &run(20));
        f.own().add(CPU, &run(300));
        other.own().add(CPU, &run(4_000));
        assert_eq!(shown(&meters), ["acme - m 1", "acme f - 300", "acme f m 40", "bold - m 4000"]);

        // Deploy the function again while a call of the earlier deployment still runs.
        let again = meters.function(&tenant, &name("f"));
        drop(f);
        again.own().add(CPU, &run(300));
        assert_eq!(shown(&meters), ["acme - m 1", "acme f - 600", "acme f m 40", "bold - m 4000"]);

        let under_way = m.of_function(&name("f"));
        drop(again);
        assert_eq!(shown(&meters), ["acme - m 1", "bold - m 4000"]);
        under_way.add(CPU, &run(20));
        drop(m);
        assert_eq!(shown(&meters), ["bold - m 4000"]);
        let Used { runs, run_time_ns, .. } = meters.total(&tenant)[0].1;
        assert_eq!((runs, run_time_ns), (6, 661), "what is gone was used all the same");
        assert!(meters.0.all.lock().functions.is_empty() && meters.0.all.lock().models.len() == 1);
    }
}
