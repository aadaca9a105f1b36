//! Runs the fuzz target without a fuzzer: on its seeds, on random bytes and on mutated seeds.

#![allow(clippy::unwrap_used, reason = "a folder that cannot be read fails the test")]

#[path = "../../../fuzz/fuzz_targets/check_link.rs"]
mod check_link;

use check_link::decode_or_refuse;
use proptest::prelude::*;
use std::path::Path;
use weir_link::{DispatcherCommand, FrameDecoder, FrameError, Message, NodeEvent};

fn seeds() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/link");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.map(|path| std::fs::read(path).unwrap()).collect()
}

/// Decodes whole messages, and returns their number.
fn count<M: Message>(bytes: &[u8]) -> Result<usize, FrameError> {
    let mut decoder = FrameDecoder::<M>::default();
    decoder.receive(bytes);
    let mut count = 0;
    while decoder.decode()?.is_some() {
        count += 1;
    }
    Ok(count)
}

#[test]
fn fuzz_target_accepts_every_seed() {
    let mut messages = 0;
    for seed in seeds() {
        decode_or_refuse(&seed);
        messages += match seed[0] & 1 {
            0 => count::<NodeEvent>(&seed[1..]).unwrap(),
            _ => count::<DispatcherCommand>(&seed[1..]).unwrap(),
        };
    }
    assert_eq!(messages, 3 + 2 + 3 + 12 + 4);
}

proptest! {
    /// A frame of random bytes.
    #[test]
    fn fuzz_target_accepts_random_bytes(
        first in any::<u8>(),
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut frame = vec![first];
        frame.extend_from_slice(&u32::try_from(bytes.len()).unwrap().to_le_bytes());
        frame.extend_from_slice(&bytes);
        decode_or_refuse(&frame);
        decode_or_refuse(&bytes);
    }

    /// Mutates some bytes of a seed and truncates it.
    #[test]
    fn fuzz_target_accepts_mutated_seeds(
        seed in prop::sample::select(seeds()),
        others in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        end in any::<prop::sample::Index>(),
    ) {
        let mut bytes = seed;
        for (place, byte) in others {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        bytes.truncate(end.index(bytes.len()) + 1);
        decode_or_refuse(&bytes);
    }
}
