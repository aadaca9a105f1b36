//! Tensors of one run: in the connection's memory, or on the device.

use super::staying::{Stayed, Staying};
use crate::device::Gpu;
use crate::session::{TensorExchange, misfit};
use crate::worker::message::{ExportedInput, WorkerInput, WorkerOutput};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use weir_device::Buffer;
use weir_device::cuda::{
    CudaError, Imported, IntermediateGuard, IntermediatePlace, MemoryOwner, Span, Stream,
};
use weir_inference::InferenceError;
use weir_types::{ElementType, Shape};
use weir_worker::{ConnectionFiles, TensorFile, TensorLocation, write_memory};

/// Tensors of one run. Host inputs are read from the connection's files into pinned memory; host
/// outputs are written from pinned memory.
pub(super) struct RunIo<'a> {
    gpu: &'a Arc<Gpu>,
    owner: MemoryOwner,
    files: &'a ConnectionFiles,
    inputs: Vec<InputSource<'a>>,
    /// Number under which each wanted output may stay.
    numbers: Vec<Option<u64>>,
    outputs: Vec<Option<OutputPlace>>,
    end: u64,
}

/// Location of an input.
enum InputSource<'a> {
    Here(&'a TensorLocation),
    /// Device-resident tensor.
    Stayed(Arc<Stayed>, IntermediateGuard, Span),
    /// Device-resident tensor that was spilled to the host.
    Spilled(Arc<Stayed>, Buffer),
    /// Tensor on another device, mapped during the run.
    Sibling(&'a ExportedInput, Imported),
}

/// Location of an output.
enum OutputPlace {
    Here(TensorLocation),
    Stays(u64, Stayed),
}

impl<'a> RunIo<'a> {
    /// Creates the tensors of a run for `owner`. `imported` has the mapped tensors of other
    /// devices, in the order of the inputs.
    pub(super) fn new(
        (gpu, staying): (&'a Arc<Gpu>, &Staying),
        owner: MemoryOwner,
        files: &'a ConnectionFiles,
        (inputs, imported): (&'a [WorkerInput], Vec<Imported>),
        (numbers, outputs_at): (Vec<Option<u64>>, u64),
    ) -> Result<Self, InferenceError> {
        let mut imported = imported.into_iter();
        let source = |input: &'a WorkerInput| match input {
            WorkerInput::Here(part) => Ok(InputSource::Here(part)),
            WorkerInput::Exported(exported) => {
                Ok(InputSource::Sibling(exported, imported.next().ok_or_else(misfit)?))
            }
            WorkerInput::Stayed(number) => {
                let stayed = staying.get(*number)?;
                let held = stayed.hold(owner)?;
                Ok(match held.place() {
                    IntermediatePlace::Device(span) => InputSource::Stayed(stayed, held, span),
                    IntermediatePlace::Host(bytes) => InputSource::Spilled(stayed, bytes),
                })
            }
        };
        let inputs = inputs.iter().map(source).collect::<Result<_, InferenceError>>()?;
        let outputs = numbers.iter().map(|_| None).collect();
        Ok(Self { gpu, owner, files, inputs, numbers, outputs, end: outputs_at })
    }

    /// Returns the bytes of inputs that were spilled to the host.
    pub(super) fn through_host_bytes(&self) -> u64 {
        let spilled = self.inputs.iter().map(|source| match source {
            InputSource::Spilled(stayed, _) => stayed.bytes,
            InputSource::Here(_) | InputSource::Stayed(..) | InputSource::Sibling(..) => 0,
        });
        spilled.sum()
    }

    /// Returns the outputs of a successful run, and registers the outputs that stay on the device.
    pub(super) fn into_outputs(self, staying: &Staying) -> Result<Vec<WorkerOutput>, InferenceError> {
        let given = self.outputs.into_iter().collect::<Option<Vec<_>>>().ok_or_else(misfit)?;
        let output = |given| match given {
            OutputPlace::Here(part) => WorkerOutput::Here(part),
            OutputPlace::Stays(number, stayed) => {
                let told = stayed.told();
                staying.add(number, stayed);
                told
            }
        };
        Ok(given.into_iter().map(output).collect())
    }

    fn give(&mut self, output: usize, given: OutputPlace) -> Result<(), InferenceError> {
        *self.outputs.get_mut(output).ok_or_else(misfit)? = Some(given);
        Ok(())
    }
}

impl TensorExchange for RunIo<'_> {
    fn shape(&self, input: usize) -> Option<&Shape> {
        self.inputs.get(input).map(|source| match source {
            InputSource::Here(part) => &part.shape,
            InputSource::Stayed(stayed, ..) | InputSource::Spilled(stayed, _) => &stayed.shape,
            InputSource::Sibling(exported, _) => &exported.shape,
        })
    }

    fn bytes(&self, input: usize) -> usize {
        let bytes = self.inputs.get(input).map_or(0, |source| match source {
            InputSource::Here(part) => part.bytes,
            InputSource::Stayed(stayed, ..) | InputSource::Spilled(stayed, _) => stayed.bytes,
            InputSource::Sibling(exported, _) => exported.place.bytes,
        });
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    fn on_device(&self, input: usize) -> Option<Span> {
        match self.inputs.get(input)? {
            InputSource::Stayed(_, _, span) => Some(*span),
            InputSource::Sibling(_, imported) => Some(imported.span()),
            InputSource::Here(_) | InputSource::Spilled(..) => None,
        }
    }

    fn order(&self, input: usize, stream: &Stream) -> Result<(), CudaError> {
        match self.inputs.get(input) {
            Some(InputSource::Stayed(_, held, _)) => held.order(stream),
            // The exporting process has already waited for a tensor of a peer device.
            _ => Ok(()),
        }
    }

    fn read(&self, input: usize, place: &mut [u8]) -> Result<(), InferenceError> {
        match self.inputs.get(input).ok_or_else(misfit)? {
            InputSource::Here(part) => {
                let file = match part.file {
                    TensorFile::Connection => &self.files.memory,
                    TensorFile::Arena => self.files.arena.as_ref().ok_or_else(misfit)?,
                };
                file.read_exact_at(place, part.offset).map_err(|error| failed(&error))
            }
            InputSource::Spilled(_, bytes) if bytes.len() == place.len() => {
                place.copy_from_slice(bytes);
                Ok(())
            }
            InputSource::Spilled(..) | InputSource::Stayed(..) | InputSource::Sibling(..) => Err(misfit()),
        }
    }

    fn keep(
        &mut self,
        output: usize,
        shape: &Shape,
        from: Span,
        stream: &Stream,
    ) -> Result<bool, InferenceError> {
        let Some(number) = self.numbers.get(output).copied().flatten() else { return Ok(false) };
        let stayed = Stayed::leave(self.gpu, self.owner, shape, from, stream)?;
        let stays = stayed.is_some();
        if let Some(stayed) = stayed {
            self.give(output, OutputPlace::Stays(number, stayed))?;
        }
        Ok(stays)
    }

    fn write(
        &mut self,
        output: usize,
        _: ElementType,
        shape: Shape,
        bytes: &[u8],
    ) -> Result<(), InferenceError> {
        write_memory(&self.files.memory, bytes, self.end).map_err(|error| failed(&error))?;
        let part = TensorLocation {
            shape,
            file: TensorFile::Connection,
            offset: self.end,
            bytes: bytes.len() as u64,
        };
        self.end = part.offset.saturating_add(part.bytes);
        self.give(output, OutputPlace::Here(part))
    }
}

/// Error of reading or writing the memory for tensors.
pub(super) fn failed(error: &io::Error) -> InferenceError {
    InferenceError::RunOutOfMemory(format!("the memory for tensors: {error}").into())
}
