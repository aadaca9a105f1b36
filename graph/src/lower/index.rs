//! Operators that select elements by index.

use super::call::LoweringCall;
use super::dims::{signed, unsigned};
use super::{Lowering, Made};
use crate::ir::{Binary, DIMS_MAX, Gather, GatherElements, Instruction, NumberType, Op, Scalar};
use crate::reference::ReferenceTensor;
use crate::tensor_type::row_major;
use crate::{GraphError, ir::ValueId};
use weir_types::ElementType;

/// Largest mask, or list of positions, that is made as a constant.
pub(super) const MASK_ELEMENTS_MAX: usize = 1 << 22;

pub(super) fn gather(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let indices = call.input(1)?;
    let rank = lowering.dims(x).len();
    let axis = call.axis(call.int("axis").unwrap_or(0), rank)?;
    Ok(vec![Some(lowering.gathered(call, x, indices, axis)?)])
}

impl Lowering<'_> {
    pub(super) fn gathered(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        indices: ValueId,
        axis: usize,
    ) -> Result<ValueId, GraphError> {
        let indices = self.as_indices(call, indices)?;
        let dims = self.dims(x);
        let index_dims = self.dims(indices);
        let out = [&dims[..axis], &index_dims, &dims[axis + 1..]].concat();
        let output = call.tensor(self.element_type(x), out.clone())?;
        let size = dims[axis];
        if size == 0 && output.elements() > 0 {
            return Err(call.invalid("it selects from an empty axis"));
        }
        // A single known index is a slice.
        if let Some(Scalar::Integer(index)) = self.scalar(indices) {
            let from_start =
                if index < 0 { index.saturating_add(i64::try_from(size).unwrap_or(i64::MAX)) } else { index };
            let at = usize::try_from(from_start).ok().filter(|at| *at < size);
            let at = at.ok_or_else(|| call.invalid(format!("there is no index {index} among {size}")))?;
            let strides = row_major(&dims);
            let mut block = dims.clone();
            block[axis] = 1;
            let y = self.strided(call, x, &block, at * strides[axis], &signed(&strides))?;
            return self.view(call, y, out);
        }
        let op = Gather {
            outer: dims[..axis].iter().product(),
            axis: size,
            inner: dims[axis + 1..].iter().product(),
            count: self.tensor(indices).elements(),
        };
        Ok(self.emit(Op::Gather(op), vec![Some(x), Some(indices)], output))
    }

    /// Return indices in one of the two types that operations accept.
    pub(super) fn as_indices(
        &mut self,
        call: &LoweringCall<'_>,
        indices: ValueId,
    ) -> Result<ValueId, GraphError> {
        match self.element_type(indices) {
            ElementType::Int64 | ElementType::Int32 => Ok(indices),
            _ => self.cast(call, indices, ElementType::Int64),
        }
    }
}

pub(super) fn gather_elements(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let indices = call.input(1)?;
    let indices = lowering.as_indices(call, indices)?;
    let dims = lowering.dims(x);
    let out = lowering.dims(indices);
    let axis = call.axis(call.int("axis").unwrap_or(0), dims.len())?;
    let fits = dims.len() == out.len() && (0..dims.len()).all(|at| at == axis || out[at] <= dims[at]);
    if !fits || (dims[axis] == 0 && !out.contains(&0)) {
        return Err(call.invalid(format!("indices of {out:?} do not fit {dims:?}")));
    }
    let output = call.tensor(lowering.element_type(x), out.clone())?;
    let mut strides = row_major(&dims);
    let axis_stride = std::mem::replace(&mut strides[axis], 0);
    let all = [signed(&row_major(&out)), signed(&strides)];
    let (block, mut layouts) = super::collapse(&out, &all);
    if block.len() > DIMS_MAX {
        return Err(call.unsupported(format!("more than {DIMS_MAX} dimensions are")));
    }
    let strides = unsigned(&layouts.pop().unwrap_or_default());
    let op = GatherElements { dims: block, strides, axis: dims[axis], axis_stride };
    Ok(vec![Some(lowering.emit(Op::GatherElements(op), vec![Some(x), Some(indices)], output))])
}

/// Keep the elements above or below a diagonal.
pub(super) fn trilu(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let diagonal = match call.optional(1) {
        Some(_) => lowering.integers(call, 1)?.first().copied().unwrap_or(0),
        None => 0,
    };
    let dims = lowering.dims(x);
    let [.., rows, columns] = dims.as_slice() else { return Err(call.invalid("its input is not a matrix")) };
    if rows.saturating_mul(*columns) > MASK_ELEMENTS_MAX {
        return Err(call.unsupported(format!("a matrix of {rows} by {columns} is")));
    }
    let upper = call.int("upper").is_none_or(|upper| upper != 0);
    let at = |size: usize| 0..i64::try_from(size).unwrap_or(i64::MAX);
    let keep = |row: i64, column: i64| {
        let right = column.saturating_sub(row);
        i64::from(if upper { right >= diagonal } else { right <= diagonal })
    };
    let mask = at(*rows).flat_map(|row| at(*columns).map(move |column| keep(row, column))).collect();
    let mask = ReferenceTensor::integers(call.tensor(ElementType::Bool, [*rows, *columns])?, mask);
    let mask = lowering.constant(mask);
    let element_type = lowering.element_type(x);
    let lane = NumberType::for_element_type(element_type);
    let zero = Instruction::Constant(Scalar::Integer(0).in_lane(lane));
    let code = vec![Instruction::Load(0), Instruction::Load(1), zero, Instruction::Where];
    Ok(vec![Some(lowering.elementwise(call, lane, code, &[mask, x], element_type)?)])
}

/// Lower `OneHot`: `on` at the position of the index, `off` elsewhere.
pub(super) fn one_hot(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let indices = call.input(0)?;
    let depth = lowering.numbers(call, 1)?.first().copied().unwrap_or(0.0);
    if !(1.0..=MASK_ELEMENTS_MAX as f32).contains(&depth) {
        return Err(call.invalid(format!("a depth of {depth} is not possible")));
    }
    let depth = depth as usize;
    let element_type = lowering.element_type(call.input(2)?);
    let values = lowering.numbers(call, 2)?;
    let &[off, on]: &[f32; 2] =
        values.as_slice().try_into().map_err(|_| call.invalid("it does not have two values"))?;
    let mut dims = lowering.dims(indices);
    let axis = call.axis(call.int("axis").unwrap_or(-1), dims.len() + 1)?;
    dims.insert(axis, 1);
    let indices = lowering.view(call, indices, dims.clone())?;
    let mut along = vec![1; dims.len()];
    along[axis] = depth;
    let numbers = (0..i64::try_from(depth).unwrap_or(0)).collect();
    let places =
        lowering.constant(ReferenceTensor::integers(call.tensor(ElementType::Int64, along)?, numbers));
    // A negative index counts from the end: a position matches the index, or the index plus the
    // depth.
    let float = |x| Instruction::Constant(Scalar::Float(x));
    let index = Instruction::Load(0);
    let place = Instruction::Load(1);
    let with = Instruction::Binary;
    let wrapped = [index, float(depth as f32), with(Binary::Add), place, with(Binary::Equal)];
    let mut code = vec![index, place, with(Binary::Equal)];
    code.extend(wrapped);
    code.extend([with(Binary::Or), float(on), float(off), Instruction::Where]);
    Ok(vec![Some(lowering.elementwise(call, NumberType::Float, code, &[indices, places], element_type)?)])
}
