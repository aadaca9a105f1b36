//! Adding operations to the graph, with constant folding.

use super::Lowering;
use super::call::LoweringCall;
use super::dims::{broadcast, broadcast_strides, collapse, signed, unsigned};
use super::views::too_many;
use crate::ir::{
    DIMS_MAX, Elementwise, ElementwiseProgram, GraphNode, INPUTS_MAX, Instruction, NumberType, Op, Scalar,
    ValueId, ValueSource,
};
use crate::reference::{self, ReferenceData, ReferenceTensor};
use crate::tensor_type::row_major;
use crate::{GraphError, TensorType};
use weir_types::ElementType;

/// Largest folded value. Larger ones are computed in the prologue, before the first run.
const FOLD_VALUE_BYTES_MAX: usize = 1 << 20;
/// Limit on the elements that constant folding reads and writes, for one graph. Past the limit,
/// operations go to the prologue, before the first run.
const FOLD_ELEMENTS_MAX: usize = 1 << 28;
/// Limit on the bytes of constants in one graph, in addition to constants in the file.
pub(super) const CONSTANT_BYTES_MAX: usize = 256 << 20;

impl Lowering<'_> {
    /// The type of a value.
    pub(crate) fn tensor(&self, id: ValueId) -> &TensorType {
        &self.graph.value(id).tensor
    }

    /// The dimensions of a value.
    pub(crate) fn dims(&self, id: ValueId) -> Vec<usize> {
        self.tensor(id).dims().to_vec()
    }

    /// The type of a value's elements.
    pub(crate) fn element_type(&self, id: ValueId) -> ElementType {
        self.tensor(id).element_type()
    }

    /// The contents of a value, if they are known and small enough for constant folding.
    pub(crate) fn known(&mut self, id: ValueId) -> Option<ReferenceTensor> {
        let buffer = self.graph.buffer(id);
        if !self.known.contains_key(&buffer) {
            let value = self.graph.value(buffer);
            let bytes = match &value.source {
                ValueSource::Constant(bytes) => bytes,
                ValueSource::Weight(index) => self.model.weights().get(*index as usize)?.inline()?,
                _ => return None,
            };
            let tensor = ReferenceTensor::from_bytes(value.tensor.clone(), bytes)?;
            self.known.insert(buffer, tensor);
        }
        self.known.get(&buffer)?.reshaped(self.graph.value(id).tensor.dims())
    }

    /// The only element of a value, if it is known.
    pub(crate) fn scalar(&mut self, id: ValueId) -> Option<Scalar> {
        if self.tensor(id).elements() != 1 {
            return None;
        }
        match self.known(id)?.data() {
            ReferenceData::Floats(floats) => floats.first().copied().map(Scalar::Float),
            ReferenceData::Integers(integers) => integers.first().copied().map(Scalar::Integer),
        }
    }

    /// The elements of an integer input; an error if its contents are unknown.
    pub(crate) fn integers(&mut self, call: &LoweringCall<'_>, place: usize) -> Result<Vec<i64>, GraphError> {
        let id = call.input(place)?;
        let known = self.known(id).and_then(|tensor| tensor.as_integers().map(<[i64]>::to_vec));
        known.ok_or_else(|| {
            call.unsupported(format!(
                "an input {place} that depends on the contents of the model's inputs is"
            ))
        })
    }

    /// The elements of an input as floats; an error if its contents are unknown.
    pub(crate) fn numbers(&mut self, call: &LoweringCall<'_>, place: usize) -> Result<Vec<f32>, GraphError> {
        let id = call.input(place)?;
        let known = self.known(id).map(|tensor| tensor.to_floats());
        known.ok_or_else(|| {
            call.unsupported(format!(
                "an input {place} that depends on the contents of the model's inputs is"
            ))
        })
    }

    /// Add a constant with these contents.
    pub(crate) fn constant(&mut self, tensor: ReferenceTensor) -> ValueId {
        self.constant_bytes += tensor.tensor().bytes();
        let id = self.value(tensor.tensor().clone(), ValueSource::Constant(tensor.to_bytes().into()));
        self.known.insert(id, tensor);
        id
    }

    /// Add an operation with one output.
    pub(crate) fn emit(&mut self, op: Op, inputs: Vec<Option<ValueId>>, output: TensorType) -> ValueId {
        self.emit_all(op, inputs, vec![output]).first().copied().unwrap_or(ValueId(0))
    }

    /// Add an operation.
    pub(crate) fn emit_all(
        &mut self,
        op: Op,
        inputs: Vec<Option<ValueId>>,
        outputs: Vec<TensorType>,
    ) -> Vec<ValueId> {
        if outputs.iter().all(|tensor| tensor.elements() == 0) {
            return outputs
                .into_iter()
                .map(|tensor| self.constant(ReferenceTensor::integers(tensor, vec![])))
                .collect();
        }
        if let Some(made) = self.folded(&op, &inputs, &outputs) {
            return made;
        }
        let node = u32::try_from(self.graph.nodes.len()).unwrap_or(u32::MAX);
        let of_node = |output| ValueSource::Node { node, output };
        let ids: Vec<ValueId> =
            (0..).zip(outputs).map(|(output, tensor)| self.value(tensor, of_node(output))).collect();
        let outputs = ids.iter().copied().map(Some).collect();
        self.graph.nodes.push(GraphNode { name: self.title.clone(), op, inputs, outputs });
        ids
    }

    fn folded(
        &mut self,
        op: &Op,
        inputs: &[Option<ValueId>],
        outputs: &[TensorType],
    ) -> Option<Vec<ValueId>> {
        // Expensive operations are never folded, whatever their size.
        if matches!(
            op,
            Op::Conv(_) | Op::MatMul(_) | Op::Attention(_) | Op::Pool(_) | Op::Resize(_) | Op::Lrn(_)
        ) {
            return None;
        }
        let bytes: usize = outputs.iter().map(TensorType::bytes).sum();
        let read = inputs.iter().flatten().map(|id| self.tensor(*id).elements());
        let elements: usize = read.chain(outputs.iter().map(TensorType::elements)).sum();
        if bytes > FOLD_VALUE_BYTES_MAX || self.folded_elements + elements > FOLD_ELEMENTS_MAX {
            return None;
        }
        let mut operands = Vec::with_capacity(inputs.len());
        for id in inputs {
            operands.push(match id {
                Some(id) => Some(self.known(*id)?),
                None => None,
            });
        }
        let types: Vec<Option<&TensorType>> = outputs.iter().map(Some).collect();
        let made: Vec<ReferenceTensor> =
            reference::run_op(op, &operands, &types)?.into_iter().collect::<Option<_>>()?;
        self.folded_elements += elements;
        Some(made.into_iter().map(|tensor| self.constant(tensor)).collect())
    }

    /// Add one expression over values that broadcast against each other. Known scalars become
    /// constants of the program.
    pub(crate) fn elementwise(
        &mut self,
        call: &LoweringCall<'_>,
        lane: NumberType,
        instructions: Vec<Instruction>,
        inputs: &[ValueId],
        element_type: ElementType,
    ) -> Result<ValueId, GraphError> {
        let all: Vec<&[usize]> = inputs.iter().map(|id| self.tensor(*id).dims()).collect();
        let dims = broadcast(&all)
            .ok_or_else(|| call.invalid(format!("{all:?} do not broadcast against each other")))?;
        let output = call.tensor(element_type, dims)?;
        let mut kept = Vec::new();
        let mut places = Vec::new();
        let mut all_known = true;
        for id in inputs {
            all_known &= self.known(*id).is_some();
        }
        for id in inputs {
            places.push(match self.scalar(*id) {
                Some(scalar) if !all_known => Instruction::Constant(scalar.in_lane(lane)),
                _ => {
                    kept.push(*id);
                    Instruction::Load(u8::try_from(kept.len() - 1).unwrap_or(u8::MAX))
                }
            });
        }
        GraphError::limit("operands of one expression", kept.len(), INPUTS_MAX)?;
        let placed = |instruction: Instruction| match instruction {
            Instruction::Load(place) => places.get(usize::from(place)).copied().unwrap_or(instruction),
            other => other,
        };
        let program =
            ElementwiseProgram { lane, instructions: instructions.into_iter().map(placed).collect() };
        let strides: Vec<Vec<isize>> = kept
            .iter()
            .map(|id| signed(&broadcast_strides(self.tensor(*id).dims(), output.dims())))
            .collect();
        let op = elementwise_over(program, output.dims(), &strides).ok_or_else(|| too_many(call))?;
        Ok(self.emit(Op::Elementwise(op), kept.into_iter().map(Some).collect(), output))
    }
}

/// Build a program over `dims`, in as few dimensions as possible; `None` if more than [`DIMS_MAX`]
/// remain.
pub(crate) fn elementwise_over(
    program: ElementwiseProgram,
    dims: &[usize],
    strides: &[Vec<isize>],
) -> Option<Elementwise> {
    // The output's strides are included, since the output must stay contiguous.
    let mut all = vec![signed(&row_major(dims))];
    all.extend_from_slice(strides);
    let (dims, mut strides) = collapse(dims, &all);
    strides.remove(0);
    (dims.len() <= DIMS_MAX).then(|| Elementwise {
        program,
        dims,
        strides: strides.iter().map(|s| unsigned(s)).collect(),
    })
}
