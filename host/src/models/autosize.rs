//! Keeping models as large as the rate of requests takes: [`weir_scheduler::Autosizer`], told the rates of this node.
//!
//! Models whose owners ask for it (`autosize` in the manifest) are looked at on each of their intervals, on the first device that has them in
//! memory. What is chosen is carried out beside the runs under way: new sessions first, then the switch, and the old ones are kept for a while.
//! A model that leaves memory and comes back is as every other, until it is looked at again.

use super::{ModelEntry, Models};
use crate::devices::NodeDevice;
use crate::telemetry::{Demand, SizeMetrics};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;
use weir_inference::{ModelKey, RunSetting};
use weir_scheduler::{Autosizer, Chosen, Configuration, Room, SizingError};
use weir_types::{Autosize, BatchingMode};

/// How often models that nobody has looked at yet are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is known of one model from interval to interval.
struct Sizer {
    looked_at: Instant,
    demand: Demand,
    /// Of the last interval in which any ended.
    items_per_request: f64,
    autosizer: Autosizer,
    /// What kept it from being sized, as it was logged.
    trouble: Option<String>,
    metrics: SizeMetrics,
}

/// Size `models` for as long as there are any.
pub(crate) async fn autosize(models: Weak<Models>) {
    let mut sizers = HashMap::new();
    let mut pause = LOOK_EVERY;
    loop {
        tokio::time::sleep(pause).await;
        let Some(models) = models.upgrade() else { return };
        pause = models.autosize(&mut sizers).await;
    }
}

impl Models {
    /// Size those whose interval is over. Says when the next one's is.
    async fn autosize(&self, sizers: &mut HashMap<ModelKey, Sizer>) -> Duration {
        let sized = self.autosized();
        sizers.retain(|key, _| sized.iter().any(|(entry, _)| entry.source.key == *key));
        let mut pause = LOOK_EVERY;
        for (entry, settings) in sized {
            let interval = Duration::from_millis(settings.interval_ms);
            let sizer = sizers.entry(entry.source.key.clone()).or_insert_with(|| self.sizer(&entry));
            if sizer.looked_at.elapsed() >= interval {
                let rate_per_s = sizer.rate_per_s(entry.served.demand());
                self.size(&entry, &settings, sizer, rate_per_s).await;
            }
            pause = pause.min(interval.saturating_sub(sizer.looked_at.elapsed()));
        }
        pause.max(Duration::from_millis(1))
    }

    /// The models that are to be sized.
    fn autosized(&self) -> Vec<(Arc<ModelEntry>, Autosize)> {
        let known = self.read_known();
        let all = known.tenants.values().flat_map(|models| models.values());
        let all = all.flat_map(|versions| versions.values());
        all.filter_map(|entry| Some((entry.clone(), entry.record.manifest.autosize?))).collect()
    }

    fn sizer(&self, entry: &ModelEntry) -> Sizer {
        Sizer {
            looked_at: Instant::now(),
            demand: entry.served.demand(),
            items_per_request: 1.0,
            autosizer: Autosizer::default(),
            trouble: None,
            metrics: self.metrics.sizes(entry.source.id()),
        }
    }

    async fn size(&self, entry: &ModelEntry, settings: &Autosize, sizer: &mut Sizer, rate_per_s: f64) {
        sizer.metrics.rate(rate_per_s);
        let key = &entry.source.key;
        let resident = |device: &NodeDevice| Some((device.cache.run_setting(key)?, device.ordinal));
        let Some(((now, sessions), ordinal)) = self.devices.iter().find_map(resident) else {
            return sizer.metrics.gone();
        };
        let Some(device) = self.devices.get(ordinal) else { return };
        device.cache.retire_sessions(key, Duration::from_millis(settings.keep_alive_ms));
        let measured: Vec<_> =
            device.cache.profiles().get(key).measured.iter().map(Configuration::from).collect();
        let slo_ns = settings.slo_ms.saturating_mul(1_000_000);
        let chosen = sizer.autosizer.step(rate_per_s, slo_ns, &measured, &room(entry, device));
        let chosen = match chosen {
            Ok(chosen) => chosen,
            Err(error) => {
                sizer.metrics.set(&now, sessions, false);
                return sizer.note(entry, Some(trouble(entry, &error)));
            }
        };
        let wanted = setting(&chosen);
        let mut trouble = None;
        if wanted != now
            && let Some(applied) = device.cache.set_run_setting(key, wanted)
        {
            match applied.await {
                Ok(()) => {
                    let model = entry.source.id();
                    let RunSetting { threads, sessions } = wanted;
                    tracing::info!(%model, threads, sessions, rate_per_s, "model sized");
                    sizer.metrics.changed();
                }
                Err(error) => trouble = Some(error.to_string()),
            }
        }
        if let Some((now, sessions)) = device.cache.run_setting(key) {
            sizer.metrics.set(&now, sessions, chosen.is_short);
        }
        sizer.note(entry, trouble);
    }
}

impl Sizer {
    /// The items that were asked for in each second since it was last looked at.
    fn rate_per_s(&mut self, demand: Demand) -> f64 {
        let (elapsed, before) = (self.looked_at.elapsed(), self.demand);
        (self.looked_at, self.demand) = (Instant::now(), demand);
        let ended = demand.ended.saturating_sub(before.ended);
        if ended > 0 {
            self.items_per_request = demand.items.saturating_sub(before.items) as f64 / ended as f64;
        }
        let asked = demand.asked.saturating_sub(before.asked) as f64;
        asked * self.items_per_request.max(1.0) / elapsed.as_secs_f64().max(1e-3)
    }

    /// Log what keeps a model from being sized, once.
    fn note(&mut self, entry: &ModelEntry, trouble: Option<String>) {
        if let Some(trouble) = trouble.as_ref().filter(|trouble| self.trouble.as_ref() != Some(*trouble)) {
            tracing::warn!(model = %entry.source.id(), why = trouble, "model not sized");
        }
        self.trouble = trouble;
    }
}

/// What there is for a model on a device.
fn room(entry: &ModelEntry, device: &NodeDevice) -> Room {
    let slots = entry.record.manifest.slots.map_or(device.slots(), |slots| slots.min(device.slots()));
    let batching = &entry.record.manifest.batching;
    // Elsewhere it is not certain that requests run together.
    let batch_max = if batching.mode == BatchingMode::On { batching.size_max() } else { 1 };
    Room { slots, threads: device.cache.threads_max().max(device.slots()), batch_max }
}

fn setting(chosen: &Chosen) -> RunSetting {
    let sessions = usize::try_from(chosen.sessions()).unwrap_or(usize::MAX);
    RunSetting { threads: chosen.configuration.threads, sessions }
}

fn trouble(entry: &ModelEntry, error: &SizingError) -> String {
    let name = &entry.source.id().name;
    match error {
        SizingError::Nothing => {
            format!("nothing that there is room for was measured; run `weir models profile {name}`")
        }
        other => format!("{other} (autosize.slo_ms); it goes on as it is"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Metrics;
    use weir_types::{ModelId, Name, TenantId, Version};

    fn sizer() -> Sizer {
        let id = ModelId { tenant: TenantId::default(), name: Name::new("m").unwrap(), version: Version(1) };
        Sizer {
            looked_at: Instant::now(),
            demand: Demand::default(),
            items_per_request: 1.0,
            autosizer: Autosizer::default(),
            trouble: None,
            metrics: Metrics::new().sizes(&id),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_what_was_asked_for_since_whether_or_not_it_has_ended() {
        let mut sizer = sizer();
        tokio::time::advance(Duration::from_secs(2)).await;
        let demand = Demand { asked: 10, ended: 4, items: 12 };
        assert!(
            (sizer.rate_per_s(demand) - 15.0).abs() < 1e-9,
            "three items each, ten of them in two seconds"
        );
        tokio::time::advance(Duration::from_secs(1)).await;
        let demand = Demand { asked: 20, ..demand };
        assert!((sizer.rate_per_s(demand) - 30.0).abs() < 1e-9, "none has ended: as many items as before");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(sizer.rate_per_s(demand).abs() < 1e-9);
        // The model's numbers began anew.
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(sizer.rate_per_s(Demand::default()).abs() < 1e-9);
    }
}
