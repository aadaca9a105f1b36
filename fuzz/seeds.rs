//! Inputs for tests that run a fuzz target without a fuzzer. Each test includes this file.

use proptest::prelude::*;
use std::path::Path;

/// Bytes that are changed in a seed.
const CHANGES_MAX: usize = 8;

/// The seeds of a target, in `seeds/TARGET/`.
pub(crate) fn seeds(target: &str) -> Vec<Vec<u8>> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = package.ancestors().map(|folder| folder.join("fuzz/seeds").join(target));
    let folder = folders.into_iter().find(|folder| folder.is_dir());
    let folder = folder.unwrap_or_else(|| panic!("fuzz/seeds/{target} is missing"));
    let files = std::fs::read_dir(folder).expect("the folder can be read");
    let read = |file: std::io::Result<std::fs::DirEntry>| std::fs::read(file?.path());
    let seeds: Vec<Vec<u8>> = files.map(|file| read(file).expect("a seed can be read")).collect();
    assert!(!seeds.is_empty(), "{target} has no seeds");
    seeds
}

/// Seeds of a target with some bytes changed, some removed, and parts of another seed in between.
pub(crate) fn mutated(target: &str) -> impl Strategy<Value = Vec<u8>> + use<> {
    let seeds = seeds(target);
    let change = (any::<prop::sample::Index>(), any::<u8>());
    let part = (any::<prop::sample::Index>(), any::<prop::sample::Index>());
    (
        prop::sample::select(seeds.clone()),
        prop::sample::select(seeds),
        prop::collection::vec(change, 0..CHANGES_MAX),
        prop::option::weighted(0.3, (part.clone(), part)),
        prop::option::weighted(0.3, any::<prop::sample::Index>()),
    )
        .prop_map(|(mut bytes, other, changes, spliced, end)| {
            if let Some(((from, to), (start, at))) = spliced {
                let range = range(from.index(other.len() + 1), to.index(other.len() + 1));
                let at = range_end(start.index(bytes.len() + 1), at.index(bytes.len() + 1));
                bytes.splice(at, other[range].iter().copied());
            }
            for (place, byte) in changes {
                if !bytes.is_empty() {
                    let place = place.index(bytes.len());
                    bytes[place] = byte;
                }
            }
            if let Some(end) = end {
                bytes.truncate(end.index(bytes.len() + 1));
            }
            bytes
        })
}

fn range(one: usize, other: usize) -> std::ops::Range<usize> {
    one.min(other)..one.max(other)
}

/// A replaced range: empty half of the time, so that a part is inserted.
fn range_end(one: usize, other: usize) -> std::ops::Range<usize> {
    if one.is_multiple_of(2) { one..one } else { range(one, other) }
}
