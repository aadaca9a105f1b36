//! A block of elements to move, in as few and as large pieces as possible.

use super::super::limits::{BLOCKS_MAX, size, stride};
use crate::fields::Fields;
use weir_graph::CopyPart;

/// Largest piece that a kernel moves at once.
const PIECE_BYTES_MAX: u64 = 16;
/// Smallest number of rows and columns for tiles of 32 x 32; with fewer, tiles would be mostly
/// empty.
const TRANSPOSED_MIN: u32 = 8;

/// Source and destination of elements. Dimensions are ordered from the outermost; no two neighbours
/// can be merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CopyWindow {
    pub(super) sizes: Vec<u32>,
    pub(super) from: Vec<i64>,
    pub(super) to: Vec<i64>,
    pub(super) from_offset: i64,
    pub(super) to_offset: i64,
}

/// A window that is a batch of transposed matrices. Columns are contiguous in the source, rows in
/// the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transposition {
    pub(super) rows: u32,
    pub(super) columns: u32,
    pub(super) batches: u32,
    from_row: i64,
    to_column: i64,
    from_batch: i64,
    to_batch: i64,
}

impl CopyWindow {
    pub(super) fn from_part(part: &CopyPart) -> Result<Self, String> {
        let from = &part.from.strides;
        let to = &part.to.strides;
        if from.len() != part.dims.len() || to.len() != part.dims.len() {
            return Err("with strides that are not as many as its dimensions".to_owned());
        }
        let mut window = Self {
            sizes: Vec::new(),
            from: Vec::new(),
            to: Vec::new(),
            from_offset: stride(part.from.offset)?,
            to_offset: stride(part.to.offset)?,
        };
        for ((dim, from), to) in part.dims.iter().zip(from).zip(to).filter(|((dim, _), _)| **dim != 1) {
            window.push(size("dimension", *dim)?, *from as i64, *to as i64);
        }
        if window.sizes.is_empty() {
            window.push(1, 1, 1);
        }
        Ok(window)
    }

    /// Add an innermost dimension; merges it with the last one if both are contiguous.
    fn push(&mut self, size: u32, from: i64, to: i64) {
        if let (Some(last), Some(last_from), Some(last_to)) =
            (self.sizes.last_mut(), self.from.last_mut(), self.to.last_mut())
        {
            let follows = *last_from == from * i64::from(size) && *last_to == to * i64::from(size);
            if let Some(merged) = last.checked_mul(size).filter(|_| follows) {
                (*last, *last_from, *last_to) = (merged, from, to);
                return;
            }
        }
        self.sizes.push(size);
        self.from.push(from);
        self.to.push(to);
    }

    /// Check that the window is inside buffers of these sizes, in elements.
    pub(super) fn check(&self, from_elements: usize, to_elements: usize) -> Result<(), String> {
        let inside = |offset: i64, strides: &[i64], elements: usize| {
            let reach = |pick: fn(i64, i64) -> i64| {
                let along = self
                    .sizes
                    .iter()
                    .zip(strides)
                    .map(|(size, stride)| pick(0, i64::from(size - 1) * stride));
                offset + along.sum::<i64>()
            };
            reach(i64::min) >= 0 && usize::try_from(reach(i64::max)).is_ok_and(|last| last < elements)
        };
        if inside(self.from_offset, &self.from, from_elements)
            && inside(self.to_offset, &self.to, to_elements)
        {
            Ok(())
        } else {
            Err("of elements that are not there".to_owned())
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.sizes.iter().map(|size| u64::from(*size)).product()
    }

    /// Widen elements to the largest pieces of contiguous neighbours; returns the window of pieces,
    /// and the size of a piece in bytes.
    pub(super) fn widened(mut self, element_bytes: u64) -> (Self, u64) {
        let outer = self.sizes.len() - 1;
        if self.from[outer] != 1 || self.to[outer] != 1 {
            return (self, element_bytes);
        }
        let aligned = |pieces: i64| {
            let distances = self.from[..outer].iter().chain(&self.to[..outer]);
            let mut all = distances.chain([&self.from_offset, &self.to_offset]);
            i64::from(self.sizes[outer]) % pieces == 0 && all.all(|distance| distance % pieces == 0)
        };
        let mut pieces = (PIECE_BYTES_MAX / element_bytes).cast_signed();
        while !aligned(pieces) {
            pieces /= 2;
        }
        self.sizes[outer] /= pieces as u32;
        self.from[..outer].iter_mut().chain(&mut self.to[..outer]).for_each(|distance| *distance /= pieces);
        self.from_offset /= pieces;
        self.to_offset /= pieces;
        (self, element_bytes * pieces.cast_unsigned())
    }

    /// The transposition that the window performs, if it is one.
    pub(super) fn transposition(&self) -> Option<Transposition> {
        let at = |strides: &[i64]| strides.iter().position(|stride| *stride == 1);
        let row = at(&self.to)?;
        let column = at(&self.from)?;
        let mut others = (0..self.sizes.len()).filter(|dim| *dim != row && *dim != column);
        let batch = others.next();
        if row == column || others.next().is_some() {
            return None;
        }
        let batches = batch.map_or(1, |batch| self.sizes[batch]);
        let found = Transposition {
            rows: self.sizes[row],
            columns: self.sizes[column],
            batches,
            from_row: self.from[row],
            to_column: self.to[column],
            from_batch: batch.map_or(0, |batch| self.from[batch]),
            to_batch: batch.map_or(0, |batch| self.to[batch]),
        };
        let worth_it = found.rows.min(found.columns) >= TRANSPOSED_MIN && batches <= BLOCKS_MAX;
        worth_it.then_some(found)
    }
}

impl Transposition {
    /// `TransposeShape` in `copy.cu`.
    pub(super) fn fields(&self, window: &CopyWindow) -> Fields {
        Fields::default()
            .i64(window.from_offset)
            .i64(window.to_offset)
            .i64(self.from_batch)
            .i64(self.to_batch)
            .i64(self.from_row)
            .i64(self.to_column)
            .u32(self.rows)
            .u32(self.columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_graph::BlockLayout;

    fn part(dims: &[usize], from: &[isize], to: &[isize]) -> CopyPart {
        let layout = |strides: &[isize]| BlockLayout { offset: 0, strides: strides.to_vec() };
        CopyPart { input: 0, dims: dims.to_vec(), from: layout(from), to: layout(to) }
    }

    #[test]
    fn contiguous_copy_is_one_dimension_of_wide_pieces() {
        let window = CopyWindow::from_part(&part(&[2, 1, 3, 8], &[24, 24, 8, 1], &[24, 7, 8, 1])).unwrap();
        assert_eq!((window.sizes.as_slice(), window.count()), (&[48][..], 48));
        let (wide, bytes) = window.widened(4);
        assert_eq!((wide.sizes, bytes), (vec![12], 16));
    }

    #[test]
    fn swapped_heads_and_positions_move_in_wide_pieces() {
        // [positions 5, heads 3, 64] to [heads, positions, 64].
        let window = CopyWindow::from_part(&part(&[3, 5, 64], &[64, 192, 1], &[320, 64, 1])).unwrap();
        let (wide, bytes) = window.widened(2);
        assert_eq!(
            (wide.sizes.as_slice(), wide.from.as_slice(), bytes),
            (&[3, 5, 8][..], &[8, 24, 1][..], 16)
        );
    }

    #[test]
    fn transposition_is_detected() {
        let window = CopyWindow::from_part(&part(&[7, 40, 50], &[2000, 1, 40], &[2000, 50, 1])).unwrap();
        let found = window.transposition().unwrap();
        assert_eq!((found.rows, found.columns, found.batches), (50, 40, 7));
        assert_eq!(
            CopyWindow::from_part(&part(&[40, 50], &[50, 1], &[64, 1])).unwrap().transposition(),
            None
        );
    }

    #[test]
    fn window_past_end_of_buffer_is_rejected() {
        let backwards = CopyWindow::from_part(&CopyPart {
            from: BlockLayout { offset: 9, strides: vec![-1] },
            ..part(&[10], &[1], &[1])
        })
        .unwrap();
        backwards.check(10, 10).unwrap();
        backwards.check(9, 10).unwrap_err();
        backwards.check(10, 9).unwrap_err();
    }

    /// Every move of the window as the source and the destination in bytes, by iteration over all
    /// dimensions.
    fn moves(sizes: &[u32], from: &[i64], to: &[i64], offsets: (i64, i64), bytes: i64) -> Vec<(i64, i64)> {
        let mut moves = vec![offsets];
        for ((size, from), to) in sizes.iter().zip(from).zip(to) {
            let along = |(a, b): (i64, i64)| (0..i64::from(*size)).map(move |i| (a + i * from, b + i * to));
            moves = moves.into_iter().flat_map(along).collect();
        }
        let each = |(a, b): (i64, i64)| (0..bytes).map(move |byte| (a * bytes + byte, b * bytes + byte));
        let mut moves: Vec<_> = moves.into_iter().flat_map(each).collect();
        moves.sort_unstable();
        moves
    }

    proptest! {
        #[test]
        fn merging_and_widening_preserve_moves(
            dims in prop::collection::vec((1_usize..6, -3_isize..9, 0_isize..9), 1..5),
            offsets in (40_usize..60, 0_usize..9),
            contiguous in any::<bool>(),
            bytes in prop::sample::select(vec![1_u64, 2, 4, 8]),
        ) {
            let sizes: Vec<usize> = dims.iter().map(|(size, _, _)| *size).collect();
            let in_order: Vec<isize> = weir_graph::row_major(&sizes).iter().map(|stride| *stride as isize).collect();
            let from = if contiguous { in_order.clone() } else { dims.iter().map(|(_, from, _)| *from).collect() };
            let to = if contiguous { in_order } else { dims.iter().map(|(_, _, to)| *to).collect() };
            let given = CopyPart {
                from: BlockLayout { offset: offsets.0, strides: from.clone() },
                to: BlockLayout { offset: offsets.1, strides: to.clone() },
                ..part(&sizes, &[], &[])
            };
            let numbers = |strides: &[isize]| strides.iter().map(|stride| *stride as i64).collect::<Vec<_>>();
            let all: Vec<u32> = sizes.iter().map(|size| *size as u32).collect();
            let offsets = (offsets.0 as i64, offsets.1 as i64);
            let wanted = moves(&all, &numbers(&from), &numbers(&to), offsets, bytes as i64);
            let (window, wide) = CopyWindow::from_part(&given).unwrap().widened(bytes);
            prop_assert!(window.sizes.len() <= sizes.len() && wide <= PIECE_BYTES_MAX);
            let offsets = (window.from_offset, window.to_offset);
            prop_assert_eq!(moves(&window.sizes, &window.from, &window.to, offsets, wide as i64), wanted);
        }
    }
}
