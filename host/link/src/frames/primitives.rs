//! Numbers, options and lists in a frame.

use super::{FrameError, FrameReader, FrameWriter};

/// The longest encoding of a number: 64 bits, seven in each byte.
const NUMBER_BYTES_MAX: u32 = 10;

/// The elements for which a list gets room at once. A longer list grows as its elements are read,
/// so that a hostile length takes no memory.
const ROOM_MAX: usize = 64;

/// A value in a frame.
pub(super) trait Wire: Sized {
    /// Appends the value.
    fn put(&self, out: &mut FrameWriter<'_>);

    /// Reads the value.
    fn take(from: &mut FrameReader<'_>) -> Result<Self, FrameError>;
}

impl FrameWriter<'_> {
    pub(super) fn byte(&mut self, byte: u8) {
        self.bytes.extend_from_slice(&[byte]);
    }

    /// Appends a number: seven bits in each byte, the lowest first, and a high bit where more
    /// follow.
    pub(super) fn number(&mut self, mut number: u64) {
        let mut bytes = [0; NUMBER_BYTES_MAX as usize];
        let mut len = 0;
        for place in &mut bytes {
            len += 1;
            *place = (number & 0x7f) as u8;
            number >>= 7;
            if number == 0 {
                break;
            }
            *place |= 0x80;
        }
        self.bytes.extend_from_slice(bytes.get(..len).unwrap_or_default());
    }
}

impl<'a> FrameReader<'a> {
    pub(super) fn byte(&mut self) -> Result<u8, FrameError> {
        let (byte, rest) = self.bytes.split_first().ok_or(FrameError::Truncated)?;
        self.bytes = rest;
        Ok(*byte)
    }

    pub(super) fn number(&mut self) -> Result<u64, FrameError> {
        let mut number = 0;
        for place in 0..NUMBER_BYTES_MAX {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            let shifted = bits << (7 * place);
            if shifted >> (7 * place) != bits {
                return Err(FrameError::Overflow);
            }
            number |= shifted;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(FrameError::Overflow)
    }

    /// Reads the number of elements or bytes that follow. Each takes a byte or more.
    pub(super) fn len(&mut self) -> Result<usize, FrameError> {
        let len = usize::try_from(self.number()?).map_err(|_| FrameError::Truncated)?;
        if len > self.bytes.len() { Err(FrameError::Truncated) } else { Ok(len) }
    }

    pub(super) fn slice(&mut self, len: usize) -> Result<&'a [u8], FrameError> {
        let (slice, rest) = self.bytes.split_at_checked(len).ok_or(FrameError::Truncated)?;
        self.bytes = rest;
        Ok(slice)
    }
}

impl Wire for u64 {
    fn put(&self, out: &mut FrameWriter<'_>) {
        out.number(*self);
    }

    fn take(from: &mut FrameReader<'_>) -> Result<Self, FrameError> {
        from.number()
    }
}

impl Wire for u32 {
    fn put(&self, out: &mut FrameWriter<'_>) {
        out.number(u64::from(*self));
    }

    fn take(from: &mut FrameReader<'_>) -> Result<Self, FrameError> {
        Self::try_from(from.number()?).map_err(|_| FrameError::Overflow)
    }
}

impl Wire for bool {
    fn put(&self, out: &mut FrameWriter<'_>) {
        out.byte(u8::from(*self));
    }

    fn take(from: &mut FrameReader<'_>) -> Result<Self, FrameError> {
        match from.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(FrameError::Unknown { what: "truth value", value: value.into() }),
        }
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut FrameWriter<'_>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(from: &mut FrameReader<'_>) -> Result<Self, FrameError> {
        if bool::take(from)? { T::take(from).map(Some) } else { Ok(None) }
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut FrameWriter<'_>) {
        out.number(self.len() as u64);
        for element in self {
            element.put(out);
        }
    }

    fn take(from: &mut FrameReader<'_>) -> Result<Self, FrameError> {
        let len = from.len()?;
        let mut elements = Self::with_capacity(len.min(ROOM_MAX));
        for _ in 0..len {
            elements.push(T::take(from)?);
        }
        Ok(elements)
    }
}

impl<T: Wire> Wire for Box<T> {
    fn put(&self, out: &mut FrameWriter<'_>) {
        T::put(self, out);
    }

    fn take(from: &mut FrameReader<'_>) -> Result<Self, FrameError> {
        T::take(from).map(Self::new)
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut FrameWriter<'_>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut FrameReader<'_>) -> Result<Self, FrameError> {
        Ok((A::take(from)?, B::take(from)?))
    }
}
