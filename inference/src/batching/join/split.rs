//! Splitting the outputs of several jobs that ran as one.

use super::{JobShare, JoinedJobs, rows};
use crate::error::InferenceError;
use crate::tensor::{Tensor, TensorError};
use weir_device::{Arena, ArenaExhausted, Buffer};
use weir_types::{Port, Shape, Signature};

impl JoinedJobs {
    /// Each job's outputs, in its requested order. Outputs are views into `outputs`, except where
    /// padding must be cut out of the middle. `None` if the number of items in an output differs
    /// from the inputs.
    pub(crate) fn part(
        &self,
        outputs: &[Tensor],
        signature: &Signature,
        arena: &Arena,
    ) -> Result<Option<Vec<Vec<Tensor>>>, InferenceError> {
        let mut own = Vec::with_capacity(self.parts.len());
        let mut from = 0_u32;
        let split: Option<Vec<Split<'_>>> =
            outputs.iter().map(|tensor| Split::new(tensor, self.items)).collect();
        let Some(split) = split else { return Ok(None) };
        for part in &self.parts {
            let mut tensors = Vec::with_capacity(part.outputs.len());
            for position in &part.outputs {
                let found = self.job.outputs.iter().position(|output| output == position);
                let (Some(split), Some(port)) =
                    (found.and_then(|found| split.get(found)), signature.outputs.get(*position))
                else {
                    return Ok(None);
                };
                let Some(tensor) = split.items(from, part.items)? else { return Ok(None) };
                let Some(tensor) = self.cut(tensor, port, part, arena)? else { return Ok(None) };
                tensors.push(tensor);
            }
            own.push(tensors);
            from += part.items;
        }
        Ok(Some(own))
    }

    /// Removes the padding from variable dimensions that have the padded length.
    fn cut(
        &self,
        mut tensor: Tensor,
        port: &Port,
        part: &JobShare,
        arena: &Arena,
    ) -> Result<Option<Tensor>, InferenceError> {
        let (Some(length), Some(own)) = (self.length, part.length) else { return Ok(Some(tensor)) };
        if length == own {
            return Ok(Some(tensor));
        }
        for axis in 1..port.shape.len() {
            let is_padded =
                port.shape.get(axis) == Some(&None) && tensor.shape().dimensions().get(axis) == Some(&length);
            if is_padded {
                let Some(shorter) = shorten(&tensor, axis, own, arena)? else { return Ok(None) };
                tensor = shorter;
            }
        }
        Ok(Some(tensor))
    }
}

/// An output that can be split by item.
struct Split<'a> {
    tensor: &'a Tensor,
    /// Start of each item and end of the last one. Items of numeric outputs have equal lengths.
    offsets: Offsets,
}

enum Offsets {
    Every(usize),
    At(Vec<usize>),
}

impl<'a> Split<'a> {
    fn new(tensor: &'a Tensor, items: u32) -> Option<Self> {
        if *tensor.shape().dimensions().first()? != items {
            return None;
        }
        let offsets = match tensor.element_type().size_bytes() {
            Some(_) => Offsets::Every(rows(tensor)?.1),
            None => Offsets::At(string_offsets(tensor, items)?),
        };
        Some(Self { tensor, offsets })
    }

    /// A view of `count` items.
    fn items(&self, from: u32, count: u32) -> Result<Option<Tensor>, InferenceError> {
        let mut dimensions = self.tensor.shape().dimensions().to_vec();
        if let Some(size) = dimensions.first_mut() {
            *size = count;
        }
        let at = |item: u32| {
            let item = usize::try_from(item).ok()?;
            match &self.offsets {
                Offsets::Every(bytes) => item.checked_mul(*bytes),
                Offsets::At(offsets) => offsets.get(item).copied(),
            }
        };
        let (Some(start), Some(end)) = (at(from), at(from + count)) else { return Ok(None) };
        let data = self.tensor.data();
        if start > end || end > data.len() {
            return Ok(None);
        }
        let shape = Shape::new(&dimensions).map_err(TensorError::from)?;
        Ok(Some(Tensor::new(self.tensor.element_type(), shape, data.slice(start..end))?))
    }
}

/// Offsets at which the strings of each item begin.
fn string_offsets(tensor: &Tensor, items: u32) -> Option<Vec<usize>> {
    let per_item = tensor.shape().element_count().checked_div(u64::from(items))?;
    let mut offsets = vec![0];
    let mut at = 0_usize;
    for _ in 0..items {
        for _ in 0..per_item {
            let length = tensor.data().get(at..)?.first_chunk::<4>()?;
            at += size_of::<u32>() + u32::from_le_bytes(*length) as usize;
        }
        offsets.push(at);
    }
    Some(offsets)
}

/// The first `own` elements along `axis`; a view where they are contiguous. `None` for strings.
fn shorten(tensor: &Tensor, axis: usize, own: u32, arena: &Arena) -> Result<Option<Tensor>, InferenceError> {
    let Some(element_bytes) = tensor.element_type().size_bytes() else { return Ok(None) };
    let mut dimensions = tensor.shape().dimensions().to_vec();
    let Some(size) = dimensions.get_mut(axis) else { return Ok(None) };
    let before = std::mem::replace(size, own) as usize;
    let shape = Shape::new(&dimensions).map_err(TensorError::from)?;
    let product = |sizes: &[u32]| sizes.iter().map(|size| *size as usize).product::<usize>();
    let outer = product(dimensions.get(..axis).unwrap_or_default());
    let inner = product(dimensions.get(axis + 1..).unwrap_or_default()) * element_bytes;
    let kept = own as usize * inner;
    let whole = before * inner;
    if kept > whole || outer.checked_mul(whole) != Some(tensor.data().len()) {
        return Ok(None);
    }
    let data =
        if outer == 1 { tensor.data().slice(..kept) } else { strided(tensor, (outer, whole, kept), arena)? };
    Ok(Some(Tensor::new(tensor.element_type(), shape, data)?))
}

fn strided(
    tensor: &Tensor,
    (outer, whole, kept): (usize, usize, usize),
    arena: &Arena,
) -> Result<Buffer, ArenaExhausted> {
    let mut data = arena.with_capacity(outer * kept)?;
    for row in 0..outer {
        data.extend_from_slice(tensor.data().get(row * whole..row * whole + kept).unwrap_or_default())?;
    }
    Ok(data.freeze())
}
