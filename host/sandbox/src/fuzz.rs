//! Checks of the parsers of uploaded components, and of what confined children return, with arbitrary
//! bytes, for fuzz targets and for tests without a fuzzer.

#![allow(clippy::expect_used, reason = "a finding is a panic")]

use crate::component::inspect::{self, TEXT_LEN_MAX};
use crate::sources::fuzz::frames;
use std::io::Write as _;

/// Reads or refuses the imports and exports of a component.
pub fn component(bytes: &[u8]) {
    match inspect::outline(bytes) {
        Ok(outline) => {
            let imports: usize = outline.imports.iter().map(String::len).sum();
            assert!(imports <= bytes.len());
        }
        Err((_, text)) => assert!(text.len() <= TEXT_LEN_MAX, "{} bytes of text", text.len()),
    }
}

/// Reads or refuses a table of source locations. The first eight bytes are the offsets of a function
/// and an instruction.
pub fn sources(bytes: &[u8]) {
    let Some((offsets, table)) = bytes.split_first_chunk::<8>() else { return };
    let [function, offset] = [0, 4].map(|at| {
        let bytes = offsets[at..].first_chunk().expect("there are eight bytes");
        u32::from_le_bytes(*bytes)
    });
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(table).expect("a temporary file takes bytes");
    frames(file.path(), function, offset);
}

#[cfg(test)]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds::{mutated, seeds};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn seeds_are_accepted() {
        for seed in seeds("component") {
            component(&seed);
            let outline = inspect::outline(&seed);
            assert!(outline.is_ok(), "{outline:?}");
        }
        for seed in seeds("sources") {
            sources(&seed);
        }
    }

    proptest! {
        #[test]
        fn mutated_components_are_read_or_refused(bytes in mutated("component")) {
            component(&bytes);
        }

        #[test]
        fn mutated_tables_are_read_or_refused(bytes in mutated("sources")) {
            sources(&bytes);
        }
    }
}
