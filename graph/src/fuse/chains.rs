//! Fusion of consecutive elementwise operations into one program.

use super::readers::Readers;
use super::strides::{StridedWalk, refined};
use crate::ir::{
    Binary, DIMS_MAX, Elementwise, ElementwiseProgram, Graph, INPUTS_MAX, INSTRUCTIONS_MAX, Instruction,
    NumberType, Op, Unary, ValueId,
};
use crate::lower::elementwise_over;
use weir_types::ElementType;

/// Longest program that may be inlined more than once.
const REPEATED_LEN_MAX: usize = 3;

pub(super) fn fuse(graph: &mut Graph) {
    let mut readers = Readers::new(graph);
    for index in 0..graph.nodes.len() {
        while absorb(graph, &mut readers, index).is_some() {}
    }
}

/// Inline the program of one operand's maker into the program of the node at `index`.
fn absorb(graph: &mut Graph, readers: &mut Readers, index: usize) -> Option<()> {
    let node = graph.nodes.get(index)?;
    let Op::Elementwise(op) = &node.op else { return None };
    let (maker, merged, inputs) = (0..node.inputs.len()).find_map(|place| {
        let operand = graph.buffer(node.input(place)?);
        let maker = graph.maker(operand).filter(|_| readers.only(operand) == Some(index))?;
        let (merged, inputs) = merged(graph, op, &node.inputs, place, maker)?;
        Some((maker, merged, inputs))
    })?;
    let node = graph.nodes.get_mut(index)?;
    node.op = Op::Elementwise(merged);
    node.inputs = inputs;
    let gone = graph.nodes.get_mut(maker)?;
    gone.inputs.clear();
    gone.outputs.clear();
    readers.rename(maker, index);
    Some(())
}

/// Return `op` with the program of its operand at `place` inlined, and the operands of the merged
/// operation; `None` if the result would exceed a limit.
fn merged(
    graph: &Graph,
    op: &Elementwise,
    inputs: &[Option<ValueId>],
    place: usize,
    maker: usize,
) -> Option<(Elementwise, Vec<Option<ValueId>>)> {
    let node = graph.nodes.get(maker)?;
    let Op::Elementwise(inner) = &node.op else { return None };
    let operand = inputs.get(place).copied().flatten()?;
    let elements: usize = op.dims.iter().product();
    let reads = walk(&op.dims, op.strides.get(place)?)?.along(&[elements])?;
    let in_step = graph.value(operand).tensor.elements() == elements && (elements == 1 || reads == [1]);
    let loads = op.program.instructions.iter().filter(|i| **i == Instruction::Load(place as u8)).count();
    let is_short = loads <= 1 || inner.program.instructions.len() <= REPEATED_LEN_MAX;
    if !in_step || !is_short || inner.program.lane != op.program.lane {
        return None;
    }
    let dims = refined(&op.dims, &inner.dims)?;
    let mut operands = Operands { dims: &dims, ids: Vec::new(), strides: Vec::new() };
    // Load instructions of the merged program for the operands of each program.
    let outer = inputs.iter().zip(&op.strides).enumerate().map(|(at, (id, strides))| {
        if at == place {
            Some(Instruction::Where)
        } else {
            operands.add(graph, (*id)?, &walk(&op.dims, strides)?)
        }
    });
    let outer: Vec<Instruction> = outer.collect::<Option<_>>()?;
    let of_inner = node.inputs.iter().zip(&inner.strides);
    let of_inner: Vec<Instruction> = of_inner
        .map(|(id, strides)| operands.add(graph, (*id)?, &walk(&inner.dims, strides)?))
        .collect::<Option<_>>()?;
    let renamed = |names: &[Instruction], instruction: &Instruction| match instruction {
        Instruction::Load(at) => names.get(usize::from(*at)).copied(),
        other => Some(*other),
    };
    let mut body: Vec<Instruction> =
        inner.program.instructions.iter().map(|i| renamed(&of_inner, i)).collect::<Option<_>>()?;
    body.extend(rounding(graph.value(operand).tensor.element_type(), &inner.program));
    let mut instructions = Vec::new();
    for instruction in &op.program.instructions {
        if *instruction == Instruction::Load(place as u8) {
            instructions.extend_from_slice(&body);
        } else {
            instructions.push(renamed(&outer, instruction)?);
        }
    }
    let program = ElementwiseProgram { lane: op.program.lane, instructions };
    let Operands { ids, strides, .. } = operands;
    let merged = elementwise_over(program, &dims, &strides)?;
    let possible = ids.len() <= INPUTS_MAX
        && merged.program.instructions.len() <= INSTRUCTIONS_MAX
        && merged.dims.len() <= DIMS_MAX
        && merged.program.check(ids.len()).is_ok();
    possible.then(|| (merged, ids.into_iter().map(Some).collect()))
}

fn walk(dims: &[usize], strides: &[usize]) -> Option<StridedWalk> {
    let strides = strides.iter().map(|stride| isize::try_from(*stride).ok()).collect::<Option<_>>()?;
    Some(StridedWalk { offset: 0, dims: dims.to_vec(), strides })
}

/// Operands of an operation, without duplicates.
struct Operands<'a> {
    dims: &'a [usize],
    ids: Vec<ValueId>,
    strides: Vec<Vec<isize>>,
}

impl Operands<'_> {
    /// Return the instruction that loads an operand; adds the operand if it is new.
    fn add(&mut self, graph: &Graph, id: ValueId, walk: &StridedWalk) -> Option<Instruction> {
        let strides = walk.along(self.dims)?;
        let buffer = graph.buffer(id);
        let known = self
            .ids
            .iter()
            .zip(&self.strides)
            .position(|(other, same)| graph.buffer(*other) == buffer && *same == strides);
        let place = known.unwrap_or(self.ids.len());
        if known.is_none() {
            self.ids.push(id);
            self.strides.push(strides);
        }
        u8::try_from(place).ok().map(Instruction::Load)
    }
}

/// Return the instruction that has the effect of storing a program's result as this type and
/// loading it again; `None` if the result stays the same or is only rounded.
fn rounding(element_type: ElementType, program: &ElementwiseProgram) -> Option<Instruction> {
    use ElementType::{Bool, Int64};
    let is_truth = matches!(
        program.instructions.last(),
        Some(
            Instruction::Unary(Unary::Not | Unary::IsNan)
                | Instruction::Binary(
                    Binary::Equal
                        | Binary::Less
                        | Binary::LessEqual
                        | Binary::Greater
                        | Binary::GreaterEqual
                        | Binary::And
                        | Binary::Or
                        | Binary::Xor
                )
        )
    );
    let changes = match (element_type, program.lane) {
        (Bool, _) => !is_truth,
        (Int64, NumberType::Integer) => false,
        (other, _) => NumberType::for_element_type(other) == NumberType::Integer,
    };
    changes.then_some(Instruction::Unary(Unary::Cast(element_type)))
}
