//! Spilling to peer devices before memory runs out: the least recently used device-resident tensors
//! move to a peer device with free memory.
//!
//! A worker lists tensors to move in the answer of a run. For each worker, a thread in the node
//! makes the worker of a peer device copy such a tensor in place, through an [`Export`]. The copy
//! then replaces the original. If no peer has room, the tensor stays, and is spilled to the host
//! when its memory is needed.

use super::export::Export;
use super::in_place::InPlace;
use super::memory::WorkerMemory;
use super::message::{GpuWorkerReply, GpuWorkerRequest};
use super::{CALL_TIME_MAX, DeviceWorker};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::sleep;
use std::time::Duration;
use weir_device::cuda::BLOCK_BYTES;
use weir_inference::{DeviceMemory, DeviceTensor, InferenceError, Interrupt};

/// Pause after a spill for which no peer device had room.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Sender of the spill thread.
pub(super) struct Spill(SyncSender<Vec<u64>>);

impl Spill {
    /// Creates the channel. Tensors offered during a move are dropped; the next run offers them
    /// again.
    pub(super) fn channel() -> (Self, Receiver<Vec<u64>>) {
        let (sender, receiver) = sync_channel(1);
        (Self(sender), receiver)
    }

    /// Offers tensors for a move. Does not block.
    pub(super) fn offer(&self, tensors: Vec<u64>) {
        if !tensors.is_empty() {
            let _ = self.0.try_send(tensors);
        }
    }
}

/// Starts the spill thread, which ends with `worker`.
pub(super) fn start(worker: &Arc<DeviceWorker>, offered: Receiver<Vec<u64>>) -> io::Result<()> {
    let name = format!("weir-{}-spill", worker.config.device());
    let worker = Arc::downgrade(worker);
    let spill = move || spill(&worker, &offered);
    std::thread::Builder::new().name(name).stack_size(256 << 10).spawn(spill)?;
    Ok(())
}

fn spill(worker: &Weak<DeviceWorker>, offered: &Receiver<Vec<u64>>) {
    while let Ok(tensors) = offered.recv() {
        for number in tensors {
            // A worker that no longer exists has released its tensors.
            let Some(worker) = worker.upgrade() else { return };
            // The tensor may have been released.
            let Some(tensor) = worker.left(number) else { continue };
            let siblings = worker.config.group.siblings_of(&worker);
            let moved = siblings.iter().any(|sibling| move_to(sibling, &worker, &tensor, number));
            drop((tensor, siblings, worker));
            if !moved {
                sleep(ASK_AGAIN);
                break;
            }
        }
    }
}

/// Moves a tensor to the memory of a peer device. Returns false if there was no room or the move
/// failed.
fn move_to(
    sibling: &Arc<DeviceWorker>,
    worker: &Arc<DeviceWorker>,
    tensor: &DeviceTensor,
    number: u64,
) -> bool {
    match Copied::take(sibling, worker, tensor, number) {
        Ok(Some(copied)) => {
            if copied.replace(tensor) {
                worker.config.hand_overs.spilled_to_sibling(tensor.bytes());
            }
            true
        }
        Ok(None) => false,
        Err(error) => {
            let device = worker.config.device();
            tracing::debug!(%device, sibling = %sibling.config.device(), %error, "spilling a tensor to a sibling failed");
            false
        }
    }
}

/// Copy of a tensor in the memory of a peer device.
struct Copied {
    memory: Arc<WorkerMemory>,
    number: u64,
}

impl Copied {
    /// Makes `sibling` copy a tensor of `worker`. Returns `None` if there is no copy, for example
    /// for lack of room.
    fn take(
        sibling: &Arc<DeviceWorker>,
        worker: &Arc<DeviceWorker>,
        tensor: &DeviceTensor,
        number: u64,
    ) -> Result<Option<Self>, InferenceError> {
        let stay = tensor.stay();
        let Some(WorkerMemory { tenant, arena, .. }) =
            stay.memory::<WorkerMemory>().filter(|memory| Arc::ptr_eq(&memory.worker, worker))
        else {
            return Ok(None);
        };
        // The tensor may begin in the middle of a block.
        let blocks_max = usize::try_from(tensor.bytes().div_ceil(BLOCK_BYTES)).unwrap_or(usize::MAX);
        let reserved = sibling.files.reserve(blocks_max.saturating_add(1));
        let Some(reserved) = reserved else { return Ok(None) };
        let Some(export) = Export::begin(worker, number, tenant, reserved)? else { return Ok(None) };
        let copy = sibling.number();
        let exported = export.told(tensor.shape());
        let request = GpuWorkerRequest::Take { tensor: copy, tenant: tenant.clone(), exported };
        let mut in_place = InPlace { here: Vec::new(), exports: vec![export] };
        let wanted = Interrupt::default();
        let mut line = sibling.line(&wanted)?;
        let connection = line.connection().map_err(|error| sibling.failed(error))?;
        connection.settle(&wanted).map_err(|error| sibling.failed(error))?;
        let answered = connection.call(&request, &mut in_place, CALL_TIME_MAX, &wanted);
        match sibling.understand(answered)? {
            GpuWorkerReply::Done => {
                sibling.config.hand_overs.kept(tensor.bytes());
                let worker = sibling.clone();
                let tenant = tenant.clone();
                let arena = arena.clone();
                let memory = Arc::new(WorkerMemory { worker, tenant, arena });
                Ok(Some(Self { memory, number: copy }))
            }
            GpuWorkerReply::NotTaken { why } => {
                tracing::trace!(sibling = %sibling.config.device(), why, "a sibling rejected a spilled tensor");
                Ok(None)
            }
            GpuWorkerReply::NotReached { ordinal, why } => {
                sibling.reads_no_more(ordinal, &why);
                Ok(None)
            }
            answer => Err(sibling.senseless(&answer)),
        }
    }

    /// Replaces the original with the copy, unless the original is in use. Returns whether it was
    /// replaced.
    fn replace(self, tensor: &DeviceTensor) -> bool {
        let Self { memory, number } = self;
        memory.worker.note_left(number, tensor);
        let device = memory.worker.config.device();
        let there: Arc<dyn DeviceMemory> = memory.clone();
        let is_moved = tensor.move_to(&there, number, device);
        if !is_moved {
            memory.let_go(number, tensor.bytes());
        }
        is_moved
    }
}
