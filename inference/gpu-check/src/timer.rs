//! Time measurement on a device: at full clocks, without host overhead, and with the device's
//! operating point.

use crate::config::CheckConfig;
use std::time::{Duration, Instant};
use weir_device::OperatingPoint;
use weir_device::cuda::{CudaError, Devices, Event, Monitor, Stream};

/// Maximum number of intervals of a measurement. The result is the median interval.
const INTERVALS_MAX: u32 = 5;
/// Maximum number of launches that a warm-up enqueues before it synchronises.
const WARM_UP_LAUNCHES_MAX: u32 = 64;

/// Timer of one device.
pub(crate) struct Timer {
    monitor: Monitor,
    ordinal: u32,
    warm_up: Duration,
    repeats: u32,
}

/// Measured time, and the operating point of the device right after the measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct MeasuredTime {
    pub(crate) time_ns: u64,
    pub(crate) clocks: Option<OperatingPoint>,
}

impl Timer {
    pub(crate) fn new(devices: &Devices, config: &CheckConfig) -> Self {
        let monitor = Monitor::new(devices);
        let warm_up = Duration::from_millis(config.warm_up_ms);
        Self { monitor, ordinal: config.ordinal, warm_up, repeats: config.repeats.max(1) }
    }

    /// Returns the number of repeats of a measurement.
    pub(crate) fn repeats(&self) -> u32 {
        self.repeats
    }

    /// Repeats `run` for the warm-up time, after which the device runs at full clocks.
    pub(crate) fn warm_up<E>(&self, mut run: impl FnMut() -> Result<(), E>) -> Result<(), E> {
        let began = Instant::now();
        while began.elapsed() < self.warm_up {
            run()?;
        }
        Ok(())
    }

    /// Measures the device time of one `launch` after a warm-up: the median of several intervals
    /// between events. The host does not synchronise before the last event.
    pub(crate) fn device(
        &self,
        stream: &Stream,
        mut launch: impl FnMut() -> Result<(), CudaError>,
    ) -> Result<MeasuredTime, CudaError> {
        let mut batch = 1;
        self.warm_up(|| {
            (0..batch).try_for_each(|_| launch())?;
            batch = (2 * batch).min(WARM_UP_LAUNCHES_MAX);
            stream.synchronize()
        })?;
        let intervals = self.repeats.min(INTERVALS_MAX);
        let launches = (self.repeats / INTERVALS_MAX).max(1);
        let event = |_| Event::with_timing(stream.context());
        let events = (0..=intervals).map(event).collect::<Result<Vec<_>, _>>()?;
        for (place, event) in events.iter().enumerate() {
            if place > 0 {
                (0..launches).try_for_each(|_| launch())?;
            }
            stream.record(event)?;
        }
        stream.synchronize()?;
        let interval = |(begin, end): (&Event, &Event)| Ok(end.since_ns(begin)? / u64::from(launches));
        let times = events.iter().zip(events.iter().skip(1)).map(interval);
        let times = times.collect::<Result<Vec<_>, CudaError>>()?;
        Ok(self.measured(median(times)))
    }

    /// Measures the host time of one `run` after a warm-up: the median of `repeats`. For work that
    /// ends with a synchronisation.
    pub(crate) fn host<E>(
        &self,
        repeats: u32,
        mut run: impl FnMut() -> Result<(), E>,
    ) -> Result<MeasuredTime, E> {
        self.warm_up(&mut run)?;
        let mut times = Vec::new();
        for _ in 0..repeats.max(1) {
            let began = Instant::now();
            run()?;
            times.push(nanoseconds(began.elapsed()));
        }
        Ok(self.measured(median(times)))
    }

    /// Adds the current operating point to a time that was measured just now.
    pub(crate) fn measured(&self, time_ns: u64) -> MeasuredTime {
        MeasuredTime { time_ns, clocks: self.monitor.operating_point(self.ordinal) }
    }

    /// Measures the time since `began`.
    pub(crate) fn since(&self, began: Instant) -> MeasuredTime {
        let time_ns = nanoseconds(began.elapsed());
        self.measured(time_ns)
    }
}

/// Returns the median; 0 for an empty list.
pub(crate) fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
