//! Records of the bodies of a WebSocket: one byte for the kind, the length of the payload as four
//! bytes in little-endian order, and the payload.

use super::{Close, Message};
use crate::{Error, Result};

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
/// Bytes before the payload.
const HEAD: usize = 5;
/// Longest reason of a close, in bytes (RFC 6455, section 5.5).
const REASON_BYTES_MAX: usize = 123;

/// A record of the request body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Record {
    Message(Message),
    Close(Close),
}

/// Bytes of the request body, of which whole records are taken.
#[derive(Debug, Default)]
pub(super) struct Records {
    bytes: Vec<u8>,
    /// Bytes that were taken.
    taken: usize,
}

impl Records {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.taken));
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether a whole record is there.
    pub(super) fn has_next(&self) -> bool {
        self.whole().is_some()
    }

    /// Takes the next record; `None` until the whole record has arrived.
    pub(super) fn next(&mut self) -> Result<Option<Record>> {
        let Some((kind, payload)) = self.whole() else { return Ok(None) };
        let record = decode(kind, payload)?;
        self.taken += HEAD + payload.len();
        Ok(Some(record))
    }

    fn whole(&self) -> Option<(u8, &[u8])> {
        let (head, rest) = self.bytes.get(self.taken..)?.split_first_chunk::<HEAD>()?;
        let [kind, length @ ..] = *head;
        let length = usize::try_from(u32::from_le_bytes(length)).ok()?;
        Some((kind, rest.get(..length)?))
    }
}

fn decode(kind: u8, payload: &[u8]) -> Result<Record> {
    let text = |bytes: &[u8]| {
        let text = String::from_utf8(bytes.to_vec());
        text.map_err(|error| Error::new(400, format!("the message is no text: {error}")))
    };
    Ok(match (kind, payload) {
        (TEXT, payload) => Record::Message(Message::Text(text(payload)?)),
        (BINARY, payload) => Record::Message(Message::Binary(payload.to_vec())),
        (CLOSE, [low, high, reason @ ..]) => {
            Record::Close(Close { code: u16::from_le_bytes([*low, *high]), reason: text(reason)? })
        }
        _ => return Err(Error::new(400, format!("the body has a record of the unknown kind {kind}"))),
    })
}

pub(super) fn encode(message: &Message) -> Result<Vec<u8>> {
    match message {
        Message::Text(text) => record(TEXT, &[text.as_bytes()]),
        Message::Binary(bytes) => record(BINARY, &[bytes]),
    }
}

pub(super) fn encode_close(code: u16, reason: &str) -> Result<Vec<u8>> {
    if reason.len() > REASON_BYTES_MAX {
        return Err(Error::invalid(format!("the reason of a close has more than {REASON_BYTES_MAX} bytes")));
    }
    record(CLOSE, &[&code.to_le_bytes(), reason.as_bytes()])
}

fn record(kind: u8, parts: &[&[u8]]) -> Result<Vec<u8>> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let length_field = u32::try_from(length).map_err(|_| Error::invalid("the message has 4 GiB or more"))?;
    let mut record = Vec::with_capacity(HEAD + length);
    record.push(kind);
    record.extend_from_slice(&length_field.to_le_bytes());
    parts.iter().for_each(|part| record.extend_from_slice(part));
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_from_pieces_of_any_size() {
        let messages = [Message::from("grüezi"), Message::from(vec![0; 300]), Message::from("")];
        let mut bytes: Vec<u8> = messages.iter().flat_map(|message| encode(message).unwrap()).collect();
        bytes.extend(encode_close(4_000, "enough").unwrap());
        for size in [1, 7, bytes.len()] {
            let mut records = Records::default();
            let mut read = Vec::new();
            for piece in bytes.chunks(size) {
                records.push(piece);
                assert_eq!(records.has_next(), records.whole().is_some());
                while let Some(record) = records.next().unwrap() {
                    read.push(record);
                }
            }
            let close = Record::Close(Close { code: 4_000, reason: "enough".into() });
            assert_eq!(read.pop(), Some(close), "pieces of {size}");
            assert_eq!(read, messages.clone().map(Record::Message));
        }
    }

    #[test]
    fn unknown_kinds_and_broken_text_are_errors() {
        for bad in [&[3_u8, 0, 0, 0, 0][..], &[TEXT, 1, 0, 0, 0, 0xff], &[CLOSE, 1, 0, 0, 0, 1]] {
            let mut records = Records::default();
            records.push(bad);
            assert_eq!(records.next().unwrap_err().status(), 400, "{bad:?}");
        }
        assert!(encode_close(1_000, &"a".repeat(124)).is_err());
    }
}
