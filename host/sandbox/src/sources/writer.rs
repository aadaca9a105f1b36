//! Writes the table of source locations.

use super::table::{MAGIC, RANGE_BYTES};
use super::{FRAMES_PER_INSTRUCTION_MAX, SourceFrame, TEXT_BYTES_MAX};
use std::collections::HashMap;
use std::io::{self, Write};

/// Limit of a table. A component with more locations gets none.
pub(crate) const TABLE_BYTES_MAX: usize = 32 << 20;

/// A table under construction. Offsets are added in ascending order.
#[derive(Default)]
pub(super) struct TableWriter {
    /// The first offset of each range, and the position of its frames in `lists`.
    ranges: Vec<(u32, Option<u32>)>,
    lists: Vec<u8>,
    texts: Vec<u8>,
    positions: HashMap<Vec<SourceFrame>, u32>,
    text_positions: HashMap<String, u32>,
}

/// The table would exceed [`TABLE_BYTES_MAX`].
#[derive(Debug, thiserror::Error)]
#[error("the component has too many source locations")]
pub(super) struct TableFull;

impl TableWriter {
    /// Starts a function whose body begins at `offset`.
    pub(super) fn begin_function(&mut self, offset: u32) {
        self.ranges.push((offset, None));
    }

    /// Sets the frames of the instructions from `offset` on. Empty: they are unknown.
    pub(super) fn add(&mut self, offset: u32, mut frames: Vec<SourceFrame>) -> Result<(), TableFull> {
        frames.truncate(FRAMES_PER_INSTRUCTION_MAX);
        let position = match self.positions.get(&frames) {
            _ if frames.is_empty() => None,
            Some(position) => Some(*position),
            None => Some(self.add_list(frames)),
        };
        if self.ranges.last().is_none_or(|(_, last)| *last != position) {
            self.ranges.push((offset, position));
        }
        match self.len() > TABLE_BYTES_MAX {
            true => Err(TableFull),
            false => Ok(()),
        }
    }

    fn add_list(&mut self, frames: Vec<SourceFrame>) -> u32 {
        let position = to_u32(self.lists.len());
        self.lists.push(u8::try_from(frames.len()).unwrap_or(u8::MAX));
        for frame in &frames {
            let function = self.add_text(&frame.function);
            let file = self.add_text(&frame.file);
            for field in [function, file, frame.line, frame.column] {
                self.lists.extend(field.to_le_bytes());
            }
        }
        self.positions.insert(frames, position);
        position
    }

    fn add_text(&mut self, text: &str) -> u32 {
        // The end of a path says more than its start.
        let text = &text[text.ceil_char_boundary(text.len().saturating_sub(TEXT_BYTES_MAX))..];
        if let Some(position) = self.text_positions.get(text) {
            return *position;
        }
        let position = to_u32(self.texts.len());
        self.texts.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
        self.texts.extend(text.as_bytes());
        self.text_positions.insert(text.to_owned(), position);
        position
    }

    fn len(&self) -> usize {
        self.ranges.len() * RANGE_BYTES + self.lists.len() + self.texts.len()
    }

    /// Whether no instruction has a known location.
    pub(super) fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Writes the table: the head, the ranges, the lists of frames and the texts.
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(MAGIC)?;
        for length in [self.ranges.len(), self.lists.len()] {
            to.write_all(&to_u32(length).to_le_bytes())?;
        }
        for (offset, position) in &self.ranges {
            to.write_all(&offset.to_le_bytes())?;
            to.write_all(&position.unwrap_or(u32::MAX).to_le_bytes())?;
        }
        to.write_all(&self.lists)?;
        to.write_all(&self.texts)
    }
}

/// Lengths are below [`TABLE_BYTES_MAX`].
fn to_u32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
