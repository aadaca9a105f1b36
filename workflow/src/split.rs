//! Splits a tensor along its first dimension. Parts are ranges of its data, without a copy.

use crate::value::TensorView;
use std::ops::Range;
use weir_types::Shape;

/// Maximum number of parts of a split.
pub const PARTS_MAX: u32 = 16;

/// A part of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPart {
    /// The part's shape.
    pub shape: Shape,
    /// The range of its data in the data of the whole tensor.
    pub range: Range<usize>,
}

/// Splits a tensor into `parts` parts whose numbers of rows differ by at most one, larger parts
/// first. A tensor with fewer rows has fewer parts, none of them empty; a tensor without rows is
/// one part.
pub fn split(tensor: TensorView<'_>, parts: u32) -> Result<Vec<TensorPart>, String> {
    let [rows, rest @ ..] = tensor.shape.dimensions() else {
        return Err("a scalar cannot be split".to_owned());
    };
    let parts = parts.min(*rows).max(1);
    let mut data = Rows::new(tensor, *rows)?;
    let part = |number: u32| {
        let own = rows / parts + u32::from(number < rows % parts);
        let shape = Shape::new(&[&[own], rest].concat()).map_err(|error| error.to_string())?;
        Ok(TensorPart { shape, range: data.take(own) })
    };
    (0..parts).map(part).collect()
}

/// Walks over the data row by row.
struct Rows<'a> {
    tensor: TensorView<'a>,
    /// Elements per row.
    row_len: u64,
    at: usize,
}

impl<'a> Rows<'a> {
    fn new(tensor: TensorView<'a>, rows: u32) -> Result<Self, String> {
        tensor.shape.check(tensor.datatype, tensor.data).map_err(|error| error.to_string())?;
        Ok(Self { tensor, row_len: tensor.len() / u64::from(rows.max(1)), at: 0 })
    }

    fn take(&mut self, rows: u32) -> Range<usize> {
        let elements = usize::try_from(u64::from(rows) * self.row_len).unwrap_or(usize::MAX);
        let from = self.at;
        match self.tensor.datatype.size_bytes() {
            Some(size_bytes) => self.at += elements * size_bytes,
            None => (0..elements).for_each(|_| self.at += string_bytes(&self.tensor.data[self.at..])),
        }
        from..self.at
    }
}

/// Size of the first string of `data`, which is known to contain a string.
fn string_bytes(data: &[u8]) -> usize {
    data.first_chunk().map_or(0, |length| 4 + u32::from_le_bytes(*length) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_types::ElementType;

    #[test]
    fn string_tensors_split_at_row_boundaries() {
        let data = b"\x01\0\0\0a\x00\0\0\0\x02\0\0\0bc\x01\0\0\0d";
        let shape = Shape::new(&[2, 2]).unwrap();
        let parts = split(TensorView { datatype: ElementType::Bytes, shape: &shape, data }, 2).unwrap();
        assert_eq!(parts.iter().map(|part| part.range.clone()).collect::<Vec<_>>(), [0..9, 9..20]);
        assert!(
            split(TensorView { datatype: ElementType::Fp32, shape: &Shape::default(), data: &[0; 4] }, 2)
                .is_err()
        );
    }

    proptest! {
        #[test]
        fn split_parts_are_even_and_cover_the_tensor(rows in 0_u32..40, columns in 0_u32..4, parts in 1..=PARTS_MAX) {
            let shape = Shape::new(&[rows, columns]).unwrap();
            let data = vec![0; (rows * columns * 2) as usize];
            let split = split(TensorView { datatype: ElementType::Int16, shape: &shape, data: &data }, parts).unwrap();
            let sizes: Vec<_> = split.iter().map(|part| part.shape.dimensions()[0]).collect();
            prop_assert_eq!(sizes.iter().sum::<u32>(), rows);
            prop_assert_eq!(sizes.len() as u32, parts.min(rows).max(1));
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
            prop_assert!(sizes.is_sorted_by(|a, b| a >= b));
            let mut at = 0;
            for part in split {
                prop_assert_eq!(part.range.start, at);
                prop_assert_eq!(part.range.len() as u64, part.shape.element_count() * 2);
                at = part.range.end;
            }
            prop_assert_eq!(at, data.len());
        }
    }
}
