//! Parallel work that reports every failure, not only the first.

use anyhow::{Result, bail};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Number of processors.
pub(crate) fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Runs `work` for every item, for at most `workers` items at once. Items start in order; results
/// are in no particular order.
pub(crate) fn all<I: Sync, T: Send>(
    items: &[I],
    workers: usize,
    work: impl Fn(&I) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let taken = || items.get(next.fetch_add(1, Ordering::Relaxed));
        std::iter::from_fn(taken).map(&work).collect::<Vec<_>>()
    };
    let results: Vec<Result<T>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    });
    let mut made = Vec::new();
    let mut failed = Vec::new();
    for result in results {
        match result {
            Ok(one) => made.push(one),
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    if failed.is_empty() { Ok(made) } else { bail!("{}", failed.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_is_reported() {
        let odd = |number: &u32| if number % 2 == 1 { bail!("{number} is odd") } else { Ok(*number) };
        let error = all(&[1, 2, 3, 4], 2, odd).unwrap_err().to_string();
        assert!(error.contains("1 is odd") && error.contains("3 is odd"), "{error}");
        let mut even = all(&[2, 4], 2, odd).unwrap();
        even.sort_unstable();
        assert_eq!(even, [2, 4]);
    }
}
