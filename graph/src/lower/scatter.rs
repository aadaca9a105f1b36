//! Operators that write elements at given indices, as reads: each element of the output finds the
//! update that is written to it.

use super::call::LoweringCall;
use super::functions::{X, with};
use super::{Lowering, Made};
use crate::GraphError;
use crate::ir::{Binary, Gather, Instruction, NumberType, Op, ReduceKind, Scalar, ValueId};
use crate::reference::ReferenceTensor;
use weir_types::ElementType;

/// Largest number of pairs of an element and an update that may be written to it, if the indices
/// are not constants: 32 MiB of integers.
const PAIRS_MAX: usize = 1 << 22;
/// Largest number of elements that constant indices are computed for.
const ELEMENTS_MAX: usize = 1 << 22;

/// Lower `ScatterND`: blocks written at indices of the first dimensions.
pub(super) fn scatter_nd(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let updates = call.input(2)?;
    let dims = lowering.dims(x);
    let index_dims = lowering.dims(call.input(1)?);
    let Some((&depth, outer)) = index_dims.split_last() else {
        return Err(call.invalid("its indices have no dimension"));
    };
    if depth > dims.len() {
        return Err(call.invalid(format!("indices of {depth} dimensions do not fit {dims:?}")));
    }
    let (places, block) = dims.split_at(depth);
    let sizes = Sizes {
        outer: 1,
        axis: places.iter().product(),
        updates: outer.iter().product(),
        inner: block.iter().product(),
    };
    if lowering.dims(updates) != [outer, block].concat() {
        return Err(call.invalid(format!("updates of {} do not fit", lowering.tensor(updates))));
    }
    let indices = lowering.flat_indices(call, call.input(1)?, places)?;
    let y = lowering.scattered(call, [x, indices, updates], &sizes)?;
    Ok(vec![Some(lowering.view(call, y, dims)?)])
}

/// Lower `ScatterElements`: elements written at indices along one axis.
pub(super) fn scatter_elements(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let dims = lowering.dims(x);
    let axis = call.axis(call.int("axis").unwrap_or(0), dims.len())?;
    let index_dims = lowering.dims(call.input(1)?);
    let fits = index_dims.len() == dims.len()
        && lowering.dims(call.input(2)?) == index_dims
        && (0..dims.len()).all(|at| at == axis || index_dims[at] <= dims[at]);
    if !fits {
        return Err(call.invalid(format!("indices of {index_dims:?} do not fit {dims:?}")));
    }
    let order: Vec<usize> = (0..dims.len()).filter(|at| *at != axis).chain([axis]).collect();
    let sizes = Sizes {
        outer: order[..dims.len() - 1].iter().map(|at| dims[*at]).product(),
        axis: dims[axis],
        updates: index_dims[axis],
        inner: 1,
    };
    // Along the other axes, missing indices are added, which lie outside the value.
    let missing: Vec<[i64; 2]> = (0..dims.len())
        .map(|at| [0, if at == axis { 0 } else { (dims[at] - index_dims[at]) as i64 }])
        .collect();
    let indices = lowering.as_indices(call, call.input(1)?)?;
    let indices = lowering.padded(call, indices, &missing, Scalar::Integer(i64::from(i32::MIN)))?;
    let updates = lowering.padded(call, call.input(2)?, &missing, Scalar::Integer(0))?;
    let mut operands = [x, indices, updates];
    for operand in &mut operands {
        *operand = lowering.transposed(call, *operand, &order)?;
    }
    let moved = order.iter().map(|at| dims[*at]).collect::<Vec<_>>();
    let y = lowering.scattered(call, operands, &sizes)?;
    let y = lowering.view(call, y, moved)?;
    let last = dims.len() - 1;
    let back: Vec<usize> = (0..axis).chain([last]).chain(axis..last).collect();
    Ok(vec![Some(lowering.transposed(call, y, &back)?)])
}

/// Lower `GatherND`: blocks at indices of the first dimensions.
pub(super) fn gather_nd(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    if call.flag("batch_dims") {
        return Err(call.unsupported("batches are"));
    }
    let x = call.input(0)?;
    let dims = lowering.dims(x);
    let index_dims = lowering.dims(call.input(1)?);
    let Some((&depth, outer)) = index_dims.split_last() else {
        return Err(call.invalid("its indices have no dimension"));
    };
    if depth == 0 || depth > dims.len() {
        return Err(call.invalid(format!("indices of {depth} dimensions do not fit {dims:?}")));
    }
    let (places, block) = dims.split_at(depth);
    let indices = lowering.flat_indices(call, call.input(1)?, places)?;
    let x = lowering.view(call, x, [&[places.iter().product()], block].concat())?;
    let y = lowering.gathered(call, x, indices, 0)?;
    Ok(vec![Some(lowering.view(call, y, [outer, block].concat())?)])
}

/// Sizes of values that updates are written to: `[outer, axis, inner]`, with indices of
/// `[outer, updates]` and updates of `[outer, updates, inner]`.
struct Sizes {
    outer: usize,
    axis: usize,
    updates: usize,
    inner: usize,
}

impl Lowering<'_> {
    /// Indices of several dimensions as indices of all elements of `places` in order.
    fn flat_indices(
        &mut self,
        call: &LoweringCall<'_>,
        indices: ValueId,
        places: &[usize],
    ) -> Result<ValueId, GraphError> {
        let indices = self.as_indices(call, indices)?;
        let mut dims = self.dims(indices);
        let axis = dims.len().saturating_sub(1);
        dims.pop();
        let mut sum = None;
        let integer =
            |number: usize| Instruction::Constant(Scalar::Integer(i64::try_from(number).unwrap_or(i64::MAX)));
        for (at, size) in places.iter().enumerate() {
            let one = self.sliced(call, indices, axis, at, 1, 1)?;
            let one = self.view(call, one, dims.clone())?;
            // A negative index counts from the end.
            let mut code = vec![X, integer(0), with(Binary::Less), X, integer(*size), with(Binary::Add), X];
            code.push(Instruction::Where);
            let mut operands = vec![one];
            if let Some(sum) = sum {
                operands.push(sum);
                code.extend([Instruction::Load(1), integer(*size), with(Binary::Mul), with(Binary::Add)]);
            }
            sum = Some(self.elementwise(call, NumberType::Integer, code, &operands, ElementType::Int64)?);
        }
        sum.ok_or_else(|| call.unsupported("indices of no dimension are"))
    }

    fn scattered(
        &mut self,
        call: &LoweringCall<'_>,
        [x, indices, updates]: [ValueId; 3],
        sizes: &Sizes,
    ) -> Result<ValueId, GraphError> {
        let Sizes { outer, axis, updates: count, inner } = *sizes;
        let element_type = self.element_type(x);
        if self.element_type(updates) != element_type {
            return Err(call.invalid("its updates differ in type"));
        }
        let kind = match call.text("reduction", "none")? {
            "none" => None,
            "add" => Some((ReduceKind::Sum, Binary::Add)),
            "mul" => Some((ReduceKind::Product, Binary::Mul)),
            "max" => Some((ReduceKind::Max, Binary::Max)),
            "min" => Some((ReduceKind::Min, Binary::Min)),
            other => return Err(call.unsupported(format!("the reduction {other:?} is"))),
        };
        let elements = outer.saturating_mul(axis);
        if elements * inner == 0 || outer * count == 0 {
            return Ok(x);
        }
        if let Some((kind, binary)) = kind {
            let x = self.view(call, x, [outer, axis, inner])?;
            let all = self.reduced_updates(call, [indices, updates], sizes, kind)?;
            let lane = NumberType::for_element_type(element_type);
            let code = vec![X, Instruction::Load(1), with(binary)];
            return self.elementwise(call, lane, code, &[x, all], element_type);
        }
        let sources = match self.known(indices).and_then(|known| known.as_integers().map(<[i64]>::to_vec)) {
            Some(known) => self.known_sources(call, &known, sizes)?,
            None => self.sources(call, indices, sizes)?,
        };
        let x = self.view(call, x, [elements, inner])?;
        let updates = self.view(call, updates, [outer * count, inner])?;
        let all = self.joined(call, &[x, updates], 0)?;
        let op = Gather { outer: 1, axis: elements + outer * count, inner, count: elements };
        let output = call.tensor(element_type, [elements, inner])?;
        Ok(self.emit(Op::Gather(op), vec![Some(all), Some(sources)], output))
    }

    /// For each element of the output, the index of its source among all elements and then all
    /// updates. The last of several updates counts.
    fn known_sources(
        &mut self,
        call: &LoweringCall<'_>,
        indices: &[i64],
        sizes: &Sizes,
    ) -> Result<ValueId, GraphError> {
        let Sizes { outer, axis, updates, .. } = *sizes;
        let elements = outer * axis;
        if elements > ELEMENTS_MAX {
            return Err(call.unsupported(format!("a value of more than {ELEMENTS_MAX} elements is")));
        }
        let mut sources: Vec<i64> = (0..elements as i64).collect();
        for (at, index) in indices.iter().enumerate() {
            let from_start = if *index < 0 { index.saturating_add(axis as i64) } else { *index };
            let Some(place) = usize::try_from(from_start).ok().filter(|place| *place < axis) else {
                continue;
            };
            if let Some(source) = sources.get_mut(at / updates.max(1) * axis + place) {
                *source = (elements + at) as i64;
            }
        }
        let tensor = call.tensor(ElementType::Int64, [elements])?;
        Ok(self.constant(ReferenceTensor::integers(tensor, sources)))
    }

    /// The same for indices that depend on the inputs: compares all indices with all places.
    fn sources(
        &mut self,
        call: &LoweringCall<'_>,
        indices: ValueId,
        sizes: &Sizes,
    ) -> Result<ValueId, GraphError> {
        let Sizes { outer, axis, updates, .. } = *sizes;
        self.check_pairs(call, outer.saturating_mul(axis).saturating_mul(updates))?;
        let indices = self.view(call, indices, [outer, 1, updates])?;
        let places = self.counted(call, [1, axis, 1], 0)?;
        let numbers = self.counted(call, [1, 1, updates], 1)?;
        let integer = |number: usize| Instruction::Constant(Scalar::Integer(number as i64));
        let mut code = hit(axis);
        code.extend([Instruction::Load(2), integer(0), Instruction::Where]);
        let operands = [indices, places, numbers];
        let each = self.elementwise(call, NumberType::Integer, code, &operands, ElementType::Int64)?;
        let last = self.reduced(call, each, ReduceKind::Max, &[2], false)?;
        // The number of the last update, or 0 if there is none, becomes a source.
        let own = self.counted(call, [outer, axis], 0)?;
        let offsets: Vec<i64> = (0..outer).map(|at| (outer * axis + at * updates) as i64 - 1).collect();
        let tensor = call.tensor(ElementType::Int64, [outer, 1])?;
        let offsets = self.constant(ReferenceTensor::integers(tensor, offsets));
        let load = Instruction::Load;
        let code = vec![X, X, load(2), with(Binary::Add), load(1), Instruction::Where];
        self.elementwise(call, NumberType::Integer, code, &[last, own, offsets], ElementType::Int64)
    }

    /// Reduce the updates of each element, to `[outer, axis, inner]`.
    fn reduced_updates(
        &mut self,
        call: &LoweringCall<'_>,
        [indices, updates]: [ValueId; 2],
        sizes: &Sizes,
        kind: ReduceKind,
    ) -> Result<ValueId, GraphError> {
        let Sizes { outer, axis, updates: count, inner } = *sizes;
        let element_type = self.element_type(updates);
        let lane = NumberType::for_element_type(element_type);
        if lane == NumberType::Integer && element_type != ElementType::Int64 {
            return Err(call.unsupported(format!("reductions of elements of type {element_type} are")));
        }
        self.check_pairs(
            call,
            [outer, axis, inner, count].iter().fold(1, |all: usize, n| all.saturating_mul(*n)),
        )?;
        let indices = self.view(call, indices, [outer, 1, 1, count])?;
        let places = self.counted(call, [1, axis, 1, 1], 0)?;
        let is_hit =
            self.elementwise(call, NumberType::Integer, hit(axis), &[indices, places], ElementType::Bool)?;
        let updates = self.view(call, updates, [outer, 1, count, inner])?;
        let updates = self.transposed(call, updates, &[0, 1, 3, 2])?;
        let none = match (kind, lane) {
            (ReduceKind::Sum, _) => Scalar::Integer(0).in_lane(lane),
            (ReduceKind::Product, _) => Scalar::Integer(1).in_lane(lane),
            (ReduceKind::Max, NumberType::Float) => Scalar::Float(f32::NEG_INFINITY),
            (_, NumberType::Float) => Scalar::Float(f32::INFINITY),
            (ReduceKind::Max, NumberType::Integer) => Scalar::Integer(i64::MIN),
            (_, NumberType::Integer) => Scalar::Integer(i64::MAX),
        };
        let code = vec![X, Instruction::Load(1), Instruction::Constant(none), Instruction::Where];
        let each = self.elementwise(call, lane, code, &[is_hit, updates], element_type)?;
        self.reduced(call, each, kind, &[3], false)
    }

    fn check_pairs(&self, call: &LoweringCall<'_>, pairs: usize) -> Result<(), GraphError> {
        if pairs <= PAIRS_MAX {
            return Ok(());
        }
        let what = format!(
            "{pairs} pairs of an element and an update with unknown indices (the most are {PAIRS_MAX}) are"
        );
        Err(call.unsupported(what))
    }

    /// A constant that counts from `first`.
    fn counted<const N: usize>(
        &mut self,
        call: &LoweringCall<'_>,
        dims: [usize; N],
        first: i64,
    ) -> Result<ValueId, GraphError> {
        let tensor = call.tensor(ElementType::Int64, dims)?;
        let numbers = (first..).take(tensor.elements()).collect();
        Ok(self.constant(ReferenceTensor::integers(tensor, numbers)))
    }
}

/// Program: whether the index in operand 0, which may count from the end, is the place in
/// operand 1.
fn hit(axis: usize) -> Vec<Instruction> {
    let integer = |number: usize| Instruction::Constant(Scalar::Integer(number as i64));
    let wrapped = [X, integer(0), with(Binary::Less), X, integer(axis), with(Binary::Add), X];
    let rest = [Instruction::Where, Instruction::Load(1), with(Binary::Equal)];
    wrapped.into_iter().chain(rest).collect()
}
