//! Release queue: reports unreferenced tensors and finished exports to a worker on a dedicated
//! thread, so that dropping a tensor does not block.

use super::message::GpuWorkerRequest;
use super::{DeviceWorker, HandOvers};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};

/// Maximum number of releases per request.
const AT_ONCE_MAX: usize = 256;

/// Sender of the release queue. The queue needs no bound, because each tensor is released once, and
/// the number of tensors is bounded.
pub(super) struct ReleaseQueue(Sender<Gone>);

/// Release of a tensor or export.
pub(super) enum Gone {
    /// An unreferenced device-resident tensor, with its size.
    Unused { number: u64, bytes: u64 },
    /// An output that was to stay on the device, of a run whose caller has left.
    Abandoned { number: u64 },
    /// An export that no other worker reads any more.
    Read { export: u64 },
}

impl ReleaseQueue {
    /// Creates the queue.
    pub(super) fn channel() -> (Self, Receiver<Gone>) {
        let (sender, receiver) = channel();
        (Self(sender), receiver)
    }

    /// Queues a release.
    pub(super) fn tell(&self, gone: Gone) {
        // The queue is closed if the worker has ended, which releases everything.
        let _ = self.0.send(gone);
    }
}

/// Starts the thread, which ends with `worker`.
pub(super) fn start(worker: &Arc<DeviceWorker>, gone: Receiver<Gone>) -> io::Result<()> {
    let config = worker.config.clone();
    let worker = Arc::downgrade(worker);
    let name = format!("weir-{}-free", config.device());
    let tell = move || tell(&worker, &config.hand_overs, &gone);
    std::thread::Builder::new().name(name).stack_size(256 << 10).spawn(tell)?;
    Ok(())
}

fn tell(worker: &Weak<DeviceWorker>, counted: &HandOvers, gone: &Receiver<Gone>) {
    while let Ok(first) = gone.recv() {
        let mut tensors = Vec::new();
        let mut sizes = Vec::new();
        let mut abandoned = Vec::new();
        let mut exports = Vec::new();
        for one in std::iter::once(first).chain(gone.try_iter()).take(AT_ONCE_MAX) {
            match one {
                Gone::Unused { number, bytes } => {
                    tensors.push(number);
                    sizes.push(bytes);
                }
                Gone::Abandoned { number } => abandoned.push(number),
                Gone::Read { export } => exports.push(export),
            }
        }
        // A worker that no longer exists has released everything.
        if let Some(worker) = worker.upgrade() {
            worker.release(&GpuWorkerRequest::Release { tensors, abandoned, exports });
        }
        sizes.into_iter().for_each(|bytes| counted.gone(bytes));
    }
}
