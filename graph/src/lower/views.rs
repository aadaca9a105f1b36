//! Views under other dimensions, and strided parts of values.

use super::Lowering;
use super::call::LoweringCall;
use super::dims::{collapse, signed};
use crate::GraphError;
use crate::ir::{BlockLayout, Copy, CopyPart, DIMS_MAX, Op, ValueId, ValueSource};
use crate::tensor_type::row_major;

impl Lowering<'_> {
    /// View the same elements under other dimensions, without moving them.
    pub(crate) fn view(
        &mut self,
        call: &LoweringCall<'_>,
        id: ValueId,
        dims: impl Into<Vec<usize>>,
    ) -> Result<ValueId, GraphError> {
        let dims = dims.into();
        if dims == self.tensor(id).dims() {
            return Ok(id);
        }
        let tensor = self.tensor(id).reshaped(dims.clone());
        let tensor =
            tensor.ok_or_else(|| call.invalid(format!("{} does not fit {dims:?}", self.tensor(id))))?;
        let of = self.graph.buffer(id);
        if *self.tensor(of) == tensor {
            return Ok(of);
        }
        Ok(self.value(tensor, ValueSource::View(of)))
    }

    /// Copy the elements that start at `offset` and follow `strides`, `dims` of them.
    pub(crate) fn strided(
        &mut self,
        call: &LoweringCall<'_>,
        id: ValueId,
        dims: &[usize],
        offset: usize,
        strides: &[isize],
    ) -> Result<ValueId, GraphError> {
        let output = call.tensor(self.element_type(id), dims)?;
        let to = signed(&row_major(dims));
        let (block, layouts) = collapse(dims, &[strides.to_vec(), to]);
        if offset == 0 && output.elements() == self.tensor(id).elements() && layouts.first() == layouts.get(1)
        {
            return self.view(call, id, dims);
        }
        let part = part(call, 0, block, [offset, 0], layouts)?;
        Ok(self.emit(Op::Copy(Copy { fill: None, parts: vec![part] }), vec![Some(id)], output))
    }

    /// Take `count` elements along an axis, `step` apart, from `start` on.
    pub(crate) fn sliced(
        &mut self,
        call: &LoweringCall<'_>,
        id: ValueId,
        axis: usize,
        start: usize,
        count: usize,
        step: usize,
    ) -> Result<ValueId, GraphError> {
        let mut dims = self.dims(id);
        let mut strides = row_major(&dims);
        let (Some(dim), Some(stride)) = (dims.get_mut(axis), strides.get_mut(axis)) else {
            return Err(call.invalid(format!("there is no axis {axis}")));
        };
        let offset = start * *stride;
        *dim = count;
        *stride *= step;
        self.strided(call, id, &dims, offset, &signed(&strides))
    }

    /// Transpose a value: dimension `i` of the result is dimension `order[i]` of `id`.
    pub(crate) fn transposed(
        &mut self,
        call: &LoweringCall<'_>,
        id: ValueId,
        order: &[usize],
    ) -> Result<ValueId, GraphError> {
        let dims = self.dims(id);
        let own = signed(&row_major(&dims));
        let pick = |axis: &usize| Some((*dims.get(*axis)?, *own.get(*axis)?));
        let picked: Vec<_> = order
            .iter()
            .map(pick)
            .collect::<Option<_>>()
            .ok_or_else(|| call.invalid(format!("{order:?} is no order of {} dimensions", dims.len())))?;
        let (dims, strides): (Vec<_>, Vec<_>) = picked.into_iter().unzip();
        self.strided(call, id, &dims, 0, &strides)
    }
}

/// Build a block to copy; the last argument has the offsets to read and write at.
pub(crate) fn part(
    call: &LoweringCall<'_>,
    input: usize,
    dims: Vec<usize>,
    [from, to]: [usize; 2],
    layouts: Vec<Vec<isize>>,
) -> Result<CopyPart, GraphError> {
    if dims.len() > DIMS_MAX {
        return Err(too_many(call));
    }
    let mut layouts = layouts.into_iter();
    let mut layout = |offset| BlockLayout { offset, strides: layouts.next().unwrap_or_default() };
    Ok(CopyPart { input, dims, from: layout(from), to: layout(to) })
}

pub(super) fn too_many(call: &LoweringCall<'_>) -> GraphError {
    call.unsupported(format!("more than {DIMS_MAX} dimensions that do not lie one in the other are"))
}
