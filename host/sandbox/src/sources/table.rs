//! Reads the table of source locations. The process that wrote it may have been taken over by its
//! component, so every length and position is checked.

use super::{FRAMES_PER_INSTRUCTION_MAX, SourceFrame, TEXT_BYTES_MAX};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

pub(super) const MAGIC: &[u8; 8] = b"weirsrc1";
/// The head: the magic bytes, the number of ranges, and the length of the lists.
const HEAD_BYTES: u64 = 16;
/// A range: its first offset in the component, and the position of its frames in the lists.
pub(super) const RANGE_BYTES: usize = 8;
/// The head of a list of frames: their number.
const LIST_HEAD_BYTES: u64 = 1;
/// A frame: the positions of the function and the file in the texts, the line and the column.
const FRAME_BYTES: usize = 16;

/// The file of a table.
#[derive(Debug)]
pub(crate) struct SourceTable {
    path: PathBuf,
}

impl SourceTable {
    /// The table in the file at `path`.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Opens the file. Blocks.
    pub(super) fn open(&self) -> io::Result<OpenTable> {
        let file = File::open(&self.path)?;
        let mut head = [0; HEAD_BYTES as usize];
        file.read_exact_at(&mut head, 0)?;
        let (magic, lengths) = head.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a table of source locations"));
        }
        let ranges = field(lengths, 0);
        let lists_at = HEAD_BYTES + u64::from(ranges) * RANGE_BYTES as u64;
        let texts_at = lists_at + u64::from(field(lengths, 1));
        Ok(OpenTable { file, ranges, lists_at, texts_at })
    }
}

/// An open table.
pub(super) struct OpenTable {
    file: File,
    ranges: u32,
    lists_at: u64,
    texts_at: u64,
}

impl OpenTable {
    /// The frames of the instruction at `offset` of the component, innermost first. The body of its
    /// function begins at `function`. Blocks.
    pub(super) fn frames(&self, function: u32, offset: u32) -> io::Result<Vec<SourceFrame>> {
        // Functions that wasmtime generated have offsets too, which are not in the component.
        let is_known = self.range_at(function)?.is_some_and(|(start, _)| start == function);
        let range = self.range_at(offset)?.filter(|(start, _)| *start >= function);
        match range {
            Some((_, position)) if is_known && position != u32::MAX => self.list(position),
            _ => Ok(Vec::new()),
        }
    }

    /// The last range that starts at or before `offset`.
    fn range_at(&self, offset: u32) -> io::Result<Option<(u32, u32)>> {
        let mut low = 0;
        let mut high = self.ranges;
        let mut found = None;
        while low < high {
            let middle = low + (high - low) / 2;
            let range = self.range(middle)?;
            if range.0 <= offset {
                found = Some(range);
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(found)
    }

    fn range(&self, index: u32) -> io::Result<(u32, u32)> {
        let mut bytes = [0; RANGE_BYTES];
        self.file.read_exact_at(&mut bytes, HEAD_BYTES + u64::from(index) * RANGE_BYTES as u64)?;
        Ok((field(&bytes, 0), field(&bytes, 1)))
    }

    fn list(&self, position: u32) -> io::Result<Vec<SourceFrame>> {
        let at = self.lists_at + u64::from(position);
        let mut count = [0];
        self.file.read_exact_at(&mut count, at)?;
        let mut bytes = vec![0; FRAME_BYTES * usize::from(count[0]).min(FRAMES_PER_INSTRUCTION_MAX)];
        self.file.read_exact_at(&mut bytes, at + LIST_HEAD_BYTES)?;
        let frame = |bytes: &[u8]| {
            Ok(SourceFrame {
                function: self.text(field(bytes, 0))?,
                file: self.text(field(bytes, 1))?,
                line: field(bytes, 2),
                column: field(bytes, 3),
            })
        };
        bytes.chunks_exact(FRAME_BYTES).map(frame).collect()
    }

    fn text(&self, position: u32) -> io::Result<String> {
        let at = self.texts_at + u64::from(position);
        let mut length = [0; 2];
        self.file.read_exact_at(&mut length, at)?;
        let mut bytes = vec![0; usize::from(u16::from_le_bytes(length)).min(TEXT_BYTES_MAX)];
        self.file.read_exact_at(&mut bytes, at + length.len() as u64)?;
        // Line ends would make other lines of the log.
        Ok(String::from_utf8_lossy(&bytes).replace(char::is_control, " "))
    }
}

/// The field with `index` of a record of 32-bit fields.
fn field(record: &[u8], index: usize) -> u32 {
    let bytes = record.get(index * 4..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::writer::TableWriter;
    use std::io::Write as _;

    fn frame(function: &str, line: u32) -> SourceFrame {
        SourceFrame { function: function.to_owned(), file: "src/lib.rs".to_owned(), line, column: 5 }
    }

    fn table(writer: &TableWriter) -> (tempfile::NamedTempFile, SourceTable) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writer.write(&mut file).unwrap();
        let table = SourceTable::new(file.path().to_owned());
        (file, table)
    }

    /// Two functions: one at 100 with a call at 110 that has an inlined function, one at 200.
    fn writer() -> TableWriter {
        let mut writer = TableWriter::default();
        writer.begin_function(100);
        writer.add(101, vec![frame("outer", 1)]).unwrap();
        writer.add(110, vec![frame("inner", 7), frame("outer", 2)]).unwrap();
        writer.add(112, vec![frame("inner", 7), frame("outer", 2)]).unwrap();
        writer.add(120, vec![frame("outer", 1)]).unwrap();
        writer.begin_function(200);
        writer.add(201, Vec::new()).unwrap();
        writer.add(210, vec![frame("second", 9)]).unwrap();
        writer
    }

    #[test]
    fn offsets_have_the_frames_of_their_range() {
        let (_file, table) = table(&writer());
        let table = table.open().unwrap();
        let frames = |function, offset| table.frames(function, offset).unwrap();
        assert_eq!(frames(100, 105), [frame("outer", 1)]);
        assert_eq!(frames(100, 113), [frame("inner", 7), frame("outer", 2)]);
        assert_eq!(frames(100, 199), [frame("outer", 1)]);
        assert_eq!(frames(200, 205), []);
        assert_eq!(frames(200, 210), [frame("second", 9)]);
        assert_eq!(frames(100, 99), []);
        assert_eq!(frames(150, 160), [], "no function starts there");
        assert_eq!(frames(50, 60), [], "before the first function");
    }

    #[test]
    fn long_texts_keep_their_end_and_control_characters_are_replaced() {
        let mut writer = TableWriter::default();
        writer.begin_function(1);
        let file = format!("{}\n/lib.rs", "x".repeat(TEXT_BYTES_MAX));
        writer.add(2, vec![SourceFrame { file, ..frame("f", 1) }]).unwrap();
        let (_file, table) = table(&writer);
        let frames = table.open().unwrap().frames(1, 2).unwrap();
        assert_eq!(frames[0].file.len(), TEXT_BYTES_MAX);
        assert!(frames[0].file.ends_with("x /lib.rs"), "{}", frames[0].file);
    }

    #[test]
    fn damaged_tables_are_errors_or_other_frames() {
        let mut intact = Vec::new();
        writer().write(&mut intact).unwrap();
        let read = |bytes: &[u8]| {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(bytes).unwrap();
            SourceTable::new(file.path().to_owned()).open().and_then(|table| table.frames(100, 110))
        };
        assert!(read(b"").is_err() && read(b"weirsrc2\0\0\0\0\0\0\0\0").is_err());
        for at in MAGIC.len()..intact.len() {
            for byte in [0, 0x7f, 0xff] {
                let mut damaged = intact.clone();
                damaged[at] = byte;
                if let Ok(frames) = read(&damaged) {
                    assert!(frames.len() <= FRAMES_PER_INSTRUCTION_MAX, "byte {at}");
                }
            }
            let _ = read(&intact[..at]);
        }
    }
}
