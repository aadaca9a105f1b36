//! Bringing blocks together in pinned memory. One core copies at about a fifth of the bus's speed, so several do.

use super::blocks::Block;
use crate::cuda::pinned::PinnedBlock;
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, available_parallelism, scope};

/// How many blocks are brought together at once.
pub(super) const GATHER_MAX: usize = 4;

/// With fewer bytes than this, beginning a thread takes as long as copying.
const PARALLEL_BYTES_MIN: u64 = 3 << 20;

/// How many threads help, on this machine.
pub(super) fn helpers() -> usize {
    let cores = available_parallelism().map_or(1, usize::from);
    // The others run functions.
    (cores / 4).clamp(0, GATHER_MAX - 1)
}

/// Write every block to its pinned one, with up to `helpers` threads besides this one.
pub(super) fn gather(work: Vec<(&Block, &mut PinnedBlock)>, helpers: usize) {
    let bytes: u64 = work.iter().map(|(block, _)| block.span.bytes()).sum();
    let helpers = if bytes < PARALLEL_BYTES_MIN { 0 } else { helpers.min(work.len().saturating_sub(1)) };
    let queue = Mutex::new(work.into_iter());
    let copy = || {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((block, staging)) = next else { break };
            block.gather(staging.as_mut_slice());
        }
    };
    scope(|scope| {
        for _ in 0..helpers {
            // Where there is no thread to be had, the rest is done here.
            let _ = Builder::new().name("gather".to_owned()).spawn_scoped(scope, copy);
        }
        copy();
    });
}

#[cfg(test)]
mod tests {
    use super::super::blocks::cut;
    use super::super::job::{Segment, Source};
    use super::*;
    use crate::cuda::memory::{BLOCK_BYTES, Span};
    use crate::cuda::{Devices, PinnedRing, Search};
    use bytes::Bytes;
    use weir_fake_cuda::Fake;

    #[test]
    fn every_block_is_brought_together_whoever_does_it() {
        let fake = Fake::new(0);
        let search = Search { driver: Some(fake.path().to_owned()), ..Search::default() };
        let context = Devices::discover(&search).unwrap().open(0).unwrap();
        let ring = PinnedRing::new(&context, GATHER_MAX).unwrap();
        let bytes: Vec<u8> =
            (0..GATHER_MAX as u8).flat_map(|block| vec![block + 1; BLOCK_BYTES as usize]).collect();
        let to = Span::new(0, bytes.len() as u64);
        let blocks = cut(&[vec![Segment { from: Source::Pageable(Bytes::from(bytes)), to }]]);
        for helpers in 0..GATHER_MAX {
            let mut staging: Vec<_> = (0..GATHER_MAX).map(|_| ring.try_take().unwrap()).collect();
            staging.iter_mut().for_each(|block| block.as_mut_slice().fill(0));
            gather(blocks.iter().zip(&mut staging).collect(), helpers);
            for (number, block) in (1..).zip(&staging) {
                assert!(
                    block.as_slice() == vec![number; BLOCK_BYTES as usize],
                    "{helpers} helpers, block {number}"
                );
            }
        }
    }
}
