//! Records of the bodies of a WebSocket: one byte for the kind, the length of the payload as four
//! bytes in little-endian order, and the payload.

use bytes::{Buf as _, Bytes, BytesMut};
use tokio_tungstenite::tungstenite::Utf8Bytes;
use weir_device::{Arena, ArenaExhausted};

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
/// Bytes before the payload.
const HEAD: usize = 5;
/// Messages up to this size leave their memory to the next ones.
const KEPT_BYTES_MAX: usize = 16 << 10;
/// Longest reason of a close, in bytes (RFC 6455, section 5.5).
const REASON_BYTES_MAX: usize = 123;

/// The reason why a WebSocket is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Close {
    pub(super) code: u16,
    pub(super) reason: String,
}

/// A record that a function has written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Record {
    Text(Utf8Bytes),
    Binary(Bytes),
    Close(Close),
}

/// A body that is no sequence of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum RecordError {
    #[error("a record has the unknown kind {0}; 1 is text, 2 binary and 8 a close")]
    Kind(u8),
    #[error("a message has {bytes} bytes, more than {bytes_max} (sandbox.websockets.message_bytes_max)")]
    TooLarge { bytes: usize, bytes_max: usize },
    #[error("a text message is no UTF-8")]
    Text,
    #[error(
        "a close has a code of two bytes that may be sent (1000 to 1003, 1007 to 1014, 3000 to 4999), and a reason of at most {REASON_BYTES_MAX} bytes of UTF-8"
    )]
    Close,
    #[error("the body ends within a record")]
    Truncated,
}

impl Close {
    pub(super) fn new(code: u16, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into() }
    }

    /// The reason when the node stops.
    pub(super) fn stopping() -> Self {
        Self::new(1001, "the node is stopping")
    }

    /// The record for the function.
    pub(super) fn encode(&self) -> Bytes {
        let length = u32::try_from(2 + self.reason.len()).unwrap_or(u32::MAX);
        let parts = [&[CLOSE][..], &length.to_le_bytes(), &self.code.to_le_bytes(), self.reason.as_bytes()];
        Bytes::from(parts.concat())
    }
}

/// The record of a client's message, in memory of `arena`.
pub(super) fn encode(is_text: bool, payload: &[u8], arena: &Arena) -> Result<Bytes, ArenaExhausted> {
    // `message_bytes_max` fits into 32 bits.
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let mut record = arena.with_capacity(HEAD + payload.len())?;
    record.extend_from_slice(&[if is_text { TEXT } else { BINARY }])?;
    record.extend_from_slice(&length.to_le_bytes())?;
    record.extend_from_slice(payload)?;
    Ok(Bytes::from(record.freeze()))
}

/// Reads the records of a function.
#[derive(Debug)]
pub(super) struct RecordReader {
    bytes: BytesMut,
    message_bytes_max: usize,
}

impl RecordReader {
    pub(super) fn new(message_bytes_max: usize) -> Self {
        Self { bytes: BytesMut::new(), message_bytes_max }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next record; `None` until the whole record is there.
    pub(super) fn next(&mut self) -> Result<Option<Record>, RecordError> {
        let Some((head, _)) = self.bytes.split_first_chunk::<HEAD>() else { return Ok(None) };
        let [kind, length @ ..] = *head;
        let bytes = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        // Before the payload, so that no more of it is kept than a message may have.
        match kind {
            TEXT | BINARY if bytes > self.message_bytes_max => {
                return Err(RecordError::TooLarge { bytes, bytes_max: self.message_bytes_max });
            }
            CLOSE if !(2..=2 + REASON_BYTES_MAX).contains(&bytes) => return Err(RecordError::Close),
            TEXT | BINARY | CLOSE => {}
            kind => return Err(RecordError::Kind(kind)),
        }
        if self.bytes.len() - HEAD < bytes {
            return Ok(None);
        }
        self.bytes.advance(HEAD);
        let payload = self.bytes.split_to(bytes).freeze();
        if bytes > KEPT_BYTES_MAX {
            // The rest would keep the memory of the whole message.
            self.bytes = BytesMut::from(&self.bytes[..]);
        }
        Ok(Some(match kind {
            TEXT => Record::Text(Utf8Bytes::try_from(payload).map_err(|_| RecordError::Text)?),
            BINARY => Record::Binary(payload),
            _ => Record::Close(close(payload)?),
        }))
    }

    /// Bytes of the record that is not complete yet.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Checks that the body ends between two records.
    pub(super) fn end(&self) -> Result<(), RecordError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(RecordError::Truncated) }
    }
}

/// Finds the ends of records in a body that passes through.
#[derive(Debug, Default)]
pub(super) struct RecordFollower {
    head: [u8; HEAD],
    head_len: usize,
    payload_left: usize,
}

impl RecordFollower {
    /// Follows the next bytes of the body. Returns the number of bytes to the end of the last record
    /// that ends in them.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) -> Option<usize> {
        let all = bytes.len();
        let mut end = None;
        while !bytes.is_empty() {
            if self.head_len < HEAD {
                self.head[self.head_len] = bytes.get_u8();
                self.head_len += 1;
                let [_, length @ ..] = self.head;
                self.payload_left = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
            } else {
                let taken = self.payload_left.min(bytes.len());
                bytes.advance(taken);
                self.payload_left -= taken;
            }
            if self.head_len == HEAD && self.payload_left == 0 {
                self.head_len = 0;
                end = Some(all - bytes.len());
            }
        }
        end
    }

    /// Whether the body so far ends between two records.
    pub(super) fn is_between(&self) -> bool {
        self.head_len == 0
    }
}

fn close(mut payload: Bytes) -> Result<Close, RecordError> {
    let code = payload.get_u16_le();
    let may_be_sent = matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
    let reason = String::from_utf8(payload.into()).ok().filter(|_| may_be_sent);
    reason.map(|reason| Close { code, reason }).ok_or(RecordError::Close)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
        [&[kind][..], &u32::try_from(payload.len()).unwrap().to_le_bytes(), payload].concat()
    }

    #[test]
    fn records_are_read_from_pieces_of_any_size() {
        let arena = Arena::new(1 << 20);
        let mut bytes = encode(true, "grüezi".as_bytes(), &arena).unwrap().to_vec();
        bytes.extend(encode(false, &[7; 300], &arena).unwrap());
        bytes.extend(encode(true, b"", &arena).unwrap());
        bytes.extend(Close::new(4_000, "enough").encode());
        for size in [1, 7, bytes.len()] {
            let mut reader = RecordReader::new(300);
            let mut read = Vec::new();
            for piece in bytes.chunks(size) {
                reader.push(piece);
                while let Some(record) = reader.next().unwrap() {
                    read.push(record);
                }
            }
            assert_eq!(
                read,
                [
                    Record::Text("grüezi".into()),
                    Record::Binary(Bytes::from(vec![7; 300])),
                    Record::Text("".into()),
                    Record::Close(Close::new(4_000, "enough")),
                ],
                "pieces of {size}"
            );
            assert_eq!(reader.end(), Ok(()));
        }
    }

    #[test]
    fn large_records_leave_no_memory() {
        let mut reader = RecordReader::new(1 << 20);
        reader.push(&[record(BINARY, &vec![7; 1 << 20]), record(TEXT, b"next")].concat());
        assert!(matches!(reader.next(), Ok(Some(Record::Binary(_)))));
        assert_eq!(reader.waiting_bytes(), HEAD + 4);
        assert_eq!(reader.next(), Ok(Some(Record::Text("next".into()))));
        reader.push(&[TEXT]);
        assert!(reader.bytes.capacity() < 1 << 10, "{} bytes are kept", reader.bytes.capacity());
    }

    #[test]
    fn invalid_records_are_refused_before_their_payload() {
        let error = |bytes: &[u8]| {
            let mut reader = RecordReader::new(10);
            reader.push(bytes);
            reader.next().unwrap_err()
        };
        assert_eq!(error(&[3, 0, 0, 0, 0]), RecordError::Kind(3));
        assert_eq!(error(&[TEXT, 11, 0, 0, 0]), RecordError::TooLarge { bytes: 11, bytes_max: 10 });
        assert_eq!(error(&[CLOSE, 1, 0, 0, 0]), RecordError::Close);
        assert_eq!(error(&[CLOSE, 126, 0, 0, 0]), RecordError::Close);
        assert_eq!(error(&record(TEXT, b"\xff")), RecordError::Text);
        for code in [0, 999, 1004, 1005, 1006, 1015, 2_999, 5_000_u16] {
            assert_eq!(error(&record(CLOSE, &code.to_le_bytes())), RecordError::Close, "{code}");
        }
        assert_eq!(error(&record(CLOSE, b"\xe8\x03\xff")), RecordError::Close, "the reason is no text");
        let mut reader = RecordReader::new(10);
        reader.push(&[TEXT, 2, 0]);
        assert_eq!((reader.next(), reader.end()), (Ok(None), Err(RecordError::Truncated)));
    }
}
