//! Autosizing: keeps models as large as the request rate requires. Drives
//! [`weir_scheduler::Autosizer`] with the rates of this node.
//!
//! A model whose owner requests it (`autosize` in the manifest) is resized at each of its
//! intervals, on every device that has it in memory, for the share of the rate that this device
//! receives. The change does not interrupt inferences: new sessions are created first, then the
//! model switches to them, and the old sessions are kept for a while. A model that is evicted and
//! reloaded starts with default sizes until its next interval.

use super::{ModelEntry, Models};
use crate::devices::NodeDevice;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;
use weir_inference::{ModelKey, RunSetting};
use weir_scheduler::{Autosizer, AvailableCapacity, CapacityError, Chosen, InstanceConfiguration};
use weir_telemetry::{DemandTotals, SizeMetrics};
use weir_types::Ordinal;
use weir_types::{Autosize, BatchingMode};

/// The interval at which models without a sizer are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The sizing state of one model, kept between intervals.
struct Sizer {
    looked_at: Instant,
    demand: DemandTotals,
    /// From the last interval in which requests ended.
    items_per_request: f64,
    /// The devices that have the model in memory.
    on: BTreeMap<Ordinal, OnDevice>,
}

/// The sizing state of one model on one device.
struct OnDevice {
    /// The number of requests to this device since the load, as of the last sizing.
    asked: u64,
    autosizer: Autosizer,
    /// The last logged reason why the model could not be sized.
    trouble: Option<String>,
    metrics: SizeMetrics,
}

/// Sizes `models` until they are dropped.
pub async fn autosize(models: Weak<Models>) {
    let mut sizers = HashMap::new();
    let mut pause = LOOK_EVERY;
    loop {
        tokio::time::sleep(pause).await;
        let Some(models) = models.upgrade() else { return };
        pause = models.autosize(&mut sizers).await;
    }
}

impl Models {
    /// Sizes the models whose interval is over. Returns the time until the next interval ends.
    async fn autosize(&self, sizers: &mut HashMap<ModelKey, Sizer>) -> Duration {
        let sized = self.autosized();
        sizers.retain(|key, _| sized.iter().any(|(entry, _)| entry.source.key == *key));
        let mut pause = LOOK_EVERY;
        for (entry, settings) in sized {
            let interval = Duration::from_millis(settings.interval_ms);
            let sizer = sizers.entry(entry.source.key.clone()).or_insert_with(|| Sizer::new(&entry));
            if sizer.looked_at.elapsed() >= interval {
                self.size(&entry, &settings, sizer).await;
            }
            pause = pause.min(interval.saturating_sub(sizer.looked_at.elapsed()));
        }
        pause.max(Duration::from_millis(1))
    }

    /// The models with autosizing.
    fn autosized(&self) -> Vec<(Arc<ModelEntry>, Autosize)> {
        let known = self.read_known();
        let all = known.entries();
        all.filter_map(|entry| Some((entry.clone(), entry.record.manifest.autosize?))).collect()
    }

    /// Sizes a model on each device that has it, by the share of the rate that the device receives.
    async fn size(&self, entry: &ModelEntry, settings: &Autosize, sizer: &mut Sizer) {
        let rate_per_s = sizer.rate_per_s(entry.served.demand());
        let key = &entry.source.key;
        let asked = |device: &Arc<NodeDevice>| Some((device.ordinal, device.cache.asked(key)?));
        let asked: BTreeMap<Ordinal, u64> = self.devices.iter().filter_map(asked).collect();
        sizer.on.retain(|ordinal, _| asked.contains_key(ordinal));
        let mut asked_since = Vec::with_capacity(asked.len());
        for (ordinal, asked) in asked {
            let Some(device) = self.devices.get(ordinal) else { continue };
            let on = sizer.on.entry(ordinal).or_insert_with(|| OnDevice {
                asked: 0,
                autosizer: Autosizer::default(),
                trouble: None,
                metrics: self.metrics.sizes(entry.source.id(), &device.name),
            });
            asked_since.push(on.asked_since(asked));
        }
        for ((ordinal, on), share) in sizer.on.iter_mut().zip(shares(&asked_since)) {
            let Some(device) = self.devices.get(*ordinal) else { continue };
            let trouble = on.size(entry, settings, device, rate_per_s * share).await.err();
            on.note(entry, device, trouble);
        }
    }
}

impl Sizer {
    fn new(entry: &ModelEntry) -> Self {
        let looked_at = Instant::now();
        let demand = entry.served.demand();
        Self { looked_at, demand, items_per_request: 1.0, on: BTreeMap::new() }
    }

    /// Requested items per second since the last sizing.
    fn rate_per_s(&mut self, demand: DemandTotals) -> f64 {
        let elapsed = self.looked_at.elapsed();
        let before = self.demand;
        self.looked_at = Instant::now();
        self.demand = demand;
        let ended = demand.ended.saturating_sub(before.ended);
        if ended > 0 {
            self.items_per_request = demand.items.saturating_sub(before.items) as f64 / ended as f64;
        }
        let asked = demand.asked.saturating_sub(before.asked) as f64;
        asked * self.items_per_request.max(1.0) / elapsed.as_secs_f64().max(1e-3)
    }
}

impl OnDevice {
    /// The number of requests to this device since the last sizing or load.
    fn asked_since(&mut self, asked: u64) -> u64 {
        let before = std::mem::replace(&mut self.asked, asked);
        asked.checked_sub(before).unwrap_or(asked)
    }

    /// Chooses a size for a rate and applies it. The error says why it cannot.
    async fn size(
        &mut self,
        entry: &ModelEntry,
        settings: &Autosize,
        device: &NodeDevice,
        rate_per_s: f64,
    ) -> Result<(), String> {
        self.metrics.rate(rate_per_s);
        let key = &entry.source.key;
        let cache = &device.cache;
        // The model may have been evicted meanwhile.
        let Some((now, sessions)) = cache.run_setting(key) else { return Ok(()) };
        cache.retire_sessions(key, Duration::from_millis(settings.keep_alive_ms));
        let measured: Vec<_> =
            cache.profiles().get(key).measured.iter().map(InstanceConfiguration::from).collect();
        let slo_ns = settings.slo_ms.saturating_mul(1_000_000);
        let chosen = self.autosizer.step(rate_per_s, slo_ns, &measured, &room(entry, device));
        let chosen = chosen.map_err(|error| {
            self.metrics.set(&now, sessions, false);
            trouble(entry, &error)
        })?;
        let wanted = setting(&chosen);
        let mut outcome = Ok(());
        if wanted != now
            && let Some(applied) = cache.set_run_setting(key, wanted)
        {
            outcome = applied.await.map_err(|error| error.to_string());
            if outcome.is_ok() {
                let RunSetting { threads, sessions } = wanted;
                tracing::info!(model = %entry.source.id(), device = %device.name, threads, sessions, rate_per_s, "model resized");
                self.metrics.changed();
            }
        }
        if let Some((now, sessions)) = cache.run_setting(key) {
            self.metrics.set(&now, sessions, chosen.is_short);
        }
        outcome
    }

    /// Logs the reason why a model is not sized, unless it was logged before.
    fn note(&mut self, entry: &ModelEntry, device: &NodeDevice, trouble: Option<String>) {
        if let Some(why) = trouble.as_ref().filter(|trouble| self.trouble.as_ref() != Some(*trouble)) {
            tracing::warn!(model = %entry.source.id(), device = %device.name, why, "model not resized");
        }
        self.trouble = trouble;
    }
}

/// The share of the rate per device: proportional to requests, or equal if there were none.
#[expect(clippy::cast_precision_loss, reason = "a share needs no full precision")]
fn shares(asked: &[u64]) -> Vec<f64> {
    match asked.iter().sum::<u64>() {
        0 => vec![1.0 / asked.len() as f64; asked.len()],
        all => asked.iter().map(|asked| *asked as f64 / all as f64).collect(),
    }
}

/// The resources for a model on a device.
fn room(entry: &ModelEntry, device: &NodeDevice) -> AvailableCapacity {
    let slots = entry.record.manifest.slots.map_or(device.slots(), |slots| slots.min(device.slots()));
    let batching = &entry.record.manifest.batching;
    // Other modes do not guarantee that requests run in one batch.
    let batch_max = if batching.mode == BatchingMode::On { batching.size_max() } else { 1 };
    AvailableCapacity { slots, threads: device.cache.threads_max().max(device.slots()), batch_max }
}

fn setting(chosen: &Chosen) -> RunSetting {
    let sessions = usize::try_from(chosen.sessions()).unwrap_or(usize::MAX);
    RunSetting { threads: chosen.configuration.threads, sessions }
}

fn trouble(entry: &ModelEntry, error: &CapacityError) -> String {
    let name = &entry.source.id().name;
    match error {
        CapacityError::Nothing => {
            format!("no measured configuration fits on the device; run `weir models profile {name}`")
        }
        other => format!("{other} (autosize.slo_ms); the model keeps its size"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizer() -> Sizer {
        let looked_at = Instant::now();
        let demand = DemandTotals::default();
        Sizer { looked_at, demand, items_per_request: 1.0, on: BTreeMap::new() }
    }

    #[test]
    fn rate_is_divided_in_proportion_to_requests() {
        assert_eq!(shares(&[3, 0, 1]), [0.75, 0.0, 0.25]);
        assert_eq!(shares(&[0, 0]), [0.5, 0.5]);
        assert_eq!(shares(&[]), [0.0; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn rate_counts_requests_that_have_not_ended() {
        let mut sizer = sizer();
        tokio::time::advance(Duration::from_secs(2)).await;
        let demand = DemandTotals { asked: 10, ended: 4, items: 12 };
        assert!(
            (sizer.rate_per_s(demand) - 15.0).abs() < 1e-9,
            "three items each, ten of them in two seconds"
        );
        tokio::time::advance(Duration::from_secs(1)).await;
        let demand = DemandTotals { asked: 20, ..demand };
        assert!((sizer.rate_per_s(demand) - 30.0).abs() < 1e-9, "none has ended: as many items as before");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(sizer.rate_per_s(demand).abs() < 1e-9);
        // The model's counters were reset.
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(sizer.rate_per_s(DemandTotals::default()).abs() < 1e-9);
    }
}
