//! ONNX models whose weights are in other files.
//!
//! A node takes a model as one file. [`ModelParts`] is that file, with the weights of the other files
//! inside, as parts of the files on disk: no weight is read into memory before it is sent.

mod archive;
mod files;
mod locations;
pub(crate) use locations::weight_locations;
mod parts;
mod section;
mod wire;

use crate::error::Problem;
use crate::output::size;
use anyhow::Result;
use files::{ModelFiles, StoredFile};
use parts::{FileIndex, ModelParts};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use wire::{Defect, Field, Source, length_delimited};

/// Longest file that protocol buffers can encode.
pub(crate) const MODEL_BYTES_MAX: u64 = i32::MAX as u64;
/// Deepest nesting of messages. The node's decoder has the same limit.
const DEPTH_MAX: usize = 100;
/// Longest name of a weight, or text about its place.
const TEXT_BYTES_MAX: u64 = 4 << 10;
/// The most files with the weights of a model.
const FILES_MAX: usize = 10_000;

/// `TensorProto.name`.
const NAME: u32 = 8;
/// `TensorProto.raw_data`.
const RAW_DATA: u32 = 9;
/// `TensorProto.external_data`.
const EXTERNAL_DATA: u32 = 13;
/// `TensorProto.data_location`.
const DATA_LOCATION: u32 = 14;
/// [`DATA_LOCATION`] of a tensor whose bytes are in another file.
const EXTERNAL: u64 = 1;

/// Opens the model of `path`: an ONNX file, a folder with one, or an archive of such a folder.
pub(crate) fn open(path: &Path) -> Result<ModelParts> {
    let files = ModelFiles::find(path)?;
    if let Some(parts) = with_external_data(&files)? {
        return Ok(parts);
    }
    let model = files.model;
    let len = model.open().map_err(|error| unreadable(&model, error))?.len();
    let mut parts = ModelParts::new(model);
    parts.set(vec![Piece::File(FileIndex::MODEL, 0..len)]);
    Ok(parts)
}

fn unreadable(file: &StoredFile, error: std::io::Error) -> Problem {
    Problem::new(format!("cannot read {file}")).because(error)
}

/// The model with the weights that are in other files; `None` if all weights are inside, or if the
/// file is not an ONNX model, which the node explains.
fn with_external_data(files: &ModelFiles) -> Result<Option<ModelParts>> {
    let model = &files.model;
    let section = model.open().map_err(|error| unreadable(model, error))?;
    let whole = 0..section.len();
    let source = Source::new(section);
    let mut embedder =
        Embedder { source, files, places: HashMap::new(), parts: ModelParts::new(model.clone()) };
    let pieces = match embedder.message(Kind::Model, whole, 0) {
        Ok(Some(pieces)) => pieces,
        Ok(None) | Err(Defect::Malformed) => return Ok(None),
        Err(Defect::Io(error)) => return Err(unreadable(model, error).into()),
        Err(Defect::Weights(problem)) => return Err(problem.into()),
    };
    let mut parts = embedder.parts;
    parts.set(pieces);
    let bytes = parts.length_bytes();
    if bytes > MODEL_BYTES_MAX {
        let text = format!(
            "with its weights, the model has {}; an ONNX file has at most {}",
            size(bytes),
            size(MODEL_BYTES_MAX)
        );
        return Err(Problem::new(text).hint("export it with smaller weights, such as fp16 or int8").into());
    }
    Ok(Some(parts))
}

/// A message of `onnx.proto` that may contain tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Model,
    Graph,
    Node,
    Attribute,
    Function,
    Training,
    SparseTensor,
    Tensor,
}

impl Kind {
    /// The kind of the message in a field, if it may contain tensors.
    fn of_field(self, number: u32) -> Option<Self> {
        Some(match (self, number) {
            (Self::Model, 7) | (Self::Attribute, 6 | 11) | (Self::Training, 1 | 2) => Self::Graph,
            (Self::Model, 20) => Self::Training,
            (Self::Model, 25) => Self::Function,
            (Self::Graph, 1) | (Self::Function, 7) => Self::Node,
            (Self::Node, 5) | (Self::Function, 11) => Self::Attribute,
            (Self::Graph, 5) | (Self::Attribute, 5 | 10) | (Self::SparseTensor, 1 | 2) => Self::Tensor,
            (Self::Graph, 15) | (Self::Attribute, 22 | 23) => Self::SparseTensor,
            _ => return None,
        })
    }
}

/// Part of the model with embedded weights.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Bytes(Vec<u8>),
    File(FileIndex, Range<u64>),
}

impl Piece {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(_, range) => range.end - range.start,
        }
    }
}

/// Length of several pieces.
fn total<'a>(pieces: impl IntoIterator<Item = &'a Piece>) -> u64 {
    pieces.into_iter().map(Piece::len).fold(0, u64::saturating_add)
}

/// Place of a weight in another file, as the model states it.
#[derive(Debug, Default)]
struct DataLocation {
    location: Option<String>,
    offset: u64,
    length: Option<u64>,
}

impl DataLocation {
    /// Reads one entry of `external_data`: a key and a value.
    fn note(&mut self, source: &mut Source, entry: &Field) -> Result<(), Defect> {
        let range = entry.bytes()?;
        let mut texts = [String::new(), String::new()];
        let mut at = range.start;
        while at < range.end {
            let field = source.field(at..range.end)?;
            at = field.end();
            if let Some(text) = (field.number as usize).checked_sub(1).and_then(|at| texts.get_mut(at)) {
                *text = source.text(field.bytes()?, TEXT_BYTES_MAX)?;
            }
        }
        let [key, value] = texts;
        let number = |value: &str| value.trim().parse::<u64>().map_err(|_| Defect::Malformed);
        match key.as_str() {
            "location" => self.location = Some(value),
            "offset" => self.offset = number(&value)?,
            "length" => self.length = Some(number(&value)?),
            // A checksum, or a key of a later version.
            _ => {}
        }
        Ok(())
    }
}

/// Rewrites the messages around the weights of other files.
struct Embedder<'a> {
    source: Source,
    files: &'a ModelFiles,
    /// The files with weights, by location, and their lengths.
    places: HashMap<String, (FileIndex, u64)>,
    parts: ModelParts,
}

impl Embedder<'_> {
    /// The message with embedded weights; `None` if it has no weight in another file.
    fn message(&mut self, kind: Kind, range: Range<u64>, depth: usize) -> Result<Option<Vec<Piece>>, Defect> {
        if depth > DEPTH_MAX {
            return Err(Defect::Malformed);
        }
        if kind == Kind::Tensor {
            return self.tensor(range);
        }
        let mut pieces = Vec::new();
        let mut copied = range.start;
        let mut at = range.start;
        while at < range.end {
            let field = self.source.field(at..range.end)?;
            at = field.end();
            let Some(kind) = kind.of_field(field.number) else { continue };
            let Some(made) = self.message(kind, field.bytes()?, depth + 1)? else { continue };
            pieces.push(Piece::File(FileIndex::MODEL, copied..field.start));
            pieces.push(Piece::Bytes(length_delimited(field.number, total(&made))));
            pieces.extend(made);
            copied = at;
        }
        if pieces.is_empty() {
            return Ok(None);
        }
        pieces.push(Piece::File(FileIndex::MODEL, copied..range.end));
        Ok(Some(pieces))
    }

    /// The tensor with its bytes; `None` if they are inside.
    fn tensor(&mut self, range: Range<u64>) -> Result<Option<Vec<Piece>>, Defect> {
        let mut is_external = false;
        let mut name = String::new();
        let mut place = DataLocation::default();
        let mut pieces = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let field = self.source.field(at..range.end)?;
            at = field.end();
            match field.number {
                DATA_LOCATION => is_external = field.number()? == EXTERNAL,
                EXTERNAL_DATA => place.note(&mut self.source, &field)?,
                RAW_DATA => {}
                number => {
                    if number == NAME {
                        name = self.source.text(field.bytes()?, TEXT_BYTES_MAX)?;
                    }
                    pieces.push(Piece::File(FileIndex::MODEL, field.start..at));
                }
            }
        }
        if !is_external {
            return Ok(None);
        }
        let (file, bytes) = self.find(&name, place)?;
        pieces.push(Piece::Bytes(length_delimited(RAW_DATA, bytes.end - bytes.start)));
        pieces.push(Piece::File(file, bytes));
        Ok(Some(pieces))
    }

    /// The file that has a weight, and the weight's range in the file.
    fn find(&mut self, name: &str, place: DataLocation) -> Result<(FileIndex, Range<u64>), Defect> {
        let Some(location) = place.location else {
            let text = format!("weight {name:?} is outside the model's file, which does not say where");
            return Err(Problem::new(text).hint("export the model again").into());
        };
        let (file, file_bytes) = match self.places.get(&location) {
            Some(known) => *known,
            None => self.open(name, location.clone())?,
        };
        let end = match place.length {
            Some(length) => place.offset.checked_add(length),
            None => Some(file_bytes.max(place.offset)),
        };
        match end.filter(|end| *end <= file_bytes) {
            Some(end) => Ok((file, place.offset..end)),
            None => {
                let text =
                    format!("{location} has {file_bytes} bytes, and weight {name:?} lies beyond its end");
                Err(Problem::new(text).hint("the file is incomplete: copy or download it again").into())
            }
        }
    }

    /// Looks up a file with weights. Its location comes from the model, which may be from an
    /// untrusted source, so the file must be in the model's folder.
    fn open(&mut self, name: &str, location: String) -> Result<(FileIndex, u64), Defect> {
        let Some(stored) = self.files.beside(&location) else {
            let text = format!("weight {name:?} is in {location:?}, which is outside the model's folder");
            let hint = "put the file into the model's folder, and save the model with that location";
            return Err(Problem::new(text).hint(hint).into());
        };
        if self.places.len() == FILES_MAX {
            let text = format!("the model's weights are in more than {FILES_MAX} files");
            return Err(Problem::new(text).hint("save them in one file").into());
        }
        let opened = stored.and_then(|stored| stored.open().map(|section| (stored, section.len())));
        let (stored, len) = opened.map_err(|error| {
            let text = format!("cannot read {location}, which has weight {name:?}");
            Problem::new(text).because(error).hint("keep the files of a model in one folder")
        })?;
        let found = (self.parts.add_file(stored), len);
        self.places.insert(location, found);
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
