//! Sampling of images at given coordinates.

use super::call::LoweringCall;
use super::functions::{X, apply, number, with};
use super::index::MASK_ELEMENTS_MAX;
use super::{Lowering, Made};
use crate::GraphError;
use crate::ir::{Binary, Instruction, NumberType, Scalar, Unary, ValueId};
use crate::reference::ReferenceTensor;
use weir_types::ElementType;

/// Treatment of coordinates outside the image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outside {
    Zeros,
    Border,
    Reflection,
}

/// Lower `GridSample` of images: the output is a gather of rows of channels, for each of the four
/// neighbours of a coordinate.
pub(super) fn grid_sample(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let grid = call.input(1)?;
    let dims = lowering.dims(x);
    let grid_dims = lowering.dims(grid);
    let (&[batch, channels, height, width], &[grids, rows, columns, 2]) =
        (dims.as_slice(), grid_dims.as_slice())
    else {
        return Err(call.unsupported(format!("images of {dims:?} with a grid of {grid_dims:?} are")));
    };
    if grids != batch || [batch, channels, height, width, rows, columns].contains(&0) {
        return Err(call.invalid(format!("a grid of {grid_dims:?} is not for images of {dims:?}")));
    }
    let is_nearest = match call.text("mode", "linear")? {
        "linear" | "bilinear" => false,
        "nearest" => true,
        other => return Err(call.unsupported(format!("the mode {other:?} is"))),
    };
    let outside = match call.text("padding_mode", "zeros")? {
        "zeros" => Outside::Zeros,
        "border" => Outside::Border,
        "reflection" => Outside::Reflection,
        other => return Err(call.invalid(format!("there is no padding {other:?}"))),
    };
    let points = rows * columns;
    if batch.saturating_mul(points) > MASK_ELEMENTS_MAX {
        return Err(call.unsupported(format!("a grid of {grid_dims:?} is")));
    }
    let pixels = lowering.view(call, x, [batch, channels, height * width])?;
    let pixels = lowering.transposed(call, pixels, &[0, 2, 1])?;
    let pixels = lowering.view(call, pixels, [batch * height * width, channels])?;
    let grid = lowering.view(call, grid, [batch * points, 2])?;
    let mut sides = Vec::with_capacity(2);
    for (place, size) in [(1, height), (0, width)] {
        let side = GridSide { size, outside, are_aligned: call.flag("align_corners"), is_nearest };
        let coordinates = lowering.sliced(call, grid, 1, place, 1, 1)?;
        sides.push(lowering.taps(call, coordinates, &side)?);
    }
    let [vertical, horizontal] = <[Vec<Tap>; 2]>::try_from(sides).map_err(|_| call.invalid("two sides"))?;
    let bases = (0..batch).flat_map(|image| std::iter::repeat_n((image * height * width) as i64, points));
    let tensor = call.tensor(ElementType::Int64, [batch * points, 1])?;
    let bases = lowering.constant(ReferenceTensor::integers(tensor, bases.collect()));
    let mut sum: Option<ValueId> = None;
    for row in &vertical {
        for column in &horizontal {
            // base + row * width + column
            let step = Instruction::Constant(Scalar::Integer(i64::try_from(width).unwrap_or(i64::MAX)));
            let load = Instruction::Load;
            let code =
                vec![load(2), X, step, with(Binary::Mul), with(Binary::Add), load(1), with(Binary::Add)];
            let operands = [row.index, column.index, bases];
            let index =
                lowering.elementwise(call, NumberType::Integer, code, &operands, ElementType::Int64)?;
            let index = lowering.view(call, index, [batch * points])?;
            let pixel = lowering.gathered(call, pixels, index, 0)?;
            sum = Some(lowering.weighted(call, pixel, [row.weight, column.weight], sum)?);
        }
    }
    let y = sum.ok_or_else(|| call.invalid("no neighbours"))?;
    let y = lowering.view(call, y, [batch, points, channels])?;
    let y = lowering.transposed(call, y, &[0, 2, 1])?;
    Ok(vec![Some(lowering.view(call, y, [batch, channels, rows, columns])?)])
}

/// One side of an image.
struct GridSide {
    size: usize,
    outside: Outside,
    are_aligned: bool,
    is_nearest: bool,
}

/// A neighbour of each coordinate, along one side of the image.
struct Tap {
    index: ValueId,
    /// Its weight; `None` for 1.
    weight: Option<ValueId>,
}

impl GridSide {
    /// Program of the position in pixels of the coordinate in operand 0.
    fn position(&self) -> Vec<Instruction> {
        let size = self.size as f32;
        let one = [X, number(1.0), with(Binary::Add)];
        let mut code = one.to_vec();
        if self.are_aligned {
            code.extend([number((size - 1.0) / 2.0), with(Binary::Mul)]);
        } else {
            let half = [number(2.0), with(Binary::Div)];
            code.extend([number(size), with(Binary::Mul), number(1.0), with(Binary::Sub)]);
            code.extend(half);
        }
        if self.is_nearest {
            code.push(apply(Unary::Round));
        }
        match self.outside {
            Outside::Zeros => {}
            Outside::Border => code.extend(self.clamped()),
            Outside::Reflection => code = self.reflected(&code),
        }
        code
    }

    /// Instructions that limit the top of the stack to the pixels of the image.
    fn clamped(&self) -> [Instruction; 4] {
        [number(0.0), with(Binary::Max), number(self.size as f32 - 1.0), with(Binary::Min)]
    }

    /// Program that reflects the result of another program at the edges.
    fn reflected(&self, code: &[Instruction]) -> Vec<Instruction> {
        let size = self.size as f32;
        let (low, range) = if self.are_aligned { (0.0, size - 1.0) } else { (-0.5, size) };
        if range == 0.0 {
            return vec![number(0.0)];
        }
        // low + range - | |position - low| mod (2 * range) - range |
        let mut all = vec![number(low + range)];
        all.extend_from_slice(code);
        all.extend([number(low), with(Binary::Sub), apply(Unary::Abs)]);
        all.extend([number(2.0 * range), with(Binary::Fmod)]);
        all.extend([number(range), with(Binary::Sub), apply(Unary::Abs), with(Binary::Sub)]);
        all
    }
}

impl Lowering<'_> {
    /// The neighbours of coordinates of `[points, 1]`.
    fn taps(
        &mut self,
        call: &LoweringCall<'_>,
        coordinates: ValueId,
        side: &GridSide,
    ) -> Result<Vec<Tap>, GraphError> {
        let element_type = self.element_type(coordinates);
        let mut float = |code: Vec<Instruction>, operand, made| {
            self.elementwise(call, NumberType::Float, code, &[operand], made)
        };
        let position = float(side.position(), coordinates, element_type)?;
        let mut taps = Vec::new();
        for step in if side.is_nearest { 0..1 } else { 0..2 } {
            let neighbour = vec![X, apply(Unary::Floor), number(step as f32), with(Binary::Add)];
            let mut code = neighbour.clone();
            if side.outside == Outside::Reflection {
                code = side.reflected(&code);
            }
            code.extend(side.clamped());
            let index = float(code, position, ElementType::Int64)?;
            // The weight of the lower neighbour is 1 - (position - floor), of the upper the rest.
            let mut weight = vec![];
            if !side.is_nearest {
                let rest = [X, X, apply(Unary::Floor), with(Binary::Sub)];
                if step == 0 {
                    weight.push(number(1.0));
                }
                weight.extend(rest);
                weight.extend((step == 0).then_some(with(Binary::Sub)));
            }
            if side.outside == Outside::Zeros {
                let is_factor = !weight.is_empty();
                weight.extend(neighbour.iter().copied());
                weight.extend([number(0.0), with(Binary::GreaterEqual)]);
                weight.extend(neighbour);
                weight.extend([number(side.size as f32 - 1.0), with(Binary::LessEqual), with(Binary::And)]);
                weight.extend(is_factor.then_some(with(Binary::Mul)));
            }
            let weight = if weight.is_empty() { None } else { Some(float(weight, position, element_type)?) };
            taps.push(Tap { index, weight });
        }
        Ok(taps)
    }

    /// Add `pixel`, times its weights, to a sum.
    fn weighted(
        &mut self,
        call: &LoweringCall<'_>,
        pixel: ValueId,
        weights: [Option<ValueId>; 2],
        sum: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        let mut code = vec![X];
        let mut operands = vec![pixel];
        for weight in weights.into_iter().flatten() {
            code.extend([Instruction::Load(operands.len() as u8), with(Binary::Mul)]);
            operands.push(weight);
        }
        if let Some(sum) = sum {
            code.extend([Instruction::Load(operands.len() as u8), with(Binary::Add)]);
            operands.push(sum);
        }
        if code.len() == 1 {
            return Ok(pixel);
        }
        let element_type = self.element_type(pixel);
        self.elementwise(call, NumberType::Float, code, &operands, element_type)
    }
}
