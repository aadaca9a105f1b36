//! Connection to a worker: a socket, and memory for tensors. Its user sends one request at a time.
use crate::forecast::{Forecast, Ready};
use crate::memory::release_memory_beyond;
use crate::polling::poll_until;
use crate::{receive, receive_files, send, send_files};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_inference::Interrupt;

/// Maximum time to send a message or to receive the rest of one. Both sides do so immediately.
const MESSAGE_TIME_MAX: Duration = Duration::from_secs(5);
/// Grace period of a cancelled run. Most runs end within this time, and their device time is then
/// recorded.
const GRACE: Duration = Duration::from_millis(20);

/// Node's end of a connection.
pub struct WorkerConnection {
    socket: UnixStream,
    /// Shared memory through which both processes exchange tensors.
    pub memory: File,
    waker: Waker,
    /// Reply that is still pending after its caller has left.
    pending: Option<PendingReply>,
}

/// Pending reply.
struct PendingReply {
    until: Instant,
    /// Time limit of the whole call.
    time_max: Duration,
    /// Memory that the worker may still read.
    _read: Box<dyn Send>,
}

/// Memory that a worker reads in place for a request. It must not change until the reply.
pub trait InPlaceInputs: Default + Send + 'static {
    /// Files that follow the request.
    fn files(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// The files were sent, and may be closed.
    fn close_files(&mut self) {}
}

/// No memory.
impl InPlaceInputs for () {}

/// Handle that wakes the thread waiting for a reply.
#[derive(Clone)]
pub struct Waker(Arc<OwnedFd>);

/// Reason for a missing reply.
#[derive(Debug)]
pub enum WorkerCallError {
    /// The worker has ended, or sent an invalid message.
    Ended(io::Error),
    /// The call exceeded its time limit.
    OverTime(Duration),
    /// The caller cancelled the call. The connection is still usable.
    Unwanted,
}

impl From<io::Error> for WorkerCallError {
    fn from(error: io::Error) -> Self {
        Self::Ended(error)
    }
}

impl WorkerConnection {
    /// Creates the node's end for a connected socket and the memory that the worker has open.
    pub fn new(socket: UnixStream, memory: File) -> io::Result<Self> {
        socket.set_read_timeout(Some(MESSAGE_TIME_MAX))?;
        socket.set_write_timeout(Some(MESSAGE_TIME_MAX))?;
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { socket, memory, waker: Waker(Arc::new(waker)), pending: None })
    }

    /// Frees the shared memory if it exceeds `bytes`, unless a run still uses it.
    pub fn let_go_beyond(&self, bytes: u64) {
        if self.pending.is_none() {
            release_memory_beyond(&self.memory, bytes);
        }
    }

    /// Returns the handle that ends the wait of a cancelled call.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Returns whether a pending reply has not arrived yet.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.pending.is_some() && !matches!(self.poll(Some(Instant::now()), false), Ok(Ready::Message))
    }

    /// Receives the pending reply, if any. Waits for it until the interrupt.
    pub fn settle(&mut self, interrupt: &Interrupt) -> Result<(), WorkerCallError> {
        if let Some(pending) = &self.pending {
            self.wait(pending.until, pending.time_max, interrupt, &mut Forecast::sleeping())?;
            self.receive::<IgnoredAny>()?;
            self.pending = None;
        }
        Ok(())
    }

    /// Sends a request and waits for the reply, at most `time_max`, and at most the grace period
    /// after an interrupt. No reply may be pending.
    ///
    /// The worker reads `in_place` until it replies, so a pending reply keeps it alive.
    pub fn call<Answer: DeserializeOwned>(
        &mut self,
        request: &impl Serialize,
        in_place: &mut impl InPlaceInputs,
        time_max: Duration,
        interrupt: &Interrupt,
    ) -> Result<Answer, WorkerCallError> {
        self.call_expecting(request, in_place, &mut Forecast::sleeping(), time_max, interrupt)
    }

    /// Like [`call`](Self::call), but polls for the reply when it is due by `replies`, the replies to
    /// earlier requests of this kind.
    pub fn call_expecting<Answer: DeserializeOwned>(
        &mut self,
        request: &impl Serialize,
        in_place: &mut impl InPlaceInputs,
        replies: &mut Forecast,
        time_max: Duration,
        interrupt: &Interrupt,
    ) -> Result<Answer, WorkerCallError> {
        let until = Instant::now() + time_max;
        send(&mut self.socket, request)?;
        send_files(&self.socket, &in_place.files())?;
        in_place.close_files();
        match self.wait(until, time_max, interrupt, replies) {
            Ok(()) => self.receive(),
            Err(error) => {
                self.pending =
                    Some(PendingReply { until, time_max, _read: Box::new(std::mem::take(in_place)) });
                Err(error)
            }
        }
    }

    /// Receives the files after a reply. Returns `None` if the limit of open files is reached.
    pub fn receive_files(&self, count: usize) -> Result<Option<Vec<OwnedFd>>, WorkerCallError> {
        Ok(receive_files(&self.socket, count)?)
    }

    /// Waits until the socket is readable.
    fn wait(
        &self,
        until: Instant,
        time_max: Duration,
        interrupt: &Interrupt,
        replies: &mut Forecast,
    ) -> Result<(), WorkerCallError> {
        self.waker.calm();
        if interrupt.reason().is_none() {
            match replies.wait(Some(until), |until| self.poll(until, true))? {
                Ready::Message => return Ok(()),
                Ready::Late => return Err(WorkerCallError::OverTime(time_max)),
                Ready::Woken => {}
            }
        }
        let grace = Instant::now() + GRACE;
        match self.poll(Some(grace.min(until)), false)? {
            Ready::Message => Ok(()),
            _ if grace < until => Err(WorkerCallError::Unwanted),
            _ => Err(WorkerCallError::OverTime(time_max)),
        }
    }

    /// Waits for the reply or its end, until the deadline. A wake-up ends the wait if `may_wake` is
    /// set.
    fn poll(&self, until: Option<Instant>, may_wake: bool) -> io::Result<Ready> {
        let waker = if may_wake { PollFlags::IN } else { PollFlags::empty() };
        let mut both = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&*self.waker.0, waker)];
        let is_ready = poll_until(&mut both, until)?;
        let [socket, _] = both;
        Ok(match is_ready {
            false => Ready::Late,
            true if socket.revents().is_empty() => Ready::Woken,
            true => Ready::Message,
        })
    }

    fn receive<Answer: DeserializeOwned>(&mut self) -> Result<Answer, WorkerCallError> {
        let answer = receive(&mut self.socket)?;
        answer.ok_or_else(|| WorkerCallError::Ended(io::ErrorKind::UnexpectedEof.into()))
    }
}

impl Waker {
    /// Ends the wait of the current call.
    pub fn wake(&self) {
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Clears earlier wake-ups.
    fn calm(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0_u8; 8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor_memory;
    use std::thread;
    use weir_device::Arena;
    use weir_inference::StopReason;
    use weir_inference::Tensor;
    use weir_types::{ElementType, Shape};

    /// Timeout that only a hang can reach.
    const LONG: Duration = Duration::from_secs(60);

    /// Tensors in an arena.
    #[derive(Default)]
    struct Tensors(#[expect(dead_code, reason = "only kept alive")] Vec<Tensor>);

    impl InPlaceInputs for Tensors {}

    fn pair() -> (WorkerConnection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (WorkerConnection::new(ours, tensor_memory(1 << 20).unwrap()).unwrap(), theirs)
    }

    #[test]
    fn pending_reply_is_received_before_the_next_request() {
        let (mut connection, mut worker) = pair();
        let interrupt = Interrupt::default();
        let waker = connection.waker();
        let _hook = interrupt.hook(move || waker.wake());
        thread::scope(|scope| {
            let call = scope.spawn(|| {
                let called = connection.call::<u32>(&"one", &mut (), LONG, &interrupt);
                assert!(matches!(called, Err(WorkerCallError::Unwanted)), "{called:?}");
                connection
            });
            // The worker has received the request, and does not reply.
            assert_eq!(receive(&mut worker).unwrap(), Some("one".to_owned()));
            interrupt.fire(StopReason::Deadline);
            let mut connection = call.join().unwrap();
            assert!(connection.is_busy());
            send(&mut worker, &7).unwrap();
            assert!(!connection.is_busy());
            connection.settle(&Interrupt::default()).unwrap();
            send(&mut worker, &8).unwrap();
            let called = connection.call::<u32>(&"two", &mut (), LONG, &Interrupt::default());
            assert_eq!(called.unwrap(), 8);
        });
    }

    #[test]
    fn pending_reply_keeps_in_place_inputs_alive() {
        let (mut connection, mut worker) = pair();
        let arena = Arena::new(1 << 20);
        let data = arena.copy_of(&[0; 100]).unwrap();
        let here = vec![Tensor::new(ElementType::Uint8, Shape::new(&[100]).unwrap(), data).unwrap()];
        let mut in_place = Tensors(here);
        let interrupt = Interrupt::default();
        interrupt.fire(StopReason::Cancelled);
        let called = connection.call::<u32>(&"run", &mut in_place, LONG, &interrupt);
        assert!(matches!(called, Err(WorkerCallError::Unwanted)), "{called:?}");
        drop(in_place);
        assert!(arena.used_bytes() > 0, "the memory was given up while a worker may be reading it");
        send(&mut worker, &0).unwrap();
        connection.settle(&Interrupt::default()).unwrap();
        assert_eq!(arena.used_bytes(), 0);
    }

    #[test]
    fn pending_reply_keeps_its_deadline() {
        let (mut connection, worker) = pair();
        let interrupt = Interrupt::default();
        let time_max = Duration::from_millis(200);
        interrupt.fire(StopReason::Cancelled);
        let called = connection.call::<u32>(&"run", &mut (), time_max, &interrupt);
        assert!(matches!(called, Err(WorkerCallError::Unwanted)), "{called:?}");
        let settled = connection.settle(&Interrupt::default());
        assert!(matches!(settled, Err(WorkerCallError::OverTime(limit)) if limit == time_max), "{settled:?}");
        drop(worker);
    }

    #[test]
    fn dead_and_slow_workers_give_different_errors() {
        let (mut connection, worker) = pair();
        let called =
            connection.call::<u32>(&"run", &mut (), Duration::from_millis(20), &Interrupt::default());
        assert!(matches!(called, Err(WorkerCallError::OverTime(_))), "{called:?}");
        drop(worker);
        let (mut connection, worker) = pair();
        drop(worker);
        let called = connection.call::<u32>(&"run", &mut (), LONG, &Interrupt::default());
        assert!(matches!(called, Err(WorkerCallError::Ended(_))), "{called:?}");
    }
}
