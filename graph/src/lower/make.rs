//! Operators that make values from shapes and numbers.

use super::call::LoweringCall;
use super::{Lowering, Made};
use crate::ir::{Op, Scalar};
use crate::reference::{ReferenceData, ReferenceTensor};
use weir_types::ElementType;

/// Largest number of elements that are made as a constant.
const NUMBERS_MAX: usize = 1 << 22;

pub(super) fn shape(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let dims = lowering.dims(call.input(0)?);
    let rank = i64::try_from(dims.len()).unwrap_or(i64::MAX);
    let end = |name, default| {
        let at = call.int(name).unwrap_or(default);
        let at = if at < 0 { at.saturating_add(rank) } else { at };
        usize::try_from(at.clamp(0, rank)).unwrap_or(0)
    };
    let sizes: Vec<i64> = dims.iter().map(|dim| i64::try_from(*dim).unwrap_or(i64::MAX)).collect();
    let wanted = sizes.get(end("start", 0)..end("end", rank)).unwrap_or(&[]).to_vec();
    let tensor = call.tensor(ElementType::Int64, [wanted.len()])?;
    Ok(vec![Some(lowering.constant(ReferenceTensor::integers(tensor, wanted)))])
}

pub(super) fn size(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let elements = lowering.tensor(call.input(0)?).elements();
    let tensor = call.tensor(ElementType::Int64, [])?;
    Ok(vec![Some(
        lowering
            .constant(ReferenceTensor::integers(tensor, vec![i64::try_from(elements).unwrap_or(i64::MAX)])),
    )])
}

pub(super) fn constant_of_shape(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let sizes = lowering.integers(call, 0)?;
    let dims: Vec<usize> = sizes
        .iter()
        .map(|size| usize::try_from(*size))
        .collect::<Result<_, _>>()
        .map_err(|_| call.invalid(format!("there is no shape {sizes:?}")))?;
    let (element_type, scalar) =
        match call.node.attribute("value").and_then(|attribute| attribute.tensor.as_ref()) {
            None => (ElementType::Fp32, Scalar::Float(0.0)),
            Some(tensor) => {
                let (tensor, bytes) = crate::model::attribute_tensor(tensor)?;
                let element_type = tensor.element_type();
                let scalar =
                    ReferenceTensor::from_bytes(tensor, &bytes).and_then(|tensor| match tensor.data() {
                        ReferenceData::Floats(floats) => floats.first().copied().map(Scalar::Float),
                        ReferenceData::Integers(integers) => integers.first().copied().map(Scalar::Integer),
                    });
                (element_type, scalar.ok_or_else(|| call.invalid("its value is empty"))?)
            }
        };
    let output = call.tensor(element_type, dims)?;
    Ok(vec![Some(lowering.emit(Op::Fill(scalar), vec![], output))])
}

pub(super) fn range(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let element_type = lowering.element_type(call.input(0)?);
    let mut number = |place| {
        let id = call.input(place)?;
        lowering
            .scalar(id)
            .ok_or_else(|| call.unsupported("a range that depends on the contents of the model's inputs is"))
    };
    let made = match (number(0)?, number(1)?, number(2)?) {
        (Scalar::Integer(start), Scalar::Integer(limit), Scalar::Integer(step)) => {
            let count = steps(limit.saturating_sub(start) as f64, step as f64);
            let count =
                count.ok_or_else(|| call.invalid(format!("a range from {start} to {limit} by {step}")))?;
            let numbers = (0..count as i64).map(|at| start.wrapping_add(at.wrapping_mul(step))).collect();
            ReferenceTensor::integers(call.tensor(element_type, [count])?, numbers)
        }
        (Scalar::Float(start), Scalar::Float(limit), Scalar::Float(step)) => {
            let count = steps(f64::from(limit - start), step.into());
            let count =
                count.ok_or_else(|| call.invalid(format!("a range from {start} to {limit} by {step}")))?;
            let numbers = (0..count).map(|at| start + at as f32 * step).collect();
            ReferenceTensor::floats(call.tensor(element_type, [count])?, numbers)
        }
        _ => return Err(call.invalid("its ends differ in type")),
    };
    Ok(vec![Some(lowering.constant(made))])
}

/// Number of steps, if it is within the limit and the step is not 0.
fn steps(distance: f64, step: f64) -> Option<usize> {
    let count = (distance / step).ceil().max(0.0);
    (count <= NUMBERS_MAX as f64 && step != 0.0).then_some(count as usize)
}

/// Indices of the nonzero elements of a known value.
pub(super) fn non_zero(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let dims = lowering.dims(x);
    let contents = lowering.numbers(call, 0)?;
    let places: Vec<usize> = (0..contents.len()).filter(|at| contents[*at] != 0.0).collect();
    let mut rows: Vec<Vec<i64>> = Vec::with_capacity(dims.len());
    let mut inner: usize = dims.iter().product();
    for dim in &dims {
        inner /= (*dim).max(1);
        let along = |place: &usize| i64::try_from(place / inner.max(1) % (*dim).max(1)).unwrap_or(0);
        rows.push(places.iter().map(along).collect());
    }
    let tensor = call.tensor(ElementType::Int64, [dims.len(), places.len()])?;
    Ok(vec![Some(lowering.constant(ReferenceTensor::integers(tensor, rows.concat())))])
}
