//! Runs the fuzz target without a fuzzer: on its seeds, and on mutated seeds.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what cannot be read fails the test")]

#[path = "../../fuzz/fuzz_targets/check_manifest.rs"]
mod check_manifest;

use check_manifest::read_or_refuse;
use proptest::prelude::*;
use std::path::Path;

fn seeds() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/manifest");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
fn fuzz_target_accepts_every_seed() {
    let seeds = seeds();
    assert!(!seeds.is_empty());
    seeds.iter().for_each(|seed| read_or_refuse(seed));
}

proptest! {
    /// Mutates some bytes of a seed and truncates it.
    #[test]
    fn fuzz_target_accepts_mutated_seeds(
        seed in prop::sample::select(seeds()),
        others in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        end in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut bytes = seed;
        for (place, byte) in others {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if is_cut {
            bytes.truncate(end.index(bytes.len()) + 1);
        }
        read_or_refuse(&bytes);
    }
}
