//! Requests at random times, which do not wait for earlier responses.

use anyhow::{Result, anyhow};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time between the start of the clients and the first arrival.
const LEAD: Duration = Duration::from_millis(100);

/// Arrival times of a Poisson process.
pub(crate) fn poisson(seed: u64, rate_per_s: f64, measured: Duration) -> Vec<Duration> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut at_s = 0.0;
    let mut all = Vec::new();
    loop {
        // Knuth's 64-bit linear congruential generator; only the upper bits are used.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let uniform = ((state >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
        at_s -= uniform.ln() / rate_per_s;
        if at_s >= measured.as_secs_f64() {
            return all;
        }
        all.push(Duration::from_secs_f64(at_s));
    }
}

/// Calls `send` at each arrival from one of `clients` threads, with the number of the arrival.
/// Returns the latencies in milliseconds, in the order of the arrivals. A latency begins at the
/// arrival, so it includes the wait for a free thread.
pub(crate) fn latencies_ms(
    arrivals: &[Duration],
    clients: usize,
    send: impl Fn(usize) -> Result<()> + Sync,
) -> Result<Vec<f64>> {
    let next = AtomicUsize::new(0);
    let began = Instant::now() + LEAD;
    let client = || -> Result<Vec<(usize, f64)>> {
        let mut measured = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(after) = arrivals.get(number) else { return Ok(measured) };
            let arrival = began + *after;
            std::thread::sleep(arrival.saturating_duration_since(Instant::now()));
            send(number)?;
            measured.push((number, arrival.elapsed().as_secs_f64() * 1e3));
        }
    };
    let mut all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        let lost = |_| Err(anyhow!("a client panicked"));
        let lists = threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost));
        Ok::<_, anyhow::Error>(lists.collect::<Result<Vec<_>>>()?.concat())
    })?;
    all.sort_by_key(|(number, _)| *number);
    Ok(all.into_iter().map(|(_, latency_ms)| latency_ms).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_rate_and_depend_on_the_seed() {
        let measured = Duration::from_secs(100);
        let arrivals = poisson(1, 50.0, measured);
        assert!((4_500..5_500).contains(&arrivals.len()), "{}", arrivals.len());
        assert!(arrivals.is_sorted());
        assert!(arrivals.iter().all(|after| *after < measured));
        assert_ne!(arrivals, poisson(2, 50.0, measured));
    }

    #[test]
    fn wait_for_a_free_client_counts() {
        let arrivals = [Duration::ZERO; 3];
        let slow = |_| {
            std::thread::sleep(Duration::from_millis(20));
            Ok(())
        };
        let latencies = latencies_ms(&arrivals, 1, slow).unwrap();
        assert_eq!(latencies.len(), 3);
        assert!(latencies[2] >= 60.0, "{latencies:?}");
        assert!(latencies_ms(&arrivals, 2, |_| Err(anyhow!("refused"))).is_err());
    }
}
