//! GPU figures for `/metrics`, as the driver reports them.
//!
//! A scrape triggers a read, at most once a second and one read at a time, on a blocking thread:
//! the driver of a faulty GPU may take arbitrarily long. A scrape waits for a limited time. Old
//! figures are omitted, so that they are not taken for current ones.

use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use weir_device::GpuFigures;

/// Age below which figures are not read again.
const FRESH: Duration = Duration::from_secs(1);
/// Age from which figures are not shown.
const OLD: Duration = Duration::from_secs(10);
/// Longest wait of a scrape for new figures.
const PATIENCE: Duration = Duration::from_millis(500);

/// Source of GPU figures.
pub trait GpuSource: Send + Sync + 'static {
    /// Reads the current figures of all GPUs. Blocks.
    fn read(&self) -> Vec<GpuFigures>;
}

/// The GPU figures of the last read. Cheap to clone.
#[derive(Clone)]
pub struct GpuMonitor(Arc<GpusShared>);

struct GpusShared {
    /// None on a node without GPUs.
    source: OnceLock<Arc<dyn GpuSource>>,
    latest: Mutex<Option<(Instant, Vec<GpuFigures>)>>,
    /// Permit to read figures.
    turn: Arc<Semaphore>,
}

impl Default for GpuMonitor {
    fn default() -> Self {
        let turn = Arc::new(Semaphore::new(1));
        Self(Arc::new(GpusShared { source: OnceLock::new(), latest: Mutex::default(), turn }))
    }
}

impl std::fmt::Debug for GpuMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuMonitor").finish_non_exhaustive()
    }
}

impl GpuMonitor {
    /// Sets the source. Only the first call has an effect.
    pub fn watch(&self, source: Arc<dyn GpuSource>) {
        let _ = self.0.source.set(source);
    }

    /// Reads new figures, unless the last figures are fresh or another read is in progress. Waits
    /// for at most `PATIENCE`.
    pub async fn refresh(&self) {
        let Some(source) = self.0.source.get().cloned() else { return };
        let Ok(turn) = self.0.turn.clone().try_acquire_owned() else { return };
        if self.younger_than(FRESH).is_some() {
            return;
        }
        let shared = self.0.clone();
        let reading = tokio::task::spawn_blocking(move || {
            // The thread holds the permit for as long as the driver takes, even if the scrape no
            // longer waits.
            let _turn = turn;
            let figures = source.read();
            *shared.latest.lock() = Some((Instant::now(), figures));
        });
        let _ = tokio::time::timeout(PATIENCE, reading).await;
    }

    /// Returns the figures that are recent enough to show.
    pub(super) fn figures(&self) -> Vec<GpuFigures> {
        self.younger_than(OLD).unwrap_or_default()
    }

    fn younger_than(&self, age_max: Duration) -> Option<Vec<GpuFigures>> {
        let latest = self.0.latest.lock();
        latest.as_ref().filter(|(at, _)| at.elapsed() < age_max).map(|(_, figures)| figures.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;

    /// Reports the number of its reads.
    #[derive(Default)]
    struct Counting(AtomicU64);

    impl GpuSource for Counting {
        fn read(&self) -> Vec<GpuFigures> {
            let asked = self.0.fetch_add(1, Ordering::SeqCst) + 1;
            vec![GpuFigures { memory_used_bytes: Some(asked), ..GpuFigures::default() }]
        }
    }

    /// Answers when it gets a message.
    struct Ill(Mutex<mpsc::Receiver<()>>);

    impl GpuSource for Ill {
        fn read(&self) -> Vec<GpuFigures> {
            let _ = self.0.lock().recv();
            vec![GpuFigures::default()]
        }
    }

    fn shown(monitor: &GpuMonitor) -> Vec<Option<u64>> {
        monitor.figures().iter().map(|figures| figures.memory_used_bytes).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn gpu_figures_refresh_once_a_second_and_expire() {
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
    async fn hanging_driver_does_not_block_scrapes() {
        let monitor = GpuMonitor::default();
        let (answer, answers) = mpsc::channel();
        monitor.watch(Arc::new(Ill(Mutex::new(answers))));
        // The paused clock does not advance while a thread blocks.
        tokio::join!(monitor.refresh(), tokio::time::advance(PATIENCE));
        monitor.refresh().await;
        assert!(monitor.figures().is_empty());
        answer.send(()).unwrap();
        let _turn = monitor.0.turn.acquire().await.unwrap();
        assert_eq!(monitor.figures().len(), 1, "it has answered in the end");
    }
}
