//! Execution and timing of checked programs.
#![allow(unsafe_code, reason = "kernels are launched")]

use super::super::bound::{Bound, Ordered};
use super::super::device::Gpu;
use super::super::failure;
use super::super::program::Port;
use super::super::weights::Weights;
use super::{CheckFailure, Measured, Mismatch, Timer};
use crate::interrupt::Interrupt;
use weir_device::cuda::{CudaError, GraphExec, Owner, Span, Stream};
use weir_graph::reference::Tensor;

/// Owner of the memory that checks allocate.
pub(in crate::cuda) const OWNER: Owner = Owner(0);

/// Program in a slot, with its inputs written.
pub(in crate::cuda) struct Ready<'a> {
    pub(in crate::cuda) bound: &'a Bound,
    weights: &'a Weights,
    inputs: &'a [Tensor],
    pub(in crate::cuda) stream: &'a Stream,
    arena: Span,
}

/// Bytes of every output.
pub(in crate::cuda) type Outputs = Vec<Vec<u8>>;

/// Outputs of a program, and the time of a run.
pub(in crate::cuda) struct Timed {
    pub(in crate::cuda) outputs: Outputs,
    pub(in crate::cuda) measured: Measured,
}

/// Results of the same program launched kernel by kernel, and as a graph.
pub(in crate::cuda) struct BothWays {
    pub(in crate::cuda) launched: Timed,
    pub(in crate::cuda) captured: Timed,
}

/// Runs `work` with a program whose weights have arrived in a slot and whose inputs are written.
pub(in crate::cuda) fn in_slot<T>(
    gpu: &Gpu,
    owner: Owner,
    bound: &Bound,
    weights: &Weights,
    inputs: &[Tensor],
    work: impl FnOnce(&Ready<'_>) -> Result<T, CudaError>,
) -> Result<T, CheckFailure> {
    let mut taken = gpu.slots.take(Some(0));
    let slot = taken.slot().ok_or_else(|| CudaError::Invalid("the device has no slots".to_owned()))?;
    let arena = gpu.make_room(|| slot.memory.prepare(bound.program.arena_bytes, owner, gpu.now_ns()))?;
    let ready = Ready { bound, weights, inputs, stream: &slot.stream, arena };
    let begun = ready.begin();
    let worked = begun.and_then(|()| Ok(ready.give_inputs().and_then(|()| work(&ready))?));
    // The slot must be idle when it is returned.
    slot.stream.synchronize()?;
    worked
}

/// Runs a program once, ordered after the transfer of its weights, and returns its outputs.
pub(in crate::cuda) fn cold(
    gpu: &Gpu,
    bound: &Bound,
    weights: &Weights,
    inputs: &[Tensor],
) -> Result<Vec<Vec<u8>>, CheckFailure> {
    let mut taken = gpu.slots.take(Some(0));
    let slot = taken.slot().ok_or_else(|| CudaError::Invalid("the device has no slots".to_owned()))?;
    let arena = gpu.make_room(|| slot.memory.prepare(bound.program.arena_bytes, OWNER, gpu.now_ns()))?;
    let ready = Ready { bound, weights, inputs, stream: &slot.stream, arena };
    let interrupt = Interrupt::default();
    let mut ordered = Ordered::new(ready.stream, &interrupt);
    // SAFETY: as in `launch`.
    let begun = unsafe { bound.begin(&mut ordered, weights, arena) };
    let ran = begun.and_then(|()| {
        ready.give_inputs().map_err(|error| failure(&error))?;
        // SAFETY: as in `launch`.
        unsafe { bound.launch_behind(&mut ordered, weights, arena) }
    });
    slot.stream.synchronize()?;
    ran?;
    Ok(ready.outputs()?)
}

impl Ready<'_> {
    /// Waits until all data that runs read has arrived.
    fn begin(&self) -> Result<(), CheckFailure> {
        self.bound.wait(self.weights)?;
        let interrupt = Interrupt::default();
        let mut ordered = Ordered::new(self.stream, &interrupt);
        // SAFETY: as in `launch`.
        unsafe { self.bound.begin(&mut ordered, self.weights, self.arena) }?;
        Ok(self.stream.synchronize()?)
    }

    /// Writes the inputs. Each run needs this, because a run can reuse the memory of its inputs.
    pub(in crate::cuda) fn give_inputs(&self) -> Result<(), CudaError> {
        for (port, input) in self.bound.program.inputs.iter().zip(self.inputs) {
            self.stream.write(&input.to_bytes(), self.span(port)?)?;
        }
        Ok(())
    }

    /// Runs the program once, launch by launch, and waits for the run.
    pub(in crate::cuda) fn run(&self) -> Result<(), CudaError> {
        self.launch()?;
        self.stream.synchronize()
    }

    /// Captures the launches as a graph.
    pub(in crate::cuda) fn captured(&self) -> Result<GraphExec, CudaError> {
        self.stream.capture(|_| self.launch())?.instantiate()
    }

    /// Enqueues a graph of the program on the stream.
    pub(in crate::cuda) fn launch_graph(&self, graph: &mut GraphExec) -> Result<(), CudaError> {
        // SAFETY: as in `launch`.
        unsafe { graph.launch(self.stream) }
    }

    /// Returns the outputs of a run launched kernel by kernel and of a run as a graph, and the
    /// graph.
    pub(in crate::cuda) fn outputs_both_ways(&self) -> Result<([Outputs; 2], GraphExec), CudaError> {
        self.run()?;
        let launched = self.outputs()?;
        let mut graph = self.captured()?;
        self.give_inputs()?;
        self.launch_graph(&mut graph)?;
        Ok(([launched, self.outputs()?], graph))
    }

    /// Runs the program launch by launch and as a graph, and times both.
    pub(in crate::cuda) fn both_ways(&self, timer: &Timer) -> Result<BothWays, CudaError> {
        let ([launched, captured], mut graph) = self.outputs_both_ways()?;
        let launched = Timed { outputs: launched, measured: timer.device(self.stream, || self.launch())? };
        let measured = timer.device(self.stream, || self.launch_graph(&mut graph))?;
        Ok(BothWays { launched, captured: Timed { outputs: captured, measured } })
    }

    /// Enqueues the launches on the stream.
    pub(in crate::cuda) fn launch(&self) -> Result<(), CudaError> {
        // SAFETY: the arena belongs to the slot. The slot, the program and its weights are held
        // until the stream is synchronised.
        unsafe { self.bound.launch(self.stream, self.arena) }
    }

    /// Reads every output.
    pub(in crate::cuda) fn outputs(&self) -> Result<Outputs, CudaError> {
        let read = |port: &Port| {
            let mut bytes = vec![0; port.tensor.bytes()];
            self.stream.read(self.span(port)?, &mut bytes)?;
            Ok(bytes)
        };
        self.bound.program.outputs.iter().map(read).collect()
    }

    fn span(&self, port: &Port) -> Result<Span, CudaError> {
        let span = self.bound.span(port.place, port.tensor.bytes() as u64, self.weights, self.arena);
        span.ok_or_else(|| CudaError::Invalid("a port of the program is nowhere".to_owned()))
    }
}

/// Returns the error of the worst element of `found`, relative to the expected value or to 1,
/// whichever is larger. A NaN has an infinite error.
pub(in crate::cuda) fn worst(found: &[f32], expected: &[f32]) -> f64 {
    worst_element(found, expected).0
}

/// Returns the error and position of the worst element. If the lengths differ, the position is the
/// first index that one list lacks.
pub(in crate::cuda) fn worst_element(found: &[f32], expected: &[f32]) -> (f64, Mismatch) {
    let at = |index: usize| {
        let element = |of: &[f32]| of.get(index).map_or(f64::NAN, |element| f64::from(*element));
        Mismatch { output: 0, index, expected: element(expected), found: element(found) }
    };
    if found.len() != expected.len() {
        return (f64::INFINITY, at(found.len().min(expected.len())));
    }
    let mut worst = (0.0, 0);
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = relative_error(*found, *expected);
        if off > worst.0 {
            worst = (off, index);
        }
    }
    (worst.0, at(worst.1))
}

fn relative_error(found: f32, expected: f32) -> f64 {
    if found == expected || (found.is_nan() && expected.is_nan()) {
        return 0.0;
    }
    let (found, expected) = (f64::from(found), f64::from(expected));
    let off = (found - expected).abs() / expected.abs().max(1.0);
    if off.is_nan() { f64::INFINITY } else { off }
}

#[cfg(test)]
mod tests {
    use super::{worst, worst_element};

    #[test]
    fn nan_has_infinite_error() {
        for wrong in [f32::NAN, f32::INFINITY] {
            assert!([worst(&[wrong, 1.0], &[1.0; 2]), worst(&[1.0, wrong], &[1.0; 2])] == [f64::INFINITY; 2]);
            assert!(worst(&[wrong], &[wrong]) == 0.0);
        }
        assert!(worst(&[1.0], &[]).is_infinite());
    }

    #[test]
    fn worst_element_has_index_and_both_values() {
        let (error, at) = worst_element(&[1.0, 2.5, 8.0], &[1.0, 2.0, 4.0]);
        assert_eq!((error, at.index, at.found, at.expected), (1.0, 2, 8.0, 4.0));
        let (error, at) = worst_element(&[1.0, f32::NAN, 9.0], &[1.0, 2.0, 4.0]);
        assert!(error.is_infinite() && at.index == 1 && at.found.is_nan());
    }
}
