//! The files that a model expects beside itself.

use super::files::StoredFile;
use super::section::Section;
use super::wire::{Defect, Source};
use super::{DATA_LOCATION, DEPTH_MAX, DataLocation, EXTERNAL, EXTERNAL_DATA, FILES_MAX, Kind, unreadable};
use crate::error::Problem;
use anyhow::Result;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

/// Reads the locations of weights outside of the ONNX file at `path`, as the model states them. Empty
/// if all weights are inside, or if the file is not an ONNX model, which the node explains.
pub(crate) fn weight_locations(path: &Path) -> Result<BTreeSet<String>> {
    let file = StoredFile::OnDisk(path.to_owned());
    let section = Section::open(path).map_err(|error| unreadable(&file, error))?;
    let whole = 0..section.len();
    let mut lister = Lister { source: Source::new(section), found: BTreeSet::new() };
    match lister.message(Kind::Model, whole, 0) {
        Ok(()) => Ok(lister.found),
        Err(Defect::Malformed) => Ok(BTreeSet::new()),
        Err(Defect::Io(error)) => Err(unreadable(&file, error).into()),
        Err(Defect::Weights(problem)) => Err(problem.into()),
    }
}

struct Lister {
    source: Source,
    found: BTreeSet<String>,
}

impl Lister {
    fn message(&mut self, kind: Kind, range: Range<u64>, depth: usize) -> Result<(), Defect> {
        if depth > DEPTH_MAX {
            return Err(Defect::Malformed);
        }
        let mut is_external = false;
        let mut place = DataLocation::default();
        let mut at = range.start;
        while at < range.end {
            let field = self.source.field(at..range.end)?;
            at = field.end();
            match (kind, field.number) {
                (Kind::Tensor, DATA_LOCATION) => is_external = field.number()? == EXTERNAL,
                (Kind::Tensor, EXTERNAL_DATA) => place.note(&mut self.source, &field)?,
                (_, number) => {
                    if let Some(kind) = kind.of_field(number) {
                        self.message(kind, field.bytes()?, depth + 1)?;
                    }
                }
            }
        }
        if let Some(location) = place.location.filter(|_| is_external) {
            self.found.insert(location);
        }
        if self.found.len() > FILES_MAX {
            let text = format!("the model's weights are in more than {FILES_MAX} files");
            return Err(Problem::new(text).hint("save them in one file").into());
        }
        Ok(())
    }
}
