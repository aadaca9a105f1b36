//! Deaths of workers, by the model that ran, and the quarantine of models that kill their workers.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tracing::error;
use weir_inference::ModelKey;
use weir_types::ModelId;

/// Consecutive deaths after which a model is quarantined.
const DEATHS_MAX: u32 = 2;
/// Maximum number of models of one tenant for which worker deaths are recorded. A new record beyond
/// this number removes the tenant's oldest record of a model that is not quarantined; if all are
/// quarantined, the oldest record.
const RECORDS_PER_TENANT_MAX: usize = 256;

/// Consecutive deaths of workers by model.
#[derive(Default)]
pub(super) struct Deaths(Mutex<Records>);

#[derive(Default)]
struct Records {
    by_model: HashMap<ModelKey, DeathRecord>,
    /// Number of the next record.
    next: u64,
}

struct DeathRecord {
    /// Records are numbered in the order of their first death.
    number: u64,
    in_a_row: u32,
    /// Why the model is quarantined, once it is.
    quarantine: Option<Arc<str>>,
}

impl Deaths {
    /// Records that a worker died while it ran `models`.
    pub(super) fn died(&self, models: &[ModelKey], how: &str) {
        let mut records = self.0.lock();
        for key in models {
            let record = records.record(key);
            record.in_a_row += 1;
            if record.in_a_row >= DEATHS_MAX && record.quarantine.is_none() {
                let ModelId { name, version, .. } = &key.id;
                let why = format!(
                    "it ended its worker process {} times in a row, the last time: {how}; push a corrected version, or release it with `weir models release {name} --version {version}`",
                    record.in_a_row
                );
                error!(model = %key.id, how, "model quarantined: it ends its worker process");
                record.quarantine = Some(why.into());
            }
        }
    }

    /// Records a successful run.
    pub(super) fn ran(&self, key: &ModelKey) {
        let records = &mut self.0.lock().by_model;
        // The common case: no model has ever ended a worker.
        if !records.is_empty() && records.get(key).is_some_and(|record| record.quarantine.is_none()) {
            records.remove(key);
        }
    }

    /// Whether the model ran when a worker died, and has not run successfully since. Such a model
    /// gets a separate worker, so that the model is certainly the cause of another death.
    pub(super) fn is_suspect(&self, key: &ModelKey) -> bool {
        self.0.lock().by_model.contains_key(key)
    }

    /// Why a model is quarantined, if it is.
    pub(super) fn quarantine(&self, key: &ModelKey) -> Option<Arc<str>> {
        self.0.lock().by_model.get(key)?.quarantine.clone()
    }

    /// Ends the quarantine of a model. Returns whether the model was quarantined.
    pub(super) fn release(&self, key: &ModelKey) -> bool {
        self.0.lock().by_model.remove(key).is_some_and(|record| record.quarantine.is_some())
    }
}

impl Records {
    /// The record of a model. Creates the record if there is none.
    fn record(&mut self, key: &ModelKey) -> &mut DeathRecord {
        if !self.by_model.contains_key(key) {
            let tenant = &key.id.tenant;
            let of_tenant = || self.by_model.iter().filter(|(key, _)| key.id.tenant == *tenant);
            if of_tenant().count() >= RECORDS_PER_TENANT_MAX {
                let dropped =
                    of_tenant().min_by_key(|(_, record)| (record.quarantine.is_some(), record.number));
                if let Some(dropped) = dropped.map(|(key, _)| key.clone()) {
                    self.by_model.remove(&dropped);
                }
            }
        }
        let number = self.next;
        self.by_model.entry(key.clone()).or_insert_with(|| {
            self.next += 1;
            DeathRecord { number, in_a_row: 0, quarantine: None }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::{Name, TenantId, Version};

    fn key(name: &str) -> ModelKey {
        let id = ModelId { tenant: TenantId::default(), name: Name::new(name).unwrap(), version: Version(1) };
        ModelKey { id, generation: 1 }
    }

    #[test]
    fn two_deaths_in_a_row_quarantine_a_model_until_its_release() {
        let deaths = Deaths::default();
        let bad = key("bad");
        deaths.died(std::slice::from_ref(&bad), "SIGFPE");
        assert!(deaths.is_suspect(&bad) && deaths.quarantine(&bad).is_none());
        deaths.ran(&bad);
        assert!(!deaths.is_suspect(&bad), "a successful run clears the suspicion");
        deaths.died(std::slice::from_ref(&bad), "SIGFPE");
        deaths.died(std::slice::from_ref(&bad), "SIGFPE");
        assert!(deaths.quarantine(&bad).unwrap().contains("weir models release bad --version 1"));
        deaths.ran(&bad);
        assert!(deaths.quarantine(&bad).is_some(), "a run that began earlier does not end it");
        assert!(deaths.release(&bad) && !deaths.release(&bad) && deaths.quarantine(&bad).is_none());
    }

    #[test]
    fn models_that_ran_beside_each_other_are_all_suspects() {
        let deaths = Deaths::default();
        let keys = [key("a"), key("b")];
        deaths.died(&keys, "SIGSEGV");
        assert!(keys.iter().all(|key| deaths.is_suspect(key) && deaths.quarantine(key).is_none()));
        deaths.ran(&keys[0]);
        assert!(!deaths.is_suspect(&keys[0]) && deaths.is_suspect(&keys[1]));
    }

    fn killed_twice(deaths: &Deaths, key: &ModelKey) {
        deaths.died(std::slice::from_ref(key), "SIGFPE");
        deaths.died(std::slice::from_ref(key), "SIGFPE");
    }

    #[test]
    fn records_are_bounded_and_quarantines_stay_longest() {
        let deaths = Deaths::default();
        let bad = key("bad");
        killed_twice(&deaths, &bad);
        for number in 0..2 * RECORDS_PER_TENANT_MAX {
            deaths.died(&[key(&format!("m{number}"))], "SIGFPE");
        }
        assert_eq!(deaths.0.lock().by_model.len(), RECORDS_PER_TENANT_MAX);
        assert!(deaths.quarantine(&bad).is_some());
        let last = format!("m{}", 2 * RECORDS_PER_TENANT_MAX - 1);
        assert!(deaths.is_suspect(&key(&last)) && !deaths.is_suspect(&key("m0")), "the oldest are dropped");
    }

    #[test]
    fn quarantines_of_a_tenant_do_not_end_those_of_others() {
        let deaths = Deaths::default();
        let bad = key("bad");
        killed_twice(&deaths, &bad);
        let theirs = |number: usize| {
            let ModelKey { mut id, generation } = key(&format!("m{number}"));
            id.tenant = TenantId::new("hostile").unwrap();
            ModelKey { id, generation }
        };
        for number in 0..5_000 {
            killed_twice(&deaths, &theirs(number));
        }
        assert!(deaths.quarantine(&bad).is_some());
        assert!(deaths.quarantine(&theirs(4_999)).is_some() && deaths.quarantine(&theirs(0)).is_none());
        assert_eq!(deaths.0.lock().by_model.len(), 1 + RECORDS_PER_TENANT_MAX);
    }
}
