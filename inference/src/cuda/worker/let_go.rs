//! Telling a worker which tensors nobody has any more, or reads from another device. On a thread of its own: whoever lets go of one does not wait.

use super::message::Request;
use super::{HandOvers, Worker};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};

/// Tensors that a worker is told of at once.
const AT_ONCE_MAX: usize = 256;

/// The way there. What waits needs no bound of its own: each is told of once, and there are only so many.
pub(super) struct LetGo(Sender<Gone>);

/// A tensor that nobody has.
pub(super) enum Gone {
    /// It has stayed, with so many bytes.
    Unused { number: u64, bytes: u64 },
    /// It was to stay, and the run that gives it was not waited for.
    Abandoned { number: u64 },
    /// No worker of another device reads what was exported by that number.
    Read { export: u64 },
}

impl LetGo {
    /// The way, and its end.
    pub(super) fn channel() -> (Self, Receiver<Gone>) {
        let (sender, receiver) = channel();
        (Self(sender), receiver)
    }

    /// Nobody has a tensor any more.
    pub(super) fn tell(&self, gone: Gone) {
        // Nobody listens any more where the worker has ended, and has let go of everything.
        let _ = self.0.send(gone);
    }
}

/// Begin to tell `worker`. The thread ends with it.
pub(super) fn start(worker: &Arc<Worker>, gone: Receiver<Gone>) -> io::Result<()> {
    let (config, worker) = (Arc::clone(&worker.config), Arc::downgrade(worker));
    let name = format!("weir-{}-free", config.device());
    let tell = move || tell(&worker, &config.hand_overs, &gone);
    std::thread::Builder::new().name(name).stack_size(256 << 10).spawn(tell)?;
    Ok(())
}

fn tell(worker: &Weak<Worker>, counted: &HandOvers, gone: &Receiver<Gone>) {
    while let Ok(first) = gone.recv() {
        let (mut tensors, mut sizes) = (Vec::new(), Vec::new());
        let (mut abandoned, mut exports) = (Vec::new(), Vec::new());
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
        // One that nobody has any more has ended, and has let go of everything.
        if let Some(worker) = worker.upgrade() {
            worker.release(&Request::Release { tensors, abandoned, exports });
        }
        sizes.into_iter().for_each(|bytes| counted.gone(bytes));
    }
}
