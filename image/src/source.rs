//! The encoded bytes as the decoders read them. Reading fails once the decoding is stopped.

use std::cell::Cell;
use std::io::{self, BufRead, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zune_jpeg::zune_core::bytestream::{ZByteIoError, ZByteReaderTrait, ZSeekFrom};

/// Stops a decoding from another thread. Clones stop the same decoding.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Stops the decoding at its next read or row.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the decoding was stopped.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn check(&self) -> Result<(), crate::ImageError> {
        if self.is_set() { Err(crate::ImageError::Stopped) } else { Ok(()) }
    }
}

/// The bytes for the decoders of PNG and WebP.
pub(crate) struct Source<'a> {
    bytes: io::Cursor<&'a [u8]>,
    stop: &'a Stop,
}

impl<'a> Source<'a> {
    pub(crate) fn new(bytes: &'a [u8], stop: &'a Stop) -> Self {
        Self { bytes: io::Cursor::new(bytes), stop }
    }

    fn check(&self) -> io::Result<()> {
        if self.stop.is_set() { Err(io::Error::other("stopped")) } else { Ok(()) }
    }
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        self.bytes.read(buffer)
    }
}

impl BufRead for Source<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.check()?;
        self.bytes.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.bytes.consume(amount);
    }
}

impl Seek for Source<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.bytes.seek(to)
    }
}

/// The bytes for the decoder of JPEG, which replaces missing bytes by zeroes.
pub(crate) struct JpegSource<'a> {
    bytes: &'a [u8],
    at: usize,
    stop: &'a Stop,
    /// Set when the decoder reads beyond the end.
    overran: &'a Cell<bool>,
}

impl<'a> JpegSource<'a> {
    pub(crate) fn new(bytes: &'a [u8], stop: &'a Stop, overran: &'a Cell<bool>) -> Self {
        Self { bytes, at: 0, stop, overran }
    }

    fn rest(&self) -> &'a [u8] {
        if self.stop.is_set() { &[] } else { self.bytes.get(self.at..).unwrap_or(&[]) }
    }
}

impl ZByteReaderTrait for JpegSource<'_> {
    fn read_byte_no_error(&mut self) -> u8 {
        match self.rest().first() {
            Some(byte) => {
                self.at += 1;
                *byte
            }
            None => {
                self.overran.set(true);
                0
            }
        }
    }

    fn read_exact_bytes(&mut self, buffer: &mut [u8]) -> Result<(), ZByteIoError> {
        self.peek_exact_bytes(buffer)?;
        self.at += buffer.len();
        Ok(())
    }

    fn read_bytes(&mut self, buffer: &mut [u8]) -> Result<usize, ZByteIoError> {
        let read = self.peek_bytes(buffer)?;
        self.at += read;
        Ok(read)
    }

    fn peek_bytes(&mut self, buffer: &mut [u8]) -> Result<usize, ZByteIoError> {
        let rest = self.rest();
        let read = rest.len().min(buffer.len());
        buffer[..read].copy_from_slice(&rest[..read]);
        Ok(read)
    }

    fn peek_exact_bytes(&mut self, buffer: &mut [u8]) -> Result<(), ZByteIoError> {
        let rest = self.rest();
        let bytes = rest.get(..buffer.len()).ok_or(ZByteIoError::NotEnoughBytes(rest.len(), buffer.len()))?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn z_seek(&mut self, to: ZSeekFrom) -> Result<u64, ZByteIoError> {
        let target = match to {
            ZSeekFrom::Start(at) => usize::try_from(at).ok(),
            ZSeekFrom::End(offset) => self.bytes.len().checked_add_signed(offset as isize),
            ZSeekFrom::Current(offset) => self.at.checked_add_signed(offset as isize),
        };
        self.at = target.ok_or(ZByteIoError::SeekError("seek out of range"))?;
        Ok(self.at as u64)
    }

    fn is_eof(&mut self) -> Result<bool, ZByteIoError> {
        // The decoder asks after bytes that an image without an end marker lacks.
        let is_end = self.rest().is_empty();
        self.overran.set(self.overran.get() || is_end);
        Ok(is_end)
    }

    fn z_position(&mut self) -> Result<u64, ZByteIoError> {
        Ok(self.at as u64)
    }

    fn read_remaining(&mut self, sink: &mut Vec<u8>) -> Result<usize, ZByteIoError> {
        let rest = self.rest();
        sink.extend_from_slice(rest);
        self.at += rest.len();
        Ok(rest.len())
    }
}
