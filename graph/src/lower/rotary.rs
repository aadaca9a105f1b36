//! Rotary position embeddings (arXiv:2104.09864).

use super::call::LoweringCall;
use super::functions::{X, with};
use super::{Lowering, Made};
use crate::GraphError;
use crate::ir::{Binary, Instruction, NumberType, ValueId};

/// Lower `RotaryEmbedding`: pairs of a head's elements, rotated by the angles of their position.
pub(super) fn embedding(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let dims = lowering.dims(x);
    let heads = call.int("num_heads").and_then(|heads| usize::try_from(heads).ok()).unwrap_or(0);
    // The positions are the second dimension of a packed input, else the third.
    let (split, at) = match *dims.as_slice() {
        [batch, len, hidden] if heads > 0 && hidden.is_multiple_of(heads) => {
            ([batch, len, heads, hidden / heads], 1)
        }
        [batch, heads, len, head_dim] => ([batch, heads, len, head_dim], 2),
        _ => return Err(call.invalid(format!("{heads} heads do not fit {dims:?}"))),
    };
    let [batch, .., head_dim] = split;
    let len = split[at];
    let rotated = match call.int("rotary_embedding_dim").unwrap_or(0) {
        0 => head_dim,
        dim => usize::try_from(dim).unwrap_or(usize::MAX),
    };
    if rotated > head_dim || !rotated.is_multiple_of(2) || rotated == 0 {
        return Err(call.invalid(format!("{rotated} of {head_dim} elements cannot be rotated in pairs")));
    }
    let half = rotated / 2;
    let mut angles = [call.input(1)?, call.input(2)?];
    for angle in &mut angles {
        if let Some(positions) = call.optional(3) {
            if lowering.dims(*angle).len() != 2 {
                return Err(call.invalid("a cache with positions is not a matrix"));
            }
            *angle = lowering.gathered(call, *angle, positions, 0)?;
        }
        if lowering.dims(*angle) != [batch, len, half] {
            let why = format!("a cache of {} is not for {batch} sequences of {len}", lowering.tensor(*angle));
            return Err(call.invalid(why));
        }
        let along = if at == 1 { [batch, len, 1, half] } else { [batch, 1, len, half] };
        *angle = lowering.view(call, *angle, along)?;
    }
    let heads = lowering.view(call, x, split)?;
    let y = lowering.rotated(call, heads, angles, half)?;
    Ok(vec![Some(lowering.view(call, y, dims)?)])
}

impl Lowering<'_> {
    /// Rotate `half` pairs of the innermost elements; the rest stays.
    fn rotated(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        [cos, sin]: [ValueId; 2],
        half: usize,
    ) -> Result<ValueId, GraphError> {
        let dims = self.dims(x);
        let axis = dims.len() - 1;
        let head_dim = dims[axis];
        let is_interleaved = call.flag("interleaved");
        let (starts, step) = if is_interleaved { ([0, 1], 2) } else { ([0, half], 1) };
        let first = self.sliced(call, x, axis, starts[0], half, step)?;
        let second = self.sliced(call, x, axis, starts[1], half, step)?;
        let element_type = self.element_type(x);
        let mut turned = |[a, b]: [ValueId; 2], last| {
            // a * cos last b * sin
            let load = Instruction::Load;
            let code = vec![X, load(1), with(Binary::Mul), load(2), load(3), with(Binary::Mul), with(last)];
            self.elementwise(call, NumberType::Float, code, &[a, cos, b, sin], element_type)
        };
        let real = turned([first, second], Binary::Sub)?;
        let imaginary = turned([second, first], Binary::Add)?;
        let mut parts = if is_interleaved {
            let mut pair = self.dims(real);
            let whole: Vec<usize> = [&pair[..axis], &[2 * half]].concat();
            pair.push(1);
            let pairs = [self.view(call, real, pair.clone())?, self.view(call, imaginary, pair)?];
            let joined = self.joined(call, &pairs, axis + 1)?;
            vec![self.view(call, joined, whole)?]
        } else {
            vec![real, imaginary]
        };
        if 2 * half < head_dim {
            parts.push(self.sliced(call, x, axis, 2 * half, head_dim - 2 * half, 1)?);
        }
        self.joined(call, &parts, axis)
    }
}
