//! Conversion of biases to the element type, which the library requires. Weir's own kernels add
//! fp32 biases to 16-bit elements, so biases are stored as fp32. Biases that do not depend on
//! inputs are rounded once, at the end of the prologue.

use super::{BufferLocation, ProgramStep};
use std::collections::HashMap;
use weir_graph::{ALIGNMENT_BYTES, Elementwise, ElementwiseProgram, Instruction, NumberType, Op, TensorType};
use weir_kernels::{KernelTarget, Launch, OperandBuffer, Operands, Precision};
use weir_types::ElementType;

/// Rounded biases of a program.
pub(super) struct Biases<'a> {
    precision: Precision,
    target: &'a KernelTarget,
    rounded: HashMap<(BufferLocation, ElementType), BufferLocation>,
    /// Offset of the next bias in the resident memory.
    end: u64,
    steps: Vec<ProgramStep>,
}

impl<'a> Biases<'a> {
    /// Creates an empty list. Rounded biases follow the first `resident_bytes` of the resident
    /// memory.
    pub(super) fn new(resident_bytes: u64, precision: Precision, target: &'a KernelTarget) -> Self {
        let end = resident_bytes.next_multiple_of(ALIGNMENT_BYTES as u64);
        Self { precision, target, rounded: HashMap::new(), end, steps: Vec::new() }
    }

    /// Returns the location of a bias converted to another element type; `None` if the bias depends
    /// on the inputs.
    pub(super) fn rounded(
        &mut self,
        bias: BufferLocation,
        tensor: &TensorType,
        to: ElementType,
    ) -> Option<BufferLocation> {
        if tensor.element_type() == to {
            return Some(bias);
        }
        if matches!(bias, BufferLocation::Arena(_)) {
            return None;
        }
        if let Some(place) = self.rounded.get(&(bias, to)) {
            return Some(*place);
        }
        let made = tensor.with_elements(to).ok()?;
        let place = BufferLocation::Resident(self.end);
        let launches = self.launches(tensor, &made)?;
        let at = |slot: &OperandBuffer| if matches!(slot, OperandBuffer::Input(_)) { bias } else { place };
        self.steps.extend(launches.iter().map(|launch| launch.with_buffers(at).into()));
        self.end += (made.bytes() as u64).next_multiple_of(ALIGNMENT_BYTES as u64);
        self.rounded.insert((bias, to), place);
        Some(place)
    }

    /// Returns the steps that round the biases, and the total size of the resident memory in bytes.
    pub(super) fn into_steps(self) -> (Vec<ProgramStep>, u64) {
        (self.steps, self.end)
    }

    fn launches(&self, from: &TensorType, to: &TensorType) -> Option<Vec<Launch<OperandBuffer>>> {
        let program =
            ElementwiseProgram { lane: NumberType::Float, instructions: vec![Instruction::Load(0)] };
        let op =
            Op::Elementwise(Elementwise { program, dims: vec![from.elements()], strides: vec![vec![1]] });
        let operands = Operands { inputs: &[Some(from)], outputs: &[Some(to)] };
        let plan = weir_kernels::plan(&op, operands, self.precision, self.target).ok()?;
        (plan.workspace_bytes == 0).then_some(plan.launches)
    }
}
