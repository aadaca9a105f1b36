//! Running and timing what is checked.
#![allow(unsafe_code, reason = "kernels are launched")]

use super::super::bound::{Bound, Ordered};
use super::super::device::Gpu;
use super::super::failure;
use super::super::program::Port;
use super::super::weights::Weights;
use super::CheckFailure;
use crate::interrupt::Interrupt;
use std::time::Instant;
use weir_device::cuda::{CudaError, Event, GraphExec, Owner, Span, Stream};
use weir_graph::reference::Tensor;

/// On whose behalf checks hold memory.
pub(in crate::cuda) const OWNER: Owner = Owner(0);

/// A program in a slot, with its inputs there.
pub(in crate::cuda) struct Ready<'a> {
    pub(in crate::cuda) bound: &'a Bound,
    weights: &'a Weights,
    inputs: &'a [Tensor],
    pub(in crate::cuda) stream: &'a Stream,
    arena: Span,
}

/// What a program makes of its inputs, and how long that takes.
pub(in crate::cuda) struct Timed {
    pub(in crate::cuda) outputs: Vec<Vec<u8>>,
    pub(in crate::cuda) time_ns: u64,
}

/// The same program launch by launch, and as a graph.
pub(in crate::cuda) struct BothWays {
    pub(in crate::cuda) launched: Timed,
    pub(in crate::cuda) captured: Timed,
}

/// Have `work` done with a program that has been brought to a slot and given its inputs.
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
    // Nothing is left under way when the slot goes back.
    slot.stream.synchronize()?;
    worked
}

/// Run a program once, from the first run that there is: behind what it needs. Gives its outputs.
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
    /// Have everything there that runs read.
    fn begin(&self) -> Result<(), CheckFailure> {
        self.bound.wait(self.weights)?;
        let interrupt = Interrupt::default();
        let mut ordered = Ordered::new(self.stream, &interrupt);
        // SAFETY: as in `launch`.
        unsafe { self.bound.begin(&mut ordered, self.weights, self.arena) }?;
        Ok(self.stream.synchronize()?)
    }

    /// Put the inputs where a run finds them: one may have put something else there when it needed them no more.
    pub(in crate::cuda) fn give_inputs(&self) -> Result<(), CudaError> {
        for (port, input) in self.bound.program.inputs.iter().zip(self.inputs) {
            self.stream.write(&input.to_bytes(), self.span(port)?)?;
        }
        Ok(())
    }

    /// Run it once, launch by launch, and wait.
    pub(in crate::cuda) fn run(&self) -> Result<(), CudaError> {
        self.launch()?;
        self.stream.synchronize()
    }

    /// Its launches as a graph.
    pub(in crate::cuda) fn captured(&self) -> Result<GraphExec, CudaError> {
        self.stream.capture(|_| self.launch())?.instantiate()
    }

    /// Run a graph of it, and wait.
    pub(in crate::cuda) fn repeat(&self, graph: &mut GraphExec) -> Result<(), CudaError> {
        // SAFETY: as in `launch`.
        unsafe { graph.launch(self.stream) }?;
        self.stream.synchronize()
    }

    /// Run it launch by launch and as a graph, each timed `repeats` times.
    pub(in crate::cuda) fn both_ways(&self, repeats: u32) -> Result<BothWays, CudaError> {
        self.run()?;
        let launched = Timed { outputs: self.outputs()?, time_ns: self.time_ns(repeats, || self.launch())? };
        let mut graph = self.captured()?;
        self.give_inputs()?;
        self.repeat(&mut graph)?;
        let outputs = self.outputs()?;
        let time_ns = self.time_ns(repeats, || self.repeat(&mut graph))?;
        Ok(BothWays { launched, captured: Timed { outputs, time_ns } })
    }

    /// The median time of `count` runs by `run`, by the device's clock.
    pub(in crate::cuda) fn time_ns(
        &self,
        count: u32,
        mut run: impl FnMut() -> Result<(), CudaError>,
    ) -> Result<u64, CudaError> {
        let (begin, end) =
            (Event::with_timing(self.stream.context())?, Event::with_timing(self.stream.context())?);
        let mut times = Vec::new();
        for _ in 0..count.max(1) {
            self.stream.record(&begin)?;
            run()?;
            self.stream.record(&end)?;
            end.synchronize()?;
            times.push(end.since_ns(&begin)?);
        }
        times.sort_unstable();
        Ok(times.get(times.len() / 2).copied().unwrap_or_default())
    }

    /// Give the launches to the stream.
    pub(in crate::cuda) fn launch(&self) -> Result<(), CudaError> {
        // SAFETY: the arena is the slot's, which is held until the stream was synchronised, as are the program and its weights.
        unsafe { self.bound.launch(self.stream, self.arena) }
    }

    /// Every output, as it is now.
    pub(in crate::cuda) fn outputs(&self) -> Result<Vec<Vec<u8>>, CudaError> {
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

/// How far the worst element of `found` is off, in parts of what is expected or of 1, whichever is more. What is not a number is infinitely far off.
pub(in crate::cuda) fn worst(found: &[f32], expected: &[f32]) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let off = |(found, expected): (&f32, &f32)| {
        if found == expected || (found.is_nan() && expected.is_nan()) {
            return 0.0;
        }
        let (found, expected) = (f64::from(*found), f64::from(*expected));
        let off = (found - expected).abs() / expected.abs().max(1.0);
        // The largest of some numbers and none is the largest of the numbers.
        if off.is_nan() { f64::INFINITY } else { off }
    };
    found.iter().zip(expected).map(off).fold(0.0, f64::max)
}

/// How long it is since then.
pub(super) fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::worst;

    #[test]
    fn what_is_not_a_number_is_as_far_off_as_can_be() {
        for wrong in [f32::NAN, f32::INFINITY] {
            assert!([worst(&[wrong, 1.0], &[1.0; 2]), worst(&[1.0, wrong], &[1.0; 2])] == [f64::INFINITY; 2]);
            assert!(worst(&[wrong], &[wrong]) == 0.0);
        }
        assert!(worst(&[1.0], &[]).is_infinite());
    }
}
