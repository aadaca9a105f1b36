//! Image resizing.

use super::call::LoweringCall;
use super::{Lowering, Made};
use crate::GraphError;
use crate::ir::{Coordinates, Nearest, NumberType, Op, Resize, ResizeMode, ValueId};

/// Requested scales and sizes.
struct Wanted {
    scales: Vec<f32>,
    sizes: Vec<usize>,
}

pub(super) fn resize(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let dims = lowering.dims(x);
    // Opset 10 had no region of interest before the scales.
    let (scales_at, sizes_at) = if call.opset < 11 { (1, None) } else { (2, Some(3)) };
    let scales = match call.optional(scales_at) {
        Some(_) => lowering.numbers(call, scales_at)?,
        None => vec![],
    };
    let sizes = match sizes_at.filter(|at| call.optional(*at).is_some()) {
        Some(at) => lowering.integers(call, at)?,
        None => vec![],
    };
    if call.flag("antialias") || call.text("keep_aspect_ratio_policy", "stretch")? != "stretch" {
        return Err(call.unsupported("antialiasing, or keeping the ratio of height and width, is"));
    }
    let axes = match call.ints("axes") {
        Some(axes) => axes.iter().map(|axis| call.axis(*axis, dims.len())).collect::<Result<Vec<_>, _>>()?,
        None => (0..dims.len()).collect(),
    };
    let wanted = wanted(call, &dims, &axes, &scales, &sizes)?;
    let (default, nearest) =
        if call.opset < 11 { ("asymmetric", "floor") } else { ("half_pixel", "round_prefer_floor") };
    let coordinates = match call.text("coordinate_transformation_mode", default)? {
        "half_pixel" => Coordinates::HalfPixel,
        "half_pixel_symmetric" => Coordinates::HalfPixelSymmetric,
        "pytorch_half_pixel" => Coordinates::PytorchHalfPixel,
        "align_corners" => Coordinates::AlignCorners,
        "asymmetric" => Coordinates::Asymmetric,
        "tf_half_pixel_for_nn" => Coordinates::TfHalfPixelForNearest,
        other => return Err(call.unsupported(format!("the coordinate transformation {other:?} is"))),
    };
    let nearest = match call.text("nearest_mode", nearest)? {
        "round_prefer_ceil" => Nearest::RoundPreferCeil,
        "floor" => Nearest::Floor,
        "ceil" => Nearest::Ceil,
        _ => Nearest::RoundPreferFloor,
    };
    Ok(vec![Some(lowering.resized(call, x, &wanted, coordinates, nearest)?)])
}

/// Lower `Upsample`, the predecessor of `Resize`.
pub(super) fn upsample(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let dims = lowering.dims(x);
    let scales = match call.floats("scales") {
        Some(scales) => scales.to_vec(),
        None => lowering.numbers(call, 1)?,
    };
    let axes: Vec<usize> = (0..dims.len()).collect();
    let wanted = wanted(call, &dims, &axes, &scales, &[])?;
    Ok(vec![Some(lowering.resized(call, x, &wanted, Coordinates::Asymmetric, Nearest::Floor)?)])
}

/// Scale and size of every dimension, from those of `axes`.
fn wanted(
    call: &LoweringCall<'_>,
    dims: &[usize],
    axes: &[usize],
    scales: &[f32],
    sizes: &[i64],
) -> Result<Wanted, GraphError> {
    let mut wanted = Wanted { scales: vec![1.0; dims.len()], sizes: dims.to_vec() };
    if sizes.len() == axes.len() && !sizes.is_empty() {
        for (axis, size) in axes.iter().zip(sizes) {
            let size = usize::try_from(*size).ok().filter(|size| *size > 0);
            wanted.sizes[*axis] = size.ok_or_else(|| call.invalid(format!("{sizes:?} is no size")))?;
            wanted.scales[*axis] = wanted.sizes[*axis] as f32 / dims[*axis].max(1) as f32;
        }
    } else if scales.len() == axes.len() && sizes.is_empty() {
        for (axis, scale) in axes.iter().zip(scales) {
            let size = (dims[*axis] as f64 * f64::from(*scale)).floor();
            if !(*scale > 0.0 && size >= 1.0 && size <= super::call::SIZE_MAX as f64) {
                return Err(call.invalid(format!("{dims:?} cannot be scaled by {scales:?}")));
            }
            wanted.sizes[*axis] = size as usize;
            wanted.scales[*axis] = *scale;
        }
    } else {
        return Err(call.invalid(format!(
            "neither its scales {scales:?} nor its sizes {sizes:?} are for {} dimensions",
            axes.len()
        )));
    }
    Ok(wanted)
}

impl Lowering<'_> {
    fn resized(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        wanted: &Wanted,
        coordinates: Coordinates,
        nearest: Nearest,
    ) -> Result<ValueId, GraphError> {
        let dims = self.dims(x);
        let element_type = self.element_type(x);
        let mode = match call.text("mode", "nearest")? {
            "nearest" => ResizeMode::Nearest(nearest),
            "linear" | "bilinear" => ResizeMode::Linear,
            other => return Err(call.unsupported(format!("the mode {other:?} is"))),
        };
        if NumberType::for_element_type(element_type) == NumberType::Integer {
            return Err(call.unsupported(format!("elements of type {element_type} are")));
        }
        // The last two dimensions at most are spatial; all others must keep their size.
        let spatial = dims.len().saturating_sub(2).min(2);
        let (outer, inner) = dims.split_at(dims.len() - spatial);
        if wanted.sizes.get(..outer.len()) != Some(outer) || inner.contains(&0) || spatial == 0 {
            return Err(call.unsupported(format!("making {dims:?} into {:?} is", wanted.sizes)));
        }
        let picture = |sizes: &[usize]| match sizes {
            &[.., height, width] if spatial == 2 => [height, width],
            &[.., width] => [1, width],
            [] => [1, 1],
        };
        let planes = outer.iter().product();
        let [height, width] = picture(inner);
        let [out_height, out_width] = picture(&wanted.sizes);
        let scales = match wanted.scales.as_slice() {
            &[.., down, across] if spatial == 2 => [down, across],
            &[.., across] => [1.0, across],
            [] => [1.0, 1.0],
        };
        let x = self.view(call, x, [1, planes, height, width])?;
        let output = call.tensor(element_type, [1, planes, out_height, out_width])?;
        let y = self.emit(Op::Resize(Resize { mode, coordinates, scales }), vec![Some(x)], output);
        self.view(call, y, wanted.sizes.clone())
    }
}
