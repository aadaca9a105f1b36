//! The threads of guests. A guest that computes for long moves to threads of a lower priority, so
//! that other guests and the gateway need not wait for it. So does every guest of a tenant that has
//! used its share of the time at normal priority ([`turns`]).

mod turns;

use super::account::Account;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;
pub(super) use turns::Turn;
use turns::Turns;

/// The threads of guests.
#[derive(Debug, Clone)]
pub struct GuestThreads {
    short: Handle,
    long: Handle,
    turns: Arc<Turns>,
}

impl GuestThreads {
    /// `short` has the threads for guests in their first milliseconds of CPU time, and for work on
    /// behalf of guests. `long` has those for other guests, at a lower priority.
    #[must_use]
    pub fn new(short: Handle, long: Handle) -> Self {
        let turns = Arc::new(Turns::new(short.metrics().num_workers()));
        Self { short, long, turns }
    }

    /// Begins the turn of the guest of a call. The guest of a copy for a shadow has none.
    pub(super) fn turn(&self, account: &Account) -> Turn {
        if account.is_copy() {
            return Turn::none();
        }
        let usage = account.usage();
        self.turns.clone().begin(&account.deployment().id.tenant, move || usage.cpu_time())
    }

    /// Continues a guest.
    pub(super) fn run<Guest>(&self, guest: Pin<Box<Guest>>, turn: Turn) -> AbortOnDropHandle<Guest::Output>
    where
        Guest: Future<Output: Send + 'static> + Send + 'static,
    {
        let long = self.long.clone();
        if turn.is_over() {
            return AbortOnDropHandle::new(long.spawn(guest));
        }
        AbortOnDropHandle::new(self.short.spawn(async move {
            match until_over(guest, turn).await {
                Ok(output) => output,
                Err(guest) => output(AbortOnDropHandle::new(long.spawn(guest))).await,
            }
        }))
    }

    /// Starts work that no caller waits for.
    pub(super) fn spawn_background<Work>(&self, work: Work) -> JoinHandle<Work::Output>
    where
        Work: Future<Output: Send + 'static> + Send + 'static,
    {
        self.long.spawn(work)
    }

    /// Starts other work on behalf of a guest.
    pub(super) fn spawn<Work>(&self, work: Work) -> JoinHandle<Work::Output>
    where
        Work: Future<Output: Send + 'static> + Send + 'static,
    {
        self.short.spawn(work)
    }
}

/// Polls a guest until it ends, or returns it once its turn is over.
async fn until_over<Guest: Future>(
    guest: Pin<Box<Guest>>,
    turn: Turn,
) -> Result<Guest::Output, Pin<Box<Guest>>> {
    let mut polled = Some(guest);
    std::future::poll_fn(move |cx| {
        let Some(mut guest) = polled.take() else { return Poll::Pending };
        if let Poll::Ready(output) = guest.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        if turn.is_over() {
            return Poll::Ready(Err(guest));
        }
        polled = Some(guest);
        Poll::Pending
    })
    .await
}

/// The output of a task on another thread, or its panic.
async fn output<Output>(task: AbortOnDropHandle<Output>) -> Output {
    match task.await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(output) => output,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The node is stopping its threads, and drops this task, too.
        Err(Err(_)) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;
    use tokio::runtime::{Builder, Runtime};
    use weir_types::TenantId;

    struct Threads(Runtime, Runtime);

    impl Threads {
        fn start() -> Self {
            let start =
                |name: &str| Builder::new_multi_thread().worker_threads(1).thread_name(name).build().unwrap();
            Self(start("short"), start("long"))
        }

        fn handles(&self) -> GuestThreads {
            GuestThreads::new(self.0.handle().clone(), self.1.handle().clone())
        }
    }

    fn here() -> String {
        std::thread::current().name().unwrap_or_default().to_owned()
    }

    /// A guest that computes for `milliseconds`, and yields after each of them. Returns the thread
    /// of each millisecond.
    async fn compute(milliseconds: u64, clock_ms: Arc<AtomicU64>) -> Vec<String> {
        let mut threads = Vec::new();
        for _ in 0..milliseconds {
            clock_ms.fetch_add(1, Ordering::Relaxed);
            threads.push(here());
            tokio::task::yield_now().await;
        }
        threads
    }

    fn run<Guest>(threads: &Threads, guest: impl FnOnce(Arc<AtomicU64>) -> Guest) -> Guest::Output
    where
        Guest: Future<Output: Send + 'static> + Send + 'static,
    {
        let clock_ms = Arc::new(AtomicU64::new(0));
        let guest = Box::pin(guest(clock_ms.clone()));
        let cpu_time = move || Duration::from_millis(clock_ms.load(Ordering::Relaxed));
        let handles = threads.handles();
        let turn = handles.turns.clone().begin(&TenantId::default(), cpu_time);
        let task = handles.run(guest, turn);
        threads.0.block_on(task).unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }

    #[test]
    fn guest_moves_once_it_is_long() {
        let threads = Threads::start();
        assert_eq!(run(&threads, |clock_ms| compute(3, clock_ms)), ["short"; 3]);
        let moved = run(&threads, |clock_ms| compute(6, clock_ms));
        assert_eq!(moved, ["short", "short", "short", "short", "long", "long"]);
    }

    #[test]
    #[should_panic(expected = "after the move")]
    fn panic_of_a_long_guest_reaches_its_caller() {
        run(&Threads::start(), |clock_ms| async move {
            compute(6, clock_ms).await;
            panic!("after the move");
        });
    }

    #[test]
    fn long_guest_is_dropped_with_its_task() {
        let threads = Threads::start();
        let (ended, end) = tokio::sync::oneshot::channel::<()>();
        let (moved, wait) = tokio::sync::oneshot::channel();
        let guest = Box::pin(async move {
            let _ended = ended;
            tokio::task::yield_now().await;
            let _ = moved.send(here());
            std::future::pending::<()>().await;
        });
        let handles = threads.handles();
        let turn = handles.turns.clone().begin(&TenantId::default(), || turns::LENGTH);
        let task = handles.run(guest, turn);
        assert_eq!(threads.0.block_on(wait).unwrap(), "long");
        drop(task);
        // The guest has dropped its sender.
        threads.0.block_on(end).unwrap_err();
    }
}
