//! Keeping models as large as the rate of requests takes: [`weir_scheduler::Autosizer`], told the rates of this node.
//!
//! Models whose owners ask for it (`autosize` in the manifest) are looked at on each of their intervals, on every device that has them in
//! memory, by the part of the rate that went there. What is chosen is carried out beside the runs under way: new sessions first, then the switch, and the old ones are kept for a while.
//! A model that leaves memory and comes back is as every other, until it is looked at again.

use super::{ModelEntry, Models};
use crate::devices::{NodeDevice, Ordinal};
use crate::telemetry::{Demand, SizeMetrics};
use std::collections::{BTreeMap, HashMap};
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
    /// The devices that have it in memory.
    on: BTreeMap<Ordinal, OnDevice>,
}

/// The same on one device.
struct OnDevice {
    /// Requests that went there since it was loaded, when it was last looked at.
    asked: u64,
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
            let sizer = sizers.entry(entry.source.key.clone()).or_insert_with(|| Sizer::new(&entry));
            if sizer.looked_at.elapsed() >= interval {
                self.size(&entry, &settings, sizer).await;
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

    /// Size a model on each device that has it, by the part of the rate that goes there.
    async fn size(&self, entry: &ModelEntry, settings: &Autosize, sizer: &mut Sizer) {
        let rate_per_s = sizer.rate_per_s(entry.served.demand());
        let key = &entry.source.key;
        let asked = |device: &NodeDevice| Some((device.ordinal, device.cache.asked(key)?));
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
        let (looked_at, demand) = (Instant::now(), entry.served.demand());
        Self { looked_at, demand, items_per_request: 1.0, on: BTreeMap::new() }
    }

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
}

impl OnDevice {
    /// The requests that went there since it was last looked at, or loaded.
    fn asked_since(&mut self, asked: u64) -> u64 {
        let before = std::mem::replace(&mut self.asked, asked);
        asked.checked_sub(before).unwrap_or(asked)
    }

    /// Choose anew for a rate, and have it so. The error says what keeps it from that.
    async fn size(
        &mut self,
        entry: &ModelEntry,
        settings: &Autosize,
        device: &NodeDevice,
        rate_per_s: f64,
    ) -> Result<(), String> {
        self.metrics.rate(rate_per_s);
        let (key, cache) = (&entry.source.key, &device.cache);
        // It may have left meanwhile.
        let Some((now, sessions)) = cache.run_setting(key) else { return Ok(()) };
        cache.retire_sessions(key, Duration::from_millis(settings.keep_alive_ms));
        let measured: Vec<_> = cache.profiles().get(key).measured.iter().map(Configuration::from).collect();
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
                tracing::info!(model = %entry.source.id(), device = %device.name, threads, sessions, rate_per_s, "model sized");
                self.metrics.changed();
            }
        }
        if let Some((now, sessions)) = cache.run_setting(key) {
            self.metrics.set(&now, sessions, chosen.is_short);
        }
        outcome
    }

    /// Log what keeps a model from being sized, once.
    fn note(&mut self, entry: &ModelEntry, device: &NodeDevice, trouble: Option<String>) {
        if let Some(why) = trouble.as_ref().filter(|trouble| self.trouble.as_ref() != Some(*trouble)) {
            tracing::warn!(model = %entry.source.id(), device = %device.name, why, "model not sized");
        }
        self.trouble = trouble;
    }
}

/// How a rate is parted among devices: as requests went to them, or evenly where none did.
#[expect(clippy::cast_precision_loss, reason = "a share")]
fn shares(asked: &[u64]) -> Vec<f64> {
    match asked.iter().sum::<u64>() {
        0 => vec![1.0 / asked.len() as f64; asked.len()],
        all => asked.iter().map(|asked| *asked as f64 / all as f64).collect(),
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

    fn sizer() -> Sizer {
        let (looked_at, demand) = (Instant::now(), Demand::default());
        Sizer { looked_at, demand, items_per_request: 1.0, on: BTreeMap::new() }
    }

    #[test]
    fn a_rate_is_parted_as_requests_went() {
        assert_eq!(shares(&[3, 0, 1]), [0.75, 0.0, 0.25]);
        assert_eq!(shares(&[0, 0]), [0.5, 0.5]);
        assert_eq!(shares(&[]), [0.0; 0]);
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
