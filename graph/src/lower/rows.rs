//! Operators on rows: reductions, softmax, `TopK`, cumulative sums.

use super::call::LoweringCall;
use super::{Lowering, Made};
use crate::GraphError;
use crate::ir::{
    ArgReduce, Binary, CumSum, Instruction, NumberType, Op, Reduce, ReduceKind, Scalar, Softmax, TopK, Unary,
    ValueId,
};
use weir_types::ElementType;

pub(super) fn reduce(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let rank = lowering.dims(x).len();
    let given = match (call.ints("axes"), call.optional(1)) {
        (Some(axes), _) => axes.to_vec(),
        (None, Some(_)) => lowering.integers(call, 1)?,
        (None, None) => vec![],
    };
    let axes = match given.as_slice() {
        [] if call.flag("noop_with_empty_axes") => return Ok(vec![Some(x)]),
        [] => (0..rank).collect(),
        axes => call.axes(axes, rank)?,
    };
    let keep = call.int("keepdims").is_none_or(|keep| keep != 0);
    let element_type = lowering.element_type(x);
    let float = |lowering: &mut Lowering<'_>, code: Vec<Instruction>, inputs: &[ValueId]| {
        lowering.elementwise(call, NumberType::Float, code, inputs, element_type)
    };
    let load = Instruction::Load(0);
    let log = Instruction::Unary(Unary::Log);
    let kind = match call.node.operator.as_str() {
        "ReduceSum" | "ReduceLogSum" | "ReduceLogSumExp" => ReduceKind::Sum,
        "ReduceMean" => ReduceKind::Mean,
        "ReduceMax" => ReduceKind::Max,
        "ReduceMin" => ReduceKind::Min,
        "ReduceProd" => ReduceKind::Product,
        "ReduceL1" => ReduceKind::L1,
        "ReduceL2" => ReduceKind::L2,
        _ => ReduceKind::SumSquares,
    };
    if call.node.operator.starts_with("ReduceLog")
        && NumberType::for_element_type(element_type) == NumberType::Integer
    {
        return Err(call.unsupported(format!("elements of type {element_type} are")));
    }
    let y = match call.node.operator.as_str() {
        "ReduceLogSum" => {
            let sum = lowering.reduced(call, x, kind, &axes, keep)?;
            float(lowering, vec![load, log], &[sum])?
        }
        // The maximum is subtracted first, to avoid overflow.
        "ReduceLogSumExp" => {
            let max = lowering.reduced(call, x, ReduceKind::Max, &axes, true)?;
            let other = Instruction::Load(1);
            let exp = Instruction::Unary(Unary::Exp);
            let parts = float(lowering, vec![load, other, Instruction::Binary(Binary::Sub), exp], &[x, max])?;
            let sum = lowering.reduced(call, parts, ReduceKind::Sum, &axes, true)?;
            let y = float(lowering, vec![load, log, other, Instruction::Binary(Binary::Add)], &[sum, max])?;
            let dims = reduced_dims(&lowering.dims(x), &axes, keep);
            lowering.view(call, y, dims)?
        }
        _ => lowering.reduced(call, x, kind, &axes, keep)?,
    };
    Ok(vec![Some(y)])
}

fn reduced_dims(dims: &[usize], axes: &[usize], keep: bool) -> Vec<usize> {
    let size = |(axis, dim): (usize, &usize)| match axes.contains(&axis) {
        true if keep => Some(1),
        true => None,
        false => Some(*dim),
    };
    dims.iter().enumerate().filter_map(size).collect()
}

impl Lowering<'_> {
    pub(super) fn reduced(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        kind: ReduceKind,
        axes: &[usize],
        keep: bool,
    ) -> Result<ValueId, GraphError> {
        let dims = self.dims(x);
        let element_type = self.element_type(x);
        let output = call.tensor(element_type, reduced_dims(&dims, axes, keep))?;
        let (x, rows, cols) = self.innermost(call, x, axes)?;
        if cols == 0 {
            let of_nothing = match kind {
                ReduceKind::Product => Scalar::Integer(1),
                ReduceKind::Max | ReduceKind::Min | ReduceKind::Mean => {
                    return Err(call.invalid("nothing is reduced to its largest, smallest or mean"));
                }
                _ => Scalar::Integer(0),
            };
            return Ok(self.emit(
                Op::Fill(of_nothing.in_lane(NumberType::for_element_type(element_type))),
                vec![],
                output,
            ));
        }
        Ok(self.emit(Op::Reduce(Reduce { kind, rows, cols }), vec![Some(x)], output))
    }

    /// Move `axes`, ascending, to the innermost dimensions; returns the value, and the number of
    /// elements in the other dimensions and in `axes`.
    fn innermost(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        axes: &[usize],
    ) -> Result<(ValueId, usize, usize), GraphError> {
        let dims = self.dims(x);
        let others: Vec<usize> = (0..dims.len()).filter(|axis| !axes.contains(axis)).collect();
        let size = |axes: &[usize]| axes.iter().filter_map(|axis| dims.get(*axis)).product::<usize>();
        let rows = size(&others);
        let cols = size(axes);
        let x = self.transposed(call, x, &[others.as_slice(), axes].concat())?;
        Ok((x, rows, cols))
    }

    /// Apply an operation to the rows along one axis, and move the result back into place. The
    /// result may have another size along the axis.
    fn along(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        axis: usize,
        of_rows: impl FnOnce(&mut Self, ValueId, usize, usize, &[usize]) -> Result<Vec<ValueId>, GraphError>,
    ) -> Result<Vec<ValueId>, GraphError> {
        let rank = self.dims(x).len();
        let (x, rows, cols) = self.innermost(call, x, &[axis])?;
        let dims = self.dims(x);
        let made = of_rows(self, x, rows, cols, &dims)?;
        let back: Vec<usize> = (0..axis).chain([rank - 1]).chain(axis..rank - 1).collect();
        made.into_iter().map(|id| self.transposed(call, id, &back)).collect()
    }
}

/// Mean or maximum of each channel.
pub(super) fn global_pool(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let rank = lowering.dims(x).len();
    if rank < 3 {
        return Err(call.invalid("its input is not an image"));
    }
    let kind = if call.node.operator == "GlobalMaxPool" { ReduceKind::Max } else { ReduceKind::Mean };
    let axes: Vec<usize> = (2..rank).collect();
    Ok(vec![Some(lowering.reduced(call, x, kind, &axes, true)?)])
}

pub(super) fn softmax(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let dims = lowering.dims(x);
    let element_type = lowering.element_type(x);
    if NumberType::for_element_type(element_type) == NumberType::Integer {
        return Err(call.invalid(format!("there is no softmax of {element_type}")));
    }
    let log = call.node.operator == "LogSoftmax";
    let op = |rows, cols| Op::Softmax(Softmax { rows, cols, scale: 1.0, log, mask: None });
    if dims.is_empty() {
        let tensor = call.tensor(element_type, [])?;
        return Ok(vec![Some(lowering.emit(op(1, 1), vec![Some(x), None], tensor))]);
    }
    // Before opset 13, all dimensions from the axis on formed one row.
    if call.opset < 13 {
        let axis = call.axis(call.int("axis").unwrap_or(1), dims.len())?;
        let (rows, cols) = dims.split_at(axis);
        let rows = rows.iter().product();
        let cols = cols.iter().product();
        let tensor = call.tensor(element_type, dims)?;
        return Ok(vec![Some(lowering.emit(op(rows, cols), vec![Some(x), None], tensor))]);
    }
    let axis = call.axis(call.int("axis").unwrap_or(-1), dims.len())?;
    let made = lowering.along(call, x, axis, |lowering, x, rows, cols, dims| {
        let tensor = call.tensor(element_type, dims)?;
        Ok(vec![lowering.emit(op(rows, cols), vec![Some(x), None], tensor)])
    })?;
    Ok(made.into_iter().map(Some).collect())
}

impl Lowering<'_> {
    /// Add softmax of each row of `cols` elements.
    pub(super) fn softmax_of_rows(&mut self, x: ValueId, cols: usize) -> ValueId {
        let tensor = self.tensor(x).clone();
        let rows = tensor.elements() / cols.max(1);
        let op = Softmax { rows, cols, scale: 1.0, log: false, mask: None };
        self.emit(Op::Softmax(op), vec![Some(x), None], tensor)
    }
}

pub(super) fn arg_reduce(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let dims = lowering.dims(x);
    let axis = call.axis(call.int("axis").unwrap_or(0), dims.len())?;
    let keep = call.int("keepdims").is_none_or(|keep| keep != 0);
    let output = call.tensor(ElementType::Int64, reduced_dims(&dims, &[axis], keep))?;
    let (x, rows, cols) = lowering.innermost(call, x, &[axis])?;
    if cols == 0 {
        return Err(call.invalid("there is no largest of nothing"));
    }
    let largest = call.node.operator == "ArgMax";
    let last = call.flag("select_last_index");
    let op = ArgReduce { rows, cols, largest, last };
    Ok(vec![Some(lowering.emit(Op::ArgReduce(op), vec![Some(x)], output))])
}

/// Lower `Hardmax`: 1 at the first maximum of each row, 0 elsewhere.
pub(super) fn hardmax(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let dims = lowering.dims(x);
    let element_type = lowering.element_type(x);
    // Before opset 13, all dimensions from the axis on formed one row.
    let axis = call.axis(call.int("axis").unwrap_or(if call.opset < 13 { 1 } else { -1 }), dims.len())?;
    let (view, along) = if call.opset < 13 {
        let (rows, cols) = dims.split_at(axis);
        (vec![rows.iter().product(), cols.iter().product()], 1)
    } else {
        (dims.clone(), axis)
    };
    let size = view[along];
    if size > super::index::MASK_ELEMENTS_MAX {
        return Err(call.unsupported(format!("a row of {size} elements is")));
    }
    let x = lowering.view(call, x, view.clone())?;
    let output = call.tensor(ElementType::Int64, reduced_dims(&view, &[along], true))?;
    let (rows_of, rows, cols) = lowering.innermost(call, x, &[along])?;
    if cols == 0 {
        return Err(call.invalid("there is no largest of nothing"));
    }
    let op = ArgReduce { rows, cols, largest: true, last: false };
    let most = lowering.emit(Op::ArgReduce(op), vec![Some(rows_of)], output);
    let mut places = vec![1; view.len()];
    places[along] = size;
    let tensor = call.tensor(ElementType::Int64, places)?;
    let numbers = (0..).take(size).collect();
    let places = lowering.constant(crate::reference::ReferenceTensor::integers(tensor, numbers));
    let code = vec![Instruction::Load(0), Instruction::Load(1), Instruction::Binary(Binary::Equal)];
    let y = lowering.elementwise(call, NumberType::Integer, code, &[most, places], element_type)?;
    Ok(vec![Some(lowering.view(call, y, dims)?)])
}

pub(super) fn top_k(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let k = match call.optional(1) {
        Some(_) => lowering.integers(call, 1)?.first().copied(),
        None => call.int("k"),
    };
    let dims = lowering.dims(x);
    let axis = call.axis(call.int("axis").unwrap_or(-1), dims.len())?;
    let k = k.and_then(|k| usize::try_from(k).ok()).filter(|k| *k <= dims[axis]);
    let k =
        k.ok_or_else(|| call.invalid(format!("there are not that many along axis {axis} of {dims:?}")))?;
    let largest = call.int("largest").is_none_or(|largest| largest != 0);
    let element_type = lowering.element_type(x);
    let made = lowering.along(call, x, axis, |lowering, x, rows, cols, dims| {
        let mut out = dims.to_vec();
        if let Some(last) = out.last_mut() {
            *last = k;
        }
        let tensors = vec![call.tensor(element_type, out.clone())?, call.tensor(ElementType::Int64, out)?];
        Ok(lowering.emit_all(Op::TopK(TopK { rows, cols, k, largest }), vec![Some(x)], tensors))
    })?;
    Ok(made.into_iter().map(Some).collect())
}

pub(super) fn cum_sum(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let dims = lowering.dims(x);
    let axis = lowering.integers(call, 1)?.first().copied().unwrap_or(0);
    let axis = call.axis(axis, dims.len())?;
    let exclusive = call.flag("exclusive");
    let reverse = call.flag("reverse");
    let element_type = lowering.element_type(x);
    let made = lowering.along(call, x, axis, |lowering, x, rows, cols, dims| {
        let tensor = call.tensor(element_type, dims)?;
        Ok(vec![lowering.emit(Op::CumSum(CumSum { rows, cols, exclusive, reverse }), vec![Some(x)], tensor)])
    })?;
    Ok(made.into_iter().map(Some).collect())
}
