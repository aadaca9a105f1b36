//! Fields of protocol buffers, read from a file.

use super::section::Section;
use crate::error::Problem;
use std::io::{self, BufReader, Read as _};
use std::ops::Range;

/// Reason why weights cannot be embedded.
pub(super) enum Defect {
    /// The file is not a message of protocol buffers.
    Malformed,
    /// The file cannot be read.
    Io(io::Error),
    /// The weights are not where the model says.
    Weights(Problem),
}

impl From<io::Error> for Defect {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Problem> for Defect {
    fn from(problem: Problem) -> Self {
        Self::Weights(problem)
    }
}

/// A field of a message.
pub(super) struct Field {
    pub(super) number: u32,
    /// Offset of its key.
    pub(super) start: u64,
    value: Value,
}

enum Value {
    Varint {
        number: u64,
        end: u64,
    },
    Bytes(Range<u64>),
    /// A number of fixed size.
    Fixed {
        end: u64,
    },
}

impl Field {
    /// Offset after the field.
    pub(super) fn end(&self) -> u64 {
        match self.value {
            Value::Varint { end, .. } | Value::Fixed { end } => end,
            Value::Bytes(Range { end, .. }) => end,
        }
    }

    /// The range of a message, text or bytes.
    pub(super) fn bytes(&self) -> Result<Range<u64>, Defect> {
        match &self.value {
            Value::Bytes(range) => Ok(range.clone()),
            Value::Varint { .. } | Value::Fixed { .. } => Err(Defect::Malformed),
        }
    }

    /// The value of an integer or enumeration.
    pub(super) fn number(&self) -> Result<u64, Defect> {
        match self.value {
            Value::Varint { number, .. } => Ok(number),
            Value::Bytes(_) | Value::Fixed { .. } => Err(Defect::Malformed),
        }
    }
}

/// File with a message.
pub(super) struct Source {
    reader: BufReader<Section>,
    position: u64,
}

impl Source {
    pub(super) fn new(section: Section) -> Self {
        Self { reader: BufReader::new(section), position: 0 }
    }

    /// Reads the field at the start of `range`, which ends with its message.
    pub(super) fn field(&mut self, range: Range<u64>) -> Result<Field, Defect> {
        self.seek(range.start)?;
        let key = self.varint(range.end)?;
        let number = u32::try_from(key >> 3).map_err(|_| Defect::Malformed)?;
        let value = match key & 7 {
            0 => {
                let value = self.varint(range.end)?;
                Value::Varint { number: value, end: self.position }
            }
            1 => Value::Fixed { end: self.position + 8 },
            2 => {
                let len = self.varint(range.end)?;
                let end = self.position.checked_add(len).ok_or(Defect::Malformed)?;
                Value::Bytes(self.position..end)
            }
            5 => Value::Fixed { end: self.position + 4 },
            // Groups, which no version of ONNX has.
            _ => return Err(Defect::Malformed),
        };
        let field = Field { number, start: range.start, value };
        if field.end() <= range.end { Ok(field) } else { Err(Defect::Malformed) }
    }

    /// Reads a text of at most `bytes_max` bytes.
    pub(super) fn text(&mut self, range: Range<u64>, bytes_max: u64) -> Result<String, Defect> {
        let len = range.end - range.start;
        if len > bytes_max {
            return Err(Defect::Malformed);
        }
        self.seek(range.start)?;
        let mut bytes = Vec::new();
        self.position += (&mut self.reader).take(len).read_to_end(&mut bytes)? as u64;
        String::from_utf8(bytes).map_err(|_| Defect::Malformed)
    }

    fn varint(&mut self, end: u64) -> Result<u64, Defect> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            if self.position >= end {
                return Err(Defect::Malformed);
            }
            let mut byte = [0];
            self.reader.read_exact(&mut byte)?;
            self.position += 1;
            number |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] < 0x80 {
                return Ok(number);
            }
        }
        Err(Defect::Malformed)
    }

    fn seek(&mut self, to: u64) -> io::Result<()> {
        let distance = i64::try_from(to).ok().zip(i64::try_from(self.position).ok());
        let distance = distance.map(|(to, from)| to - from);
        self.reader.seek_relative(distance.ok_or_else(|| io::Error::other("the file is too long"))?)?;
        self.position = to;
        Ok(())
    }
}

/// Key and length of a field with `len` bytes.
pub(super) fn length_delimited(number: u32, len: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for mut rest in [(u64::from(number) << 3) | 2, len] {
        while rest >= 0x80 {
            bytes.push(rest.to_le_bytes()[0] | 0x80);
            rest >>= 7;
        }
        bytes.push(rest.to_le_bytes()[0]);
    }
    bytes
}
