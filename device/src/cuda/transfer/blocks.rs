//! Cutting copies into blocks. Pure functions of numbers and slices.

use super::job::{CopySource, Segment};
use crate::cuda::memory::{BLOCK_BYTES, Span};
use crate::cuda::pinned::PinnedSlice;
use std::ops::Range;
use std::sync::Arc;

/// The least length that is copied directly from pinned memory. Shorter pieces are gathered with
/// their neighbours, since each copy takes some microseconds to begin.
const DIRECT_BYTES_MIN: u64 = 512 << 10;

/// The most that is copied directly from pinned memory at once: two turns of the schedule. The gap
/// between two copies is as long as the copy of 180 KB.
const DIRECT_BYTES_MAX: u64 = 4 * BLOCK_BYTES;

/// Unit of copying: up to 2 MiB that are contiguous on the device, or 8 MiB directly from pinned
/// memory.
#[derive(Debug, Clone)]
pub(super) struct CopyBlock {
    /// Its place on the device.
    pub(super) span: Span,
    /// Its offset in the whole, for a copy to the host.
    pub(super) offset: u64,
    /// Its contents, in order and without gaps; each part is padded with zeroes to its length on
    /// the device.
    pub(super) parts: Vec<SourcePart>,
    /// The groups whose last block it is.
    pub(super) ends: Range<usize>,
}

/// A piece of a source.
#[derive(Debug, Clone)]
pub(super) struct SourcePart {
    pub(super) from: CopySource,
    pub(super) range: Range<usize>,
    /// Length on the device: at least the length of the range.
    pub(super) bytes: u64,
    /// Whether the device reads it directly from its source.
    is_direct: bool,
}

impl CopyBlock {
    /// Cuts a span of the device into blocks.
    pub(super) fn of_span(span: Span) -> Vec<Self> {
        let starts = (0..span.bytes()).step_by(BLOCK_BYTES as usize);
        let part = |offset: u64| {
            span.slice(offset, BLOCK_BYTES.min(span.bytes() - offset)).map(|part| (offset, part))
        };
        let blocks = starts.filter_map(part);
        blocks.map(|(offset, span)| Self { span, offset, parts: Vec::new(), ends: 0..0 }).collect()
    }

    /// The source bytes, if the block is copied directly from pinned memory.
    pub(super) fn direct(&self) -> Option<&[u8]> {
        let [part] = self.parts.as_slice() else { return None };
        part.is_direct.then(|| part.from.bytes().get(part.range.clone()))?
    }

    /// Writes the contents from `offset` on to `to`, as many bytes as `to` has.
    pub(super) fn gather(&self, offset: usize, to: &mut [u8]) {
        // Bytes of the current part before `offset`.
        let mut skipped = offset;
        let mut rest = to;
        for part in &self.parts {
            let part_len = usize::try_from(part.bytes).unwrap_or(usize::MAX);
            if skipped >= part_len {
                skipped -= part_len;
                continue;
            }
            let len = (part_len - skipped).min(rest.len());
            let (here, behind) = rest.split_at_mut(len);
            let source = part.from.bytes().get(part.range.clone()).unwrap_or_default();
            let source = source.get(skipped..).unwrap_or_default();
            let (bytes, padding) = here.split_at_mut(source.len().min(len));
            bytes.copy_from_slice(source.get(..bytes.len()).unwrap_or_default());
            padding.fill(0);
            skipped = 0;
            rest = behind;
            if rest.is_empty() {
                return;
            }
        }
    }
}

/// Cuts groups of segments into blocks. Segments that are contiguous on the device share blocks,
/// except across groups. Data that is copied directly from pinned memory shares a block only with
/// data that is contiguous there as well.
pub(super) fn cut(groups: &[Vec<Segment>]) -> Vec<CopyBlock> {
    let mut blocks: Vec<CopyBlock> = Vec::new();
    let mut ended = 0;
    for (group, segments) in groups.iter().enumerate() {
        let first = blocks.len();
        for segment in join(segments) {
            cut_segment(&segment, first, &mut blocks);
        }
        let blocks_len = blocks.len();
        if let Some(last) = blocks.last_mut().filter(|_| blocks_len > first) {
            // Empty groups before this one end with it.
            last.ends = ended..group + 1;
            ended = group + 1;
        }
    }
    // Empty groups after the last block end with it as well.
    if let Some(last) = blocks.last_mut() {
        last.ends.end = groups.len();
    }
    blocks
}

/// Joins segments that are contiguous in pinned memory and on the device, as the weights of a model
/// in a pinned cache: each copy takes some microseconds to begin.
fn join(segments: &[Segment]) -> Vec<Segment> {
    let runs = segments.chunk_by(continues);
    runs.flat_map(|run| joined(run).map_or_else(|| run.to_vec(), |segment| vec![segment])).collect()
}

/// Whether `next` continues `segment` at both ends, without padding between.
fn continues(segment: &Segment, next: &Segment) -> bool {
    match (&segment.from, &next.from) {
        (CopySource::Pinned(from), CopySource::Pinned(next_from)) => {
            from.is_before(next_from)
                && from.bytes().len() as u64 == segment.to.bytes()
                && segment.to.address() + segment.to.bytes() == next.to.address()
        }
        _ => false,
    }
}

/// One segment in place of a run of several.
fn joined(run: &[Segment]) -> Option<Segment> {
    let first = run.first().filter(|_| run.len() > 1)?;
    let last = run.last()?;
    let slice = |segment: &Segment| match &segment.from {
        CopySource::Pinned(slice) => Some(slice.clone()),
        CopySource::Pageable(_) => None,
    };
    let slices: Vec<Arc<PinnedSlice>> = run.iter().filter_map(slice).collect();
    let from = CopySource::Pinned(Arc::new(PinnedSlice::joined(slices)?));
    let bytes = last.to.address() + last.to.bytes() - first.to.address();
    Some(Segment { from, to: Span::new(first.to.address(), bytes) })
}

/// Adds the blocks of one segment, or parts to the last block if its index is at least `first`.
fn cut_segment(segment: &Segment, first: usize, blocks: &mut Vec<CopyBlock>) {
    let source_bytes = segment.from.bytes().len() as u64;
    let is_direct = matches!(segment.from, CopySource::Pinned(_)) && source_bytes >= DIRECT_BYTES_MIN;
    let mut done = 0;
    while done < segment.to.bytes() {
        // The padding after a source does not come from the source.
        let is_direct = is_direct && done < source_bytes;
        let at = segment.to.address() + done;
        let joined = blocks.len() > first && !is_direct;
        let open = blocks.last_mut().filter(|block| joined && block.takes(at));
        let most = if is_direct { DIRECT_BYTES_MAX } else { BLOCK_BYTES };
        let room = most - open.as_ref().map_or(0, |block| block.span.bytes());
        let mut bytes = room.min(segment.to.bytes() - done);
        if is_direct {
            bytes = bytes.min(source_bytes - done);
        }
        let from = usize::try_from(done.min(source_bytes)).unwrap_or(usize::MAX);
        let end = usize::try_from((done + bytes).min(source_bytes)).unwrap_or(usize::MAX);
        let part = SourcePart { from: segment.from.clone(), range: from..end, bytes, is_direct };
        match open {
            Some(block) => {
                block.span = Span::new(block.span.address(), block.span.bytes() + bytes);
                block.parts.push(part);
            }
            None => {
                blocks.push(CopyBlock {
                    span: Span::new(at, bytes),
                    offset: 0,
                    parts: vec![part],
                    ends: 0..0,
                });
            }
        }
        done += bytes;
    }
}

impl CopyBlock {
    /// Whether data at `address` can be appended.
    fn takes(&self, address: u64) -> bool {
        let is_direct = self.parts.iter().any(|part| part.is_direct);
        !is_direct && self.span.bytes() < BLOCK_BYTES && self.span.address() + self.span.bytes() == address
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn segment(at: u64, source: &[u8], place: u64) -> Segment {
        Segment { from: CopySource::Pageable(Bytes::copy_from_slice(source)), to: Span::new(at, place) }
    }

    #[test]
    fn adjacent_segments_share_blocks_and_groups_do_not() {
        let groups = [
            vec![segment(1000, &[1; 100], 256), segment(1256, &[2; 256], 256), segment(4000, &[3; 4], 4)],
            vec![],
            vec![segment(4004, &[4; 4], 4)],
        ];
        let blocks = cut(&groups);
        let spans: Vec<_> = blocks.iter().map(|block| (block.span.address(), block.span.bytes())).collect();
        assert_eq!(spans, [(1000, 512), (4000, 4), (4004, 4)]);
        let ends: Vec<_> = blocks.iter().map(|block| block.ends.clone()).collect();
        assert_eq!(ends, [0..0, 0..1, 1..3]);
        let mut bytes = [9; 512];
        blocks[0].gather(0, &mut bytes);
        assert!(bytes[..100].iter().all(|byte| *byte == 1) && bytes[100..256].iter().all(|byte| *byte == 0));
        assert!(bytes[256..].iter().all(|byte| *byte == 2));
    }

    #[test]
    fn span_is_cut_into_full_blocks_and_a_remainder() {
        let blocks = CopyBlock::of_span(Span::new(64, 2 * BLOCK_BYTES + 5));
        let sizes: Vec<_> = blocks.iter().map(|block| (block.offset, block.span.bytes())).collect();
        assert_eq!(sizes, [(0, BLOCK_BYTES), (BLOCK_BYTES, BLOCK_BYTES), (2 * BLOCK_BYTES, 5)]);
        assert!(CopyBlock::of_span(Span::new(64, 0)).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10))]
        #[test]
        fn device_receives_every_source_padded_with_zeroes(
            sizes in prop::collection::vec((0_usize..3 << 20, 0_u64..300, any::<bool>(), any::<bool>()), 1..8),
            piece_bytes in 1_usize << 10..3 << 20,
        ) {
            let mut groups = vec![Vec::new()];
            let mut expected = Vec::new();
            let mut at = 0_u64;
            for (len, padding, gap, new_group) in sizes {
                if new_group {
                    groups.push(Vec::new());
                }
                if gap {
                    at += 1024;
                    expected.resize(at as usize, 0xEE);
                }
                let source: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
                expected.extend_from_slice(&source);
                expected.resize(expected.len() + padding as usize, 0);
                let place = len as u64 + padding;
                groups.last_mut().unwrap().push(segment(at, &source, place));
                at += place;
            }
            let mut device = vec![0xEE_u8; expected.len()];
            let blocks = cut(&groups);
            for block in &blocks {
                prop_assert!(block.span.bytes() <= BLOCK_BYTES && block.span.bytes() > 0);
                let start = block.span.address() as usize;
                let place = &mut device[start..start + block.span.bytes() as usize];
                for (number, piece) in place.chunks_mut(piece_bytes).enumerate().rev() {
                    block.gather(number * piece_bytes, piece);
                }
            }
            prop_assert!(device == expected);
            // Each group ends with exactly one block.
            let ended: Vec<usize> = blocks.iter().flat_map(|block| block.ends.clone()).collect();
            let expected = if blocks.is_empty() { 0 } else { groups.len() };
            prop_assert_eq!(ended, (0..expected).collect::<Vec<_>>());
        }
    }
}
