//! Measures one configuration.

use super::plan::Configuration;
use futures::future::try_join_all;
use std::time::{Duration, Instant};
use weir_inference::{Completion, InferenceError, Pin, Probe, RunRequest, Tensor};
use weir_types::Measured;

/// The limit of runs measured per concurrent stream.
const RUNS_MAX: usize = 100_000;

type NamedInputs = Vec<(String, Tensor)>;

/// Keeps the configured number of runs in flight for `time`. Each concurrent stream makes at least
/// one run. Gives up at `latest`.
pub(super) async fn measure(
    pin: &Pin,
    inputs: NamedInputs,
    configuration: &Configuration,
    time: Duration,
    latest: Instant,
) -> Result<Measured, InferenceError> {
    let Configuration { threads, batch, concurrency } = *configuration;
    let probe = pin.probe(threads);
    let run_memory_before = probe.trimmed_run_memory_bytes().await?;
    let request = || RunRequest { inputs: inputs.clone(), deadline: Some(latest), ..RunRequest::default() };
    // All at once, so that each stream creates its session. The first run's time is not
    // representative and is not counted.
    let first = try_join_all((0..concurrency).map(|_| run(&probe, request()))).await?;
    let tensor_bytes = first.first().map_or(0, |completion| bytes(&inputs) + bytes(&completion.outputs));
    drop(first);

    let began = Instant::now();
    let one_after_the_other = async || {
        let mut run_times = Vec::new();
        while run_times.is_empty() || (began.elapsed() < time && run_times.len() < RUNS_MAX) {
            run_times.push(run(&probe, request()).await?.run_time);
        }
        Ok::<_, InferenceError>(run_times)
    };
    let run_times = try_join_all((0..concurrency).map(|_| one_after_the_other())).await?;
    let took = began.elapsed();
    // The whole increase counts: concurrent runs of other callers may have contributed to it.
    let run_memory_bytes = probe.run_memory_bytes().await?.saturating_sub(run_memory_before);
    let own_bytes = u64::from(concurrency).saturating_mul(pin.session_bytes().saturating_add(tensor_bytes));

    let mut run_times: Vec<Duration> = run_times.into_iter().flatten().collect();
    run_times.sort_unstable();
    let items = run_times.len() as f64 * f64::from(batch);
    Ok(Measured {
        threads,
        batch,
        concurrency,
        runs: run_times.len() as u64,
        latency_p50_ns: percentile_ns(&run_times, 50),
        latency_p95_ns: percentile_ns(&run_times, 95),
        throughput_per_s: items / took.as_secs_f64().max(1e-9),
        memory_bytes: own_bytes.saturating_add(run_memory_bytes),
    })
}

async fn run(probe: &Probe, request: RunRequest) -> Result<Completion, InferenceError> {
    probe.run(request).await
}

fn bytes(tensors: &[(String, Tensor)]) -> u64 {
    tensors.iter().map(|(_, tensor)| tensor.data().len() as u64).sum()
}

/// The given percentile of sorted times.
fn percentile_ns(times: &[Duration], percent: usize) -> u64 {
    let place = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(place).map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_times() {
        let times: Vec<_> = (1..=20).map(Duration::from_nanos).collect();
        assert_eq!([50, 95, 100].map(|percent| percentile_ns(&times, percent)), [10, 19, 20]);
        assert_eq!(percentile_ns(&times[..1], 50), 1);
        assert_eq!(percentile_ns(&[], 95), 0);
    }
}
