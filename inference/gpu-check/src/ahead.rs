//! Reference answers, computed on CPU threads while the device runs other cases.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Maximum number of threads.
const THREADS_MAX: usize = 8;

/// Results of slow jobs, computed by threads in order. A caller that needs a result that no thread
/// has begun computes it itself.
pub(crate) struct PrecomputedResults<J, T> {
    jobs: Vec<J>,
    results: Vec<OnceLock<T>>,
    next: AtomicUsize,
}

impl<T: Send + Sync, J: Fn() -> T + Sync> PrecomputedResults<J, T> {
    pub(crate) fn new(jobs: Vec<J>) -> Self {
        let results = jobs.iter().map(|_| OnceLock::new()).collect();
        Self { jobs, results, next: AtomicUsize::new(0) }
    }

    /// Runs `work` while threads compute the results. When `work` ends, jobs that have not started
    /// are dropped.
    pub(crate) fn run<R>(&self, work: impl FnOnce(&Self) -> R) -> R {
        // One core is reserved for the thread that launches kernels.
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get().saturating_sub(1));
        thread::scope(|threads| {
            for _ in 0..cores.clamp(1, THREADS_MAX).min(self.jobs.len()) {
                threads.spawn(|| while self.get(self.next.fetch_add(1, Ordering::Relaxed)).is_some() {});
            }
            let worked = work(self);
            self.next.store(self.jobs.len(), Ordering::Relaxed);
            worked
        })
    }

    /// Returns the result of a job by index; `None` after the last job.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        let job = self.jobs.get(index)?;
        let result = self.results.get(index)?;
        Some(result.get_or_init(job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_runs_exactly_once() {
        let runs = AtomicUsize::new(0);
        let job = |number: usize| {
            let runs = &runs;
            move || {
                runs.fetch_add(1, Ordering::Relaxed);
                number * number
            }
        };
        let ahead = PrecomputedResults::new((0..50).map(job).collect());
        let sum: usize = ahead.run(|ahead| (0..50).rev().filter_map(|at| ahead.get(at)).sum());
        assert_eq!((sum, ahead.get(50)), (40_425, None));
        assert_eq!(runs.load(Ordering::Relaxed), 50);
    }
}
