//! The fuzzer's target on any toolchain: on its seeds, and on bytes that are near to bodies.

#![allow(clippy::unwrap_used, reason = "a folder that cannot be read fails the test")]

#[path = "../../fuzz/fuzz_targets/check.rs"]
mod check;

use check::read_or_refuse;
use proptest::prelude::*;
use std::path::Path;

fn seeds() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
fn every_seed_is_read_or_refused() {
    let seeds = seeds();
    assert!(seeds.len() >= 5, "{}", seeds.len());
    seeds.iter().for_each(|seed| read_or_refuse(seed));
}

proptest! {
    #[test]
    fn bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read_or_refuse(&bytes);
    }

    /// A seed of which some bytes are others, cut off somewhere.
    #[test]
    fn what_is_nearly_a_body_is_read_or_refused(
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
        read_or_refuse(&bytes);
    }
}
