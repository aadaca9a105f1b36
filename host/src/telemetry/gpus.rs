//! What GPUs say of themselves, for `/metrics`.
//!
//! It is asked for when somebody scrapes, at most once a second and by one at a time, on a thread that may block: a driver whose GPU is ill answers when it
//! likes. A scrape waits only so long; figures that have grown old are left out rather than told as if they were new.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use weir_device::GpuFigures;

/// Figures are not read anew within this time.
const FRESH: Duration = Duration::from_secs(1);
/// They are not shown after this time.
const OLD: Duration = Duration::from_secs(10);
/// The longest that a scrape waits for new ones.
const PATIENCE: Duration = Duration::from_millis(500);

/// What tells of GPUs.
pub(crate) trait GpuSource: Send + Sync + 'static {
    /// What each of them says now. Blocks.
    fn read(&self) -> Vec<GpuFigures>;
}

/// The figures that were read last. Cheap to clone.
#[derive(Clone)]
pub(crate) struct GpuMonitor(Arc<Shared>);

struct Shared {
    /// None where there are no GPUs.
    source: OnceLock<Arc<dyn GpuSource>>,
    latest: Mutex<Option<(Instant, Vec<GpuFigures>)>>,
    /// For whoever reads.
    turn: Arc<Semaphore>,
}

impl Default for GpuMonitor {
    fn default() -> Self {
        let turn = Arc::new(Semaphore::new(1));
        Self(Arc::new(Shared { source: OnceLock::new(), latest: Mutex::default(), turn }))
    }
}

impl std::fmt::Debug for GpuMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuMonitor").finish_non_exhaustive()
    }
}

impl GpuMonitor {
    /// Ask this source from now on. Only the first counts.
    pub(crate) fn watch(&self, source: Arc<dyn GpuSource>) {
        let _ = self.0.source.set(source);
    }

    /// Have new figures, unless there are fresh ones, somebody else is reading them, or that takes too long.
    pub(crate) async fn refresh(&self) {
        let Some(source) = self.0.source.get().cloned() else { return };
        let Ok(turn) = self.0.turn.clone().try_acquire_owned() else { return };
        if self.younger_than(FRESH).is_some() {
            return;
        }
        let shared = self.0.clone();
        let reading = tokio::task::spawn_blocking(move || {
            // It stays taken for as long as the driver takes, whoever has stopped waiting.
            let _turn = turn;
            let figures = source.read();
            *shared.latest() = Some((Instant::now(), figures));
        });
        let _ = tokio::time::timeout(PATIENCE, reading).await;
    }

    /// What is worth showing.
    pub(super) fn figures(&self) -> Vec<GpuFigures> {
        self.younger_than(OLD).unwrap_or_default()
    }

    fn younger_than(&self, age_max: Duration) -> Option<Vec<GpuFigures>> {
        let latest = self.0.latest();
        latest.as_ref().filter(|(at, _)| at.elapsed() < age_max).map(|(_, figures)| figures.clone())
    }
}

impl Shared {
    fn latest(&self) -> MutexGuard<'_, Option<(Instant, Vec<GpuFigures>)>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;

    /// Says how often it was asked.
    #[derive(Default)]
    struct Counting(AtomicU64);

    impl GpuSource for Counting {
        fn read(&self) -> Vec<GpuFigures> {
            let asked = self.0.fetch_add(1, Ordering::SeqCst) + 1;
            vec![GpuFigures { memory_used_bytes: Some(asked), ..GpuFigures::default() }]
        }
    }

    /// Answers when it is told to.
    struct Ill(Mutex<mpsc::Receiver<()>>);

    impl GpuSource for Ill {
        fn read(&self) -> Vec<GpuFigures> {
            let _ = self.0.lock().unwrap().recv();
            vec![GpuFigures::default()]
        }
    }

    fn shown(monitor: &GpuMonitor) -> Vec<Option<u64>> {
        monitor.figures().iter().map(|figures| figures.memory_used_bytes).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn gpus_are_asked_once_a_second_at_most_and_what_is_old_is_not_shown() {
        let monitor = GpuMonitor::default();
        monitor.refresh().await;
        assert!(shown(&monitor).is_empty(), "there are none");
        monitor.watch(Arc::new(Counting::default()));
        assert!(shown(&monitor).is_empty(), "nobody has asked");
        for _ in 0..3 {
            monitor.refresh().await;
            assert_eq!(shown(&monitor), [Some(1)]);
        }
        tokio::time::advance(FRESH).await;
        monitor.refresh().await;
        assert_eq!(shown(&monitor), [Some(2)]);
        tokio::time::advance(OLD).await;
        assert!(shown(&monitor).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_that_does_not_answer_holds_nobody_up_and_is_asked_by_one_at_a_time() {
        let monitor = GpuMonitor::default();
        let (answer, answers) = mpsc::channel();
        monitor.watch(Arc::new(Ill(Mutex::new(answers))));
        // Time does not pass by itself while a thread blocks.
        tokio::join!(monitor.refresh(), tokio::time::advance(PATIENCE));
        monitor.refresh().await;
        assert!(monitor.figures().is_empty());
        answer.send(()).unwrap();
        let _turn = monitor.0.turn.acquire().await.unwrap();
        assert_eq!(monitor.figures().len(), 1, "it has answered in the end");
    }
}
