//! Combines several tensors into one, for ensembles and cascades without a function of the author.

use crate::value::TensorView;
use serde::{Deserialize, Serialize};
use std::fmt;
use weir_types::{ElementType, Shape};

/// How present tensors are combined into one. Absent tensors, from alternatives not taken, are
/// ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Combiner {
    /// The first tensor.
    First,
    /// The mean of each element.
    Mean,
    /// Votes: each tensor votes for the largest element of each row. The result is the share of
    /// votes of each element.
    Vote,
    /// For each row, the row of the tensor with the largest maximum in it: the most confident
    /// prediction.
    Best,
    /// All tensors, concatenated along the first dimension.
    Concat,
}

/// Compatible tensors, and the combiner for them.
#[derive(Debug, Clone)]
pub struct Combination<'a> {
    combiner: Combiner,
    tensors: Vec<TensorView<'a>>,
    /// The type of the result's elements.
    pub datatype: ElementType,
    /// The result's shape.
    pub shape: Shape,
    /// The result's size.
    pub bytes: usize,
}

impl Combiner {
    /// All combiners.
    pub const ALL: [Self; 5] = [Self::First, Self::Mean, Self::Vote, Self::Best, Self::Concat];

    /// Whether the result for this number of tensors is the first tensor, unchanged.
    #[must_use]
    pub fn passes_on(self, tensors: usize) -> bool {
        match self {
            Self::First => true,
            Self::Mean | Self::Best | Self::Concat => tensors == 1,
            Self::Vote => false,
        }
    }

    /// Whether the combiner computes with elements, which must then be `FP32` or `FP64`.
    pub(crate) fn computes(self) -> bool {
        matches!(self, Self::Mean | Self::Vote | Self::Best)
    }

    /// Whether tensors need a dimension: the last for rows, or the first for concatenation.
    pub(crate) fn needs_dimension(self) -> bool {
        matches!(self, Self::Vote | Self::Best | Self::Concat)
    }
}

impl fmt::Display for Combiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "first",
            Self::Mean => "mean",
            Self::Vote => "vote",
            Self::Best => "best",
            Self::Concat => "concat",
        })
    }
}

impl<'a> Combination<'a> {
    /// Checks that the tensors are compatible. An error describes the mismatch.
    pub fn new(combiner: Combiner, tensors: Vec<TensorView<'a>>) -> Result<Self, String> {
        let first = *tensors.first().ok_or("no tensor to combine")?;
        let datatype = first.datatype;
        let mut shape = first.shape.clone();
        let differs = |other: &TensorView<'_>| {
            format!("{}{} and {}{} do not fit", datatype, first.shape, other.datatype, other.shape)
        };
        if combiner.computes() && !is_float(datatype) {
            return Err(format!("{combiner} computes with FP32 and FP64, not with {datatype}"));
        }
        if combiner.needs_dimension() && first.shape.dimensions().is_empty() {
            return Err(format!("{combiner} takes tensors with dimensions, not scalars"));
        }
        match combiner {
            Combiner::First => {}
            Combiner::Mean | Combiner::Vote | Combiner::Best => {
                let is_other = |other: &&TensorView<'_>| other.datatype != datatype || *other.shape != shape;
                if let Some(other) = tensors.iter().find(is_other) {
                    return Err(differs(other));
                }
            }
            Combiner::Concat => {
                let mut rows = 0_u64;
                for other in &tensors {
                    let [own, rest @ ..] = other.shape.dimensions() else { return Err(differs(other)) };
                    if other.datatype != datatype || Some(rest) != shape.dimensions().get(1..) {
                        return Err(differs(other));
                    }
                    rows += u64::from(*own);
                }
                let rows =
                    u32::try_from(rows).map_err(|_| format!("{rows} rows are too many for one tensor"))?;
                let mut dimensions = shape.dimensions().to_vec();
                dimensions[0] = rows;
                shape = Shape::new(&dimensions).map_err(|error| error.to_string())?;
            }
        }
        let bytes = match combiner {
            Combiner::Concat => tensors.iter().map(|tensor| tensor.data.len()).sum(),
            _ => first.data.len(),
        };
        Ok(Self { combiner, tensors, datatype, shape, bytes })
    }

    /// Writes the result, of [`bytes`](Self::bytes) bytes, to the start of `out`.
    pub fn write(&self, out: &mut [u8]) {
        match (self.combiner, self.datatype) {
            (Combiner::Mean, ElementType::Fp64) => self.mean::<f64, 8>(out),
            (Combiner::Mean, _) => self.mean::<f32, 4>(out),
            (Combiner::Vote, ElementType::Fp64) => self.vote::<f64, 8>(out),
            (Combiner::Vote, _) => self.vote::<f32, 4>(out),
            (Combiner::Best, ElementType::Fp64) => self.best::<f64, 8>(out),
            (Combiner::Best, _) => self.best::<f32, 4>(out),
            (Combiner::First, _) => copy(self.tensors.iter().take(1), out),
            (Combiner::Concat, _) => copy(self.tensors.iter(), out),
        }
    }

    fn mean<T: Float<SIZE>, const SIZE: usize>(&self, out: &mut [u8]) {
        let count = self.tensors.len() as f64;
        for (at, place) in out.as_chunks_mut::<SIZE>().0.iter_mut().enumerate() {
            let sum: f64 = self.tensors.iter().filter_map(|tensor| element::<T, SIZE>(tensor, at)).sum();
            *place = T::bytes(sum / count);
        }
    }

    fn vote<T: Float<SIZE>, const SIZE: usize>(&self, out: &mut [u8]) {
        let share = 1.0 / self.tensors.len() as f64;
        let row_len = self.row_len();
        let places = out.as_chunks_mut::<SIZE>().0;
        for (row, places) in places.chunks_mut(row_len).enumerate() {
            let mut shares = vec![0.0; places.len()];
            for tensor in &self.tensors {
                if let Some((winner, _)) = largest::<T, SIZE>(tensor, row * row_len, row_len) {
                    shares[winner] += share;
                }
            }
            for (place, share) in places.iter_mut().zip(shares) {
                *place = T::bytes(share);
            }
        }
    }

    fn best<T: Float<SIZE>, const SIZE: usize>(&self, out: &mut [u8]) {
        let row_len = self.row_len();
        for (row, places) in out.chunks_mut(row_len * SIZE).enumerate() {
            let mut best: Option<(f64, &TensorView<'_>)> = None;
            for tensor in &self.tensors {
                let sure = largest::<T, SIZE>(tensor, row * row_len, row_len)
                    .map_or(f64::NEG_INFINITY, |(_, sure)| sure);
                if best.is_none_or(|(before, _)| sure > before) {
                    best = Some((sure, tensor));
                }
            }
            let from = row * row_len * SIZE;
            if let Some(row) = best.and_then(|(_, tensor)| tensor.data.get(from..from + places.len())) {
                places.copy_from_slice(row);
            }
        }
    }

    fn row_len(&self) -> usize {
        self.shape.dimensions().last().map_or(1, |len| (*len).max(1) as usize)
    }
}

fn copy<'a>(tensors: impl Iterator<Item = &'a TensorView<'a>>, out: &mut [u8]) {
    let mut at = 0;
    for tensor in tensors {
        let end = at + tensor.data.len();
        if let Some(place) = out.get_mut(at..end) {
            place.copy_from_slice(tensor.data);
        }
        at = end;
    }
}

/// The index and value of the first largest among `len` elements starting at `from`; `None` if all
/// are NaN.
fn largest<T: Float<SIZE>, const SIZE: usize>(
    tensor: &TensorView<'_>,
    from: usize,
    len: usize,
) -> Option<(usize, f64)> {
    let row = tensor.data.as_chunks::<SIZE>().0.get(from..from + len)?;
    let mut found: Option<(usize, f64)> = None;
    for (place, bytes) in row.iter().enumerate() {
        let value = T::value(*bytes);
        if !value.is_nan() && found.is_none_or(|(_, largest)| value > largest) {
            found = Some((place, value));
        }
    }
    found
}

fn element<T: Float<SIZE>, const SIZE: usize>(tensor: &TensorView<'_>, at: usize) -> Option<f64> {
    tensor.data.as_chunks::<SIZE>().0.get(at).map(|bytes| T::value(*bytes))
}

pub(crate) fn is_float(datatype: ElementType) -> bool {
    matches!(datatype, ElementType::Fp32 | ElementType::Fp64)
}

/// A float element type.
trait Float<const SIZE: usize> {
    fn value(bytes: [u8; SIZE]) -> f64;
    fn bytes(value: f64) -> [u8; SIZE];
}

impl Float<4> for f32 {
    fn value(bytes: [u8; 4]) -> f64 {
        Self::from_le_bytes(bytes).into()
    }
    #[expect(clippy::cast_possible_truncation, reason = "computed in f64, stored as f32")]
    fn bytes(value: f64) -> [u8; 4] {
        (value as Self).to_le_bytes()
    }
}

impl Float<8> for f64 {
    fn value(bytes: [u8; 8]) -> f64 {
        Self::from_le_bytes(bytes)
    }
    fn bytes(value: f64) -> [u8; 8] {
        value.to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fp32(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn combine(combiner: Combiner, shape: &[u32], tensors: &[&[f32]]) -> Vec<f32> {
        let (shape, data) =
            (Shape::new(shape).unwrap(), tensors.iter().map(|values| fp32(values)).collect::<Vec<_>>());
        let views =
            data.iter().map(|data| TensorView { datatype: ElementType::Fp32, shape: &shape, data }).collect();
        let combination = Combination::new(combiner, views).unwrap();
        let mut out = vec![0xAA; combination.bytes];
        combination.write(&mut out);
        out.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    #[test]
    fn combiners_compute_their_results() {
        let a = [0.5, 0.25, 0.25, 0.0];
        let b = [0.25, 0.5, 0.75, 0.25];
        let c = [0.0, 1.0, 0.125, f32::NAN];
        let all: &[&[f32]] = &[&a, &b, &c];
        assert_eq!(combine(Combiner::Mean, &[2, 2], &[&a, &b]), [0.375, 0.375, 0.5, 0.125]);
        assert_eq!(combine(Combiner::Best, &[2, 2], all), [0.0, 1.0, 0.75, 0.25]);
        assert_eq!(combine(Combiner::First, &[2, 2], all), a);
        assert_eq!(combine(Combiner::Concat, &[1, 4], &[&a, &b]), [a, b].concat());
        let third = 1.0_f32 / 3.0;
        let votes = combine(Combiner::Vote, &[2, 2], all);
        let expected = [third, 2.0 * third, 1.0, 0.0];
        assert!(
            votes.iter().zip(expected).all(|(vote, expected)| (vote - expected).abs() < 1e-6),
            "{votes:?}"
        );
    }

    #[test]
    fn incompatible_tensors_are_rejected() {
        let two = Shape::new(&[2]).unwrap();
        let three = Shape::new(&[3]).unwrap();
        let scalar = Shape::default();
        let view = |datatype, shape, data| TensorView { datatype, shape, data };
        let floats = view(ElementType::Fp32, &two, &[0; 8][..]);
        let ints = view(ElementType::Int32, &two, &[0; 8]);
        let longer = view(ElementType::Fp32, &three, &[0; 12]);
        let one = view(ElementType::Fp32, &scalar, &[0; 4]);
        let wide = Shape::new(&[2, 1]).unwrap();
        let why = |combiner, tensors: &[TensorView<'_>]| {
            Combination::new(combiner, tensors.to_vec()).map(drop).unwrap_err()
        };
        assert!(why(Combiner::Mean, &[]).contains("no tensor"));
        assert!(why(Combiner::Mean, &[ints]).contains("not with INT32"));
        assert!(why(Combiner::Mean, &[floats, longer]).contains("do not fit"));
        assert!(why(Combiner::Concat, &[floats, ints]).contains("do not fit"));
        assert!(
            why(Combiner::Concat, &[floats, view(ElementType::Fp32, &wide, &[0; 8])]).contains("do not fit")
        );
        for combiner in [Combiner::Vote, Combiner::Best, Combiner::Concat] {
            assert!(why(combiner, &[one]).contains("scalars"), "{combiner}");
        }
    }

    proptest! {
        #[test]
        fn combining_copies_of_a_tensor_returns_it(values in prop::collection::vec(-1e3_f32..1e3, 6), copies in 1_usize..5) {
            let tensors = vec![values.as_slice(); copies];
            for combiner in [Combiner::First, Combiner::Best] {
                prop_assert_eq!(&combine(combiner, &[2, 3], &tensors), &values);
            }
            for (mean, value) in combine(Combiner::Mean, &[2, 3], &tensors).iter().zip(&values) {
                prop_assert!((mean - value).abs() <= value.abs() * 1e-6);
            }
            prop_assert_eq!(combine(Combiner::Concat, &[2, 3], &tensors), tensors.concat());
            for row in combine(Combiner::Vote, &[2, 3], &tensors).chunks(3) {
                prop_assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6);
            }
        }
    }
}
