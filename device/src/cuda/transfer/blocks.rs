//! Cutting copies into blocks. Numbers and slices only.

use super::job::{Segment, Source};
use crate::cuda::memory::{BLOCK_BYTES, Span};
use std::ops::Range;

/// Pinned memory is copied straight from there from this length on. Less is brought together with its neighbours: each copy takes some microseconds to begin.
const DIRECT_BYTES_MIN: u64 = 512 << 10;

/// The most that is copied straight from pinned memory at once: one turn of the schedule.
const DIRECT_BYTES_MAX: u64 = 2 * BLOCK_BYTES;

/// What is copied at once: up to 2 MiB that lie next to each other on the device, or 4 MiB straight from pinned memory.
#[derive(Debug, Clone)]
pub(super) struct Block {
    /// Where on the device.
    pub(super) span: Span,
    /// Where it is in the whole, for a copy to the host.
    pub(super) offset: u64,
    /// What goes there, in order, without gaps; each padded with zeroes to the length that it has there.
    pub(super) parts: Vec<Part>,
    /// The groups whose last block it is.
    pub(super) ends: Range<usize>,
}

/// A piece of a source.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) from: Source,
    pub(super) range: Range<usize>,
    /// How long it is on the device: at least as long as the range.
    pub(super) bytes: u64,
    /// The device takes it straight from its source.
    is_direct: bool,
}

impl Block {
    /// A span of the device in blocks.
    pub(super) fn of_span(span: Span) -> Vec<Self> {
        let starts = (0..span.bytes()).step_by(BLOCK_BYTES as usize);
        let part = |offset: u64| {
            span.slice(offset, BLOCK_BYTES.min(span.bytes() - offset)).map(|part| (offset, part))
        };
        let blocks = starts.filter_map(part);
        blocks.map(|(offset, span)| Self { span, offset, parts: Vec::new(), ends: 0..0 }).collect()
    }

    /// What it is taken straight from, if that is pinned memory.
    pub(super) fn direct(&self) -> Option<&[u8]> {
        let [part] = self.parts.as_slice() else { return None };
        part.is_direct.then(|| part.from.bytes().get(part.range.clone()))?
    }

    /// Write everything to `to`, which is long enough.
    pub(super) fn gather(&self, to: &mut [u8]) {
        let mut rest = to;
        for part in &self.parts {
            let len = usize::try_from(part.bytes).unwrap_or(usize::MAX).min(rest.len());
            let (here, behind) = rest.split_at_mut(len);
            let source = part.from.bytes().get(part.range.clone()).unwrap_or_default();
            let (bytes, padding) = here.split_at_mut(source.len().min(len));
            bytes.copy_from_slice(source.get(..bytes.len()).unwrap_or_default());
            padding.fill(0);
            rest = behind;
        }
    }
}

/// Cut groups of segments into blocks. What lies next to each other on the device shares blocks, but for what is copied straight from pinned
/// memory, and across the ends of groups.
pub(super) fn cut(groups: &[Vec<Segment>]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut ended = 0;
    for (group, segments) in groups.iter().enumerate() {
        let first = blocks.len();
        for segment in segments {
            cut_segment(segment, first, &mut blocks);
        }
        let blocks_len = blocks.len();
        if let Some(last) = blocks.last_mut().filter(|_| blocks_len > first) {
            // Groups before this one that had nothing end with it.
            last.ends = ended..group + 1;
            ended = group + 1;
        }
    }
    // So do those behind the last block.
    if let Some(last) = blocks.last_mut() {
        last.ends.end = groups.len();
    }
    blocks
}

/// Add the blocks of one segment, or parts to the last block if it is `first` or later.
fn cut_segment(segment: &Segment, first: usize, blocks: &mut Vec<Block>) {
    let source_bytes = segment.from.bytes().len() as u64;
    let is_direct = matches!(segment.from, Source::Pinned(_)) && source_bytes >= DIRECT_BYTES_MIN;
    let mut done = 0;
    while done < segment.to.bytes() {
        // What follows the source is padding, and does not come from there.
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
        let part = Part { from: segment.from.clone(), range: from..end, bytes, is_direct };
        match open {
            Some(block) => {
                block.span = Span::new(block.span.address(), block.span.bytes() + bytes);
                block.parts.push(part);
            }
            None => {
                blocks.push(Block { span: Span::new(at, bytes), offset: 0, parts: vec![part], ends: 0..0 });
            }
        }
        done += bytes;
    }
}

impl Block {
    /// Whether something at `address` can be added.
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
        Segment { from: Source::Pageable(Bytes::copy_from_slice(source)), to: Span::new(at, place) }
    }

    #[test]
    fn neighbours_share_a_block_and_groups_do_not() {
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
        blocks[0].gather(&mut bytes);
        assert!(bytes[..100].iter().all(|byte| *byte == 1) && bytes[100..256].iter().all(|byte| *byte == 0));
        assert!(bytes[256..].iter().all(|byte| *byte == 2));
    }

    #[test]
    fn a_span_is_blocks_and_a_rest() {
        let blocks = Block::of_span(Span::new(64, 2 * BLOCK_BYTES + 5));
        let sizes: Vec<_> = blocks.iter().map(|block| (block.offset, block.span.bytes())).collect();
        assert_eq!(sizes, [(0, BLOCK_BYTES), (BLOCK_BYTES, BLOCK_BYTES), (2 * BLOCK_BYTES, 5)]);
        assert!(Block::of_span(Span::new(64, 0)).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10))]
        #[test]
        fn the_device_ends_up_with_every_source_and_zeroes_behind(
            sizes in prop::collection::vec((0_usize..3 << 20, 0_u64..300, any::<bool>(), any::<bool>()), 1..8),
        ) {
            let (mut groups, mut expected, mut at) = (vec![Vec::new()], Vec::new(), 0_u64);
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
                block.gather(&mut device[start..start + block.span.bytes() as usize]);
            }
            prop_assert!(device == expected);
            // Every group ends with exactly one block.
            let ended: Vec<usize> = blocks.iter().flat_map(|block| block.ends.clone()).collect();
            let expected = if blocks.is_empty() { 0 } else { groups.len() };
            prop_assert_eq!(ended, (0..expected).collect::<Vec<_>>());
        }
    }
}
