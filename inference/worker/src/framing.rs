//! Length-prefixed JSON messages over a socket.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};

/// Maximum length of a message in bytes. Messages have names, shapes and offsets of tensors, and
/// the footprints of models by weight.
const MESSAGE_BYTES_MAX: u32 = 16 << 20;

/// Sends a message.
pub fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_vec(message).map_err(io::Error::other)?;
    let len = u32::try_from(json.len()).ok().filter(|len| *len <= MESSAGE_BYTES_MAX);
    let len = len.ok_or_else(|| io::Error::other("a message is too long"))?;
    let mut frame = Vec::with_capacity(json.len() + 4);
    frame.extend_from_slice(&len.to_le_bytes());
    frame.extend_from_slice(&json);
    to.write_all(&frame)
}

/// Receives a message; returns `None` if the peer has closed the socket.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut len = [0; 4];
    if !fill(from, &mut len)? {
        return Ok(None);
    }
    let len = u32::from_le_bytes(len);
    if len > MESSAGE_BYTES_MAX {
        return Err(io::Error::other(format!("a message of {len} bytes is too long")));
    }
    let mut json = vec![0; len as usize];
    if !fill(from, &mut json)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&json).map(Some).map_err(io::Error::other)
}

/// Fills the buffer; returns false at the end of the stream.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match from.read(rest) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_round_trip() {
        let mut sent = Vec::new();
        send(&mut sent, &("one", 1)).unwrap();
        send(&mut sent, &("two", 2)).unwrap();
        let mut rest = &sent[..];
        let mut next = || receive::<(String, u32)>(&mut rest).unwrap();
        assert_eq!(
            [next(), next(), next()],
            [Some(("one".to_owned(), 1)), Some(("two".to_owned(), 2)), None]
        );
    }

    #[test]
    fn truncated_or_oversized_messages_are_errors() {
        let mut sent = Vec::new();
        send(&mut sent, &"done").unwrap();
        for end in 1..sent.len() {
            assert!(receive::<String>(&mut &sent[..end]).is_err(), "{end}");
        }
        assert!(receive::<String>(&mut &u32::MAX.to_le_bytes()[..]).is_err());
        assert!(send(&mut Vec::new(), &"x".repeat(MESSAGE_BYTES_MAX as usize)).is_err());
    }

    /// Reader that returns bytes in pieces of these lengths.
    struct Pieces<'a>(&'a [u8], std::iter::Cycle<std::slice::Iter<'a, usize>>);

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let len = self.1.next().map_or(buffer.len(), |len| (*len).min(buffer.len()));
            self.0.read(&mut buffer[..len])
        }
    }

    proptest! {
        #[test]
        fn messages_round_trip_in_any_pieces(
            messages in prop::collection::vec((".{0,40}", any::<Option<u64>>()), 0..5),
            pieces in prop::collection::vec(1..20_usize, 1..10),
        ) {
            let mut sent = Vec::new();
            for message in &messages {
                send(&mut sent, message).unwrap();
            }
            let mut from = Pieces(&sent, pieces.iter().cycle());
            for message in messages {
                prop_assert_eq!(receive(&mut from).unwrap(), Some(message));
            }
            prop_assert_eq!(receive::<(String, Option<u64>)>(&mut from).unwrap(), None);
        }

        #[test]
        fn bytes_of_a_hostile_peer_are_a_message_an_end_or_an_error(
            bytes in prop::collection::vec(any::<u8>(), 0..100),
            len in any::<Option<u8>>(),
        ) {
            // Often with the right length.
            let framed = len.map(|len| [&u32::from(len).to_le_bytes()[..], &bytes].concat());
            let mut from = framed.as_deref().unwrap_or(&bytes);
            let mut left = from.len();
            while let Ok(Some(_)) = receive::<(String, Option<u64>)>(&mut from) {
                prop_assert!(from.len() < left);
                left = from.len();
            }
        }
    }
}
