//! Built-in steps without model or function: combining several tensors into one, and splitting one
//! into several.

use super::steps::NamedTensors;
use std::sync::Arc;
use tokio::sync::Semaphore;
use weir_call::Fault;
use weir_device::Arena;
use weir_inference::Tensor;
use weir_types::ErrorCode;
use weir_workflow::{Combination, Combiner, TensorView, split};

/// The size from which tensors are combined on a thread that may block instead of the run's own
/// thread.
const BRIEF_BYTES: usize = 64 << 10;

fn view(tensor: &Tensor) -> TensorView<'_> {
    TensorView { datatype: tensor.element_type(), shape: tensor.shape(), data: tensor.data() }
}

/// Combines tensors into one. `turns` limits how many long combinations run at once.
pub(super) async fn combine(
    arena: &Arena,
    turns: &Arc<Semaphore>,
    combiner: Combiner,
    mut tensors: NamedTensors,
) -> Result<Tensor, Fault> {
    if combiner.passes_on(tensors.len()) {
        let first = tensors.drain(..).next();
        return first.map(|(_, tensor)| tensor).ok_or_else(|| refused("no tensor to combine"));
    }
    let bytes: usize = tensors.iter().map(|(_, tensor)| tensor.data().len()).sum();
    if bytes < BRIEF_BYTES {
        return combined(arena, combiner, &tensors);
    }
    let stopping = || Fault::new(ErrorCode::Unavailable, "the node is shutting down; try another");
    let turn = turns.clone().acquire_owned().await.map_err(|_| stopping())?;
    let arena = arena.clone();
    // The permit moves into the task: a caller that gives up does not stop the work.
    let work = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        combined(&arena, combiner, &tensors)
    });
    work.await.map_err(|_| stopping())?
}

fn combined(arena: &Arena, combiner: Combiner, tensors: &NamedTensors) -> Result<Tensor, Fault> {
    let views = tensors.iter().map(|(_, tensor)| view(tensor)).collect();
    let combination = Combination::new(combiner, views).map_err(refused)?;
    let mut buffer = arena
        .buffer(combination.bytes)
        .map_err(|error| Fault::new(ErrorCode::NoCapacity, error.to_string()))?;
    combination.write(&mut buffer);
    Tensor::new(combination.datatype, combination.shape.clone(), buffer.freeze())
        .map_err(|error| Fault::new(ErrorCode::Internal, error.to_string()))
}

/// Splits a tensor. The parts share its memory.
pub(super) fn take_apart(tensors: &NamedTensors, parts: u32) -> Result<NamedTensors, Fault> {
    let (_, whole) = tensors.first().ok_or_else(|| refused("no tensor to split"))?;
    let parts = split(view(whole), parts).map_err(refused)?.into_iter().enumerate();
    let part = |(number, part): (usize, weir_workflow::TensorPart)| {
        let tensor = Tensor::new(whole.element_type(), part.shape, whole.data().slice(part.range));
        let tensor = tensor.map_err(|error| Fault::new(ErrorCode::Internal, error.to_string()))?;
        Ok((number.to_string(), tensor))
    };
    parts.map(part).collect()
}

/// The fault for mismatched tensors, which come from models, functions or the caller.
fn refused(why: impl Into<String>) -> Fault {
    Fault::new(ErrorCode::InvalidRequest, why)
}
