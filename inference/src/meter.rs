//! Metering of device usage per consumer: time of runs and loads, and memory over time.

use parking_lot::Mutex;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use weir_device::Device;

/// Counts the device usage of one consumer, starting when the meter is created. Cheap to clone: all
/// clones share their counts.
///
/// The caches do not know the consumer. The creator of a [`ModelSource`](crate::ModelSource) or a
/// [`RunRequest`](crate::RunRequest) supplies the meter.
#[derive(Debug, Clone, Default)]
pub struct Meter(Arc<MeterInner>);

#[derive(Debug, Default)]
struct MeterInner {
    /// One entry per device used, so a short list.
    used: Mutex<Vec<(Device, Used)>>,
    within: Option<Meter>,
    observer: Option<Arc<dyn RunObserver>>,
}

/// Observes every run that a [`Meter`] is charged for. Called on the device's threads, so it must
/// not block.
pub trait RunObserver: fmt::Debug + Send + Sync {
    /// The device starts a run.
    fn started(&self);

    /// A run has ended, successfully or not.
    fn ended(&self, run: &ObservedRun);

    /// A request has ended: none of its runs waits or is on the device any more. Called once for
    /// each accepted request, after [`ended`](Self::ended) and before the request's answer. A
    /// request that was cancelled during its run has its answer earlier.
    fn over(&self);
}

/// A run, with the part of it that one meter is charged for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedRun {
    /// The meter's part of the device time, by items.
    pub part_ns: u64,
    /// Device time of the whole run.
    pub run_time_ns: u64,
    /// Items in the whole run.
    pub items: u32,
}

/// Usage of one device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// Requests that the device worked on, including those that failed or were stopped.
    pub runs: u64,
    /// Device time of the requests, in nanoseconds. The time of a batched run is divided by items.
    pub run_time_ns: u64,
    /// Loads of models, including failed loads.
    pub loads: u64,
    /// Time of the loads, in nanoseconds.
    pub load_time_ns: u64,
    /// Bytes of device memory multiplied by the nanoseconds for which they were held.
    pub resident_byte_ns: u128,
}

impl Meter {
    /// A meter for a part of the usage that `whole` counts.
    #[must_use]
    pub fn within(whole: &Self) -> Self {
        Self(Arc::new(MeterInner { within: Some(whole.clone()), ..MeterInner::default() }))
    }

    /// Like [`within`](Self::within), with an observer of the runs.
    #[must_use]
    pub fn observed(whole: &Self, observer: Arc<dyn RunObserver>) -> Self {
        let within = Some(whole.clone());
        Self(Arc::new(MeterInner { within, observer: Some(observer), ..MeterInner::default() }))
    }

    /// The observers of this meter and of the meters that contain it.
    fn observers(&self) -> impl Iterator<Item = &Arc<dyn RunObserver>> {
        let meters = std::iter::successors(Some(self), |meter| meter.0.within.as_ref());
        meters.filter_map(|meter| meter.0.observer.as_ref())
    }

    /// Adds usage to this meter and to the meters that contain it.
    pub fn add(&self, device: Device, more: &Used) {
        let mut used = self.0.used.lock();
        match used.iter_mut().find(|(known, _)| *known == device) {
            Some((_, used)) => used.add(more),
            None => used.push((device, *more)),
        }
        drop(used);
        if let Some(whole) = &self.0.within {
            whole.add(device, more);
        }
    }

    /// Usage so far, by device.
    #[must_use]
    pub fn used(&self) -> Vec<(Device, Used)> {
        self.0.used.lock().clone()
    }
}

impl Used {
    /// Usage of one load.
    pub(crate) fn load(time: Duration) -> Self {
        Self { loads: 1, load_time_ns: nanoseconds(time), ..Self::default() }
    }

    fn add(&mut self, more: &Self) {
        let Self { runs, run_time_ns, loads, load_time_ns, resident_byte_ns } = more;
        self.runs = self.runs.saturating_add(*runs);
        self.run_time_ns = self.run_time_ns.saturating_add(*run_time_ns);
        self.loads = self.loads.saturating_add(*loads);
        self.load_time_ns = self.load_time_ns.saturating_add(*load_time_ns);
        self.resident_byte_ns = self.resident_byte_ns.saturating_add(*resident_byte_ns);
    }
}

/// The meter of an accepted request. When dropped, reports the end of the request to the observers.
pub(crate) struct RequestMeter(Meter);

impl RequestMeter {
    pub(crate) fn new(meter: Meter) -> Self {
        Self(meter)
    }
}

impl Deref for RequestMeter {
    type Target = Meter;

    fn deref(&self) -> &Meter {
        &self.0
    }
}

impl Drop for RequestMeter {
    fn drop(&mut self) {
        self.0.observers().for_each(|observer| observer.over());
    }
}

/// Tells the observers of the participating meters that a run starts.
pub(crate) fn start(bearers: &[(&Meter, u32)]) {
    bearers.iter().flat_map(|(meter, _)| meter.observers()).for_each(|observer| observer.started());
}

/// Counts one run, and divides its time among the participating meters by their items.
pub(crate) fn charge(device: Device, time: Duration, bearers: &[(&Meter, u32)]) {
    // A participant without items still took part.
    let weights: Vec<u64> = bearers.iter().map(|(_, items)| u64::from((*items).max(1))).collect();
    let items = bearers.iter().fold(0, |items: u32, (_, own)| items.saturating_add(*own));
    for ((meter, _), part_ns) in bearers.iter().zip(parted(nanoseconds(time), &weights)) {
        meter.add(device, &Used { runs: 1, run_time_ns: part_ns, ..Used::default() });
        let run = ObservedRun { part_ns, run_time_ns: nanoseconds(time), items };
        meter.observers().for_each(|observer| observer.ended(&run));
    }
}

/// Divides `whole` in proportion to `weights`. Each part is at most 1 off, and the parts add up to
/// `whole`.
pub(crate) fn parted(whole: u64, weights: &[u64]) -> Vec<u64> {
    let total: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let mut before = 0_u128;
    let mut given = 0;
    let part = |weight: &u64| {
        before += u128::from(*weight);
        let upto = u64::try_from(u128::from(whole) * before / total.max(1)).unwrap_or(whole);
        upto - std::mem::replace(&mut given, upto)
    };
    weights.iter().map(part).collect()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GPU: Device = Device::Cuda { ordinal: 1 };

    #[test]
    fn batch_time_divides_by_items_and_outer_meter_counts_all() {
        let tenant = Meter::default();
        let [first, second] = [(); 2].map(|()| Meter::within(&tenant));
        charge(GPU, Duration::from_nanos(1_000), &[(&first, 3), (&second, 1), (&first, 0)]);
        charge(Device::Cpu, Duration::from_nanos(7), &[(&second, 0)]);
        first.add(GPU, &Used::load(Duration::from_nanos(5)));
        let run = |runs, run_time_ns| Used { runs, run_time_ns, ..Used::default() };
        assert_eq!(first.used(), [(GPU, Used { loads: 1, load_time_ns: 5, ..run(2, 800) })]);
        assert_eq!(second.used(), [(GPU, run(1, 200)), (Device::Cpu, run(1, 7))]);
        let whole = [(GPU, Used { loads: 1, load_time_ns: 5, ..run(3, 1_000) }), (Device::Cpu, run(1, 7))];
        assert_eq!(tenant.used(), whole);
    }

    #[derive(Debug, Default)]
    struct Observed(Mutex<(u32, Vec<ObservedRun>, u32)>);

    impl RunObserver for Observed {
        fn started(&self) {
            self.0.lock().0 += 1;
        }

        fn ended(&self, run: &ObservedRun) {
            self.0.lock().1.push(*run);
        }

        fn over(&self) {
            self.0.lock().2 += 1;
        }
    }

    #[test]
    fn observer_learns_of_the_runs_of_its_meter_and_of_parts_of_it() {
        let observer = Arc::new(Observed::default());
        let tenant = Meter::default();
        let call = Meter::observed(&tenant, observer.clone());
        let step = RequestMeter::new(Meter::within(&call));
        let bearers = [(&*step, 3), (&tenant, 1)];
        start(&bearers);
        charge(GPU, Duration::from_nanos(1_000), &bearers);
        let (started, ended, over) = observer.0.lock().clone();
        assert_eq!((started, over), (1, 0));
        drop(step);
        assert_eq!(observer.0.lock().2, 1);
        assert_eq!(ended, [ObservedRun { part_ns: 750, run_time_ns: 1_000, items: 4 }]);
        assert_eq!(tenant.used()[0].1.run_time_ns, 1_000);
    }

    proptest! {
        #[test]
        fn parts_are_proportional_and_sum_to_the_whole(whole: u64, weights in prop::collection::vec(0..1_000_u64, 1..20)) {
            let total: u64 = weights.iter().sum();
            prop_assume!(total > 0);
            let parts = parted(whole, &weights);
            prop_assert_eq!(parts.iter().map(|part| u128::from(*part)).sum::<u128>(), u128::from(whole));
            for (part, weight) in parts.iter().zip(&weights) {
                let exact = u128::from(whole) * u128::from(*weight) / u128::from(total);
                prop_assert!(u128::from(*part).abs_diff(exact) <= 1, "{part} is not {exact}");
            }
        }
    }
}
