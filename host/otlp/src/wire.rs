//! Protobuf's wire format, written in place: spans are encoded on the threads that serve requests.

/// Appends fields of a message to a buffer.
pub(crate) struct Message<'b>(pub(crate) &'b mut Vec<u8>);

/// Wire types of fields.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;
const FIXED32: u32 = 5;

impl Message<'_> {
    fn tag(&mut self, field: u32, wire_type: u32) {
        self.raw_varint(u64::from(field << 3 | wire_type));
    }

    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            // The lowest seven bits and the mark that more follow.
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push((value & 0x7f) as u8);
    }

    /// An integer, truth value or enumerated value.
    pub(crate) fn varint(&mut self, field: u32, value: u64) {
        self.tag(field, VARINT);
        self.raw_varint(value);
    }

    pub(crate) fn fixed32(&mut self, field: u32, value: u32) {
        self.tag(field, FIXED32);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn fixed64(&mut self, field: u32, value: u64) {
        self.tag(field, FIXED64);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn double(&mut self, field: u32, value: f64) {
        self.fixed64(field, value.to_bits());
    }

    pub(crate) fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.tag(field, LENGTH);
        self.raw_varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn string(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    /// Numbers of 64 bits, in one packed field.
    pub(crate) fn packed64(&mut self, field: u32, values: impl ExactSizeIterator<Item = u64>) {
        self.tag(field, LENGTH);
        self.raw_varint(8 * values.len() as u64);
        for value in values {
            self.0.extend_from_slice(&value.to_le_bytes());
        }
    }

    /// A message within the message.
    pub(crate) fn message(&mut self, field: u32, write: impl FnOnce(&mut Message<'_>)) {
        self.tag(field, LENGTH);
        let at = self.0.len();
        // Most messages are short: their length takes one byte.
        self.0.push(0);
        write(&mut Message(self.0));
        let length = self.0.len() - at - 1;
        if let Ok(short @ ..0x80) = u8::try_from(length) {
            self.0[at] = short;
            return;
        }
        let end = self.0.len();
        self.raw_varint(length as u64);
        let more = self.0.len() - end;
        self.0[at..].rotate_right(more);
        // The placeholder was moved behind the length.
        self.0.remove(at + more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_nested_messages_are_minimal_varints() {
        for len in [0, 1, 127, 128, 16_383, 16_384, 100_000] {
            let mut written = Vec::new();
            Message(&mut written).message(1, |inner| inner.0.resize(inner.0.len() + len, 7));
            let mut expected = Vec::new();
            Message(&mut expected).bytes(1, &vec![7; len]);
            assert!(written == expected, "{len}");
        }
    }
}
