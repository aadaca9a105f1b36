//! Splits large frames of clients into fragments.
//!
//! The protocol's library reads a frame as a whole, into a buffer that keeps the size of the largest
//! frame. Each WebSocket that has received one large message would hold its memory until it ends.

use tokio_tungstenite::tungstenite::protocol::frame::coding::OpCode;

/// Largest payload of a frame that is not split. The mask of a frame has four bytes, so it fits the
/// start of each fragment.
const FRAGMENT_BYTES: u64 = 16 << 10;
/// Longest head: two bytes, the length and the mask.
pub(super) const HEAD_BYTES_MAX: usize = 14;

const FINAL: u8 = 0x80;
const OPCODE: u8 = 0x0f;
const MASKED: u8 = 0x80;
/// Lengths that are followed by the length in two or eight bytes.
const LENGTH_16: u8 = 126;
const LENGTH_64: u8 = 127;

/// Follows the frames of a client. The caller alternates between the head and the payload of a frame.
#[derive(Debug)]
pub(super) struct FrameSplitter {
    head: Head,
    /// Bytes of the payload until the next head.
    payload_left: u64,
    /// The rest of a frame that is split, after `payload_left`.
    split: Option<SplitFrame>,
    /// Longer frames are not split: they are refused by their head.
    frame_bytes_max: u64,
}

/// The first bytes of a frame.
#[derive(Debug, Default, Clone)]
struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    len: usize,
}

#[derive(Debug, Clone, Copy)]
struct SplitFrame {
    is_final: bool,
    /// The mask, without the length.
    mask: Option<[u8; 4]>,
    bytes_left: u64,
}

impl FrameSplitter {
    pub(super) fn new(frame_bytes_max: usize) -> Self {
        let frame_bytes_max = frame_bytes_max as u64;
        Self { head: Head::default(), payload_left: 0, split: None, frame_bytes_max }
    }

    /// Bytes of the payload that follow, as they are.
    pub(super) fn payload_left(&self) -> u64 {
        self.payload_left
    }

    /// Passes bytes of the payload.
    pub(super) fn pass(&mut self, bytes: usize) {
        self.payload_left = self.payload_left.saturating_sub(bytes as u64);
    }

    /// The head of the next fragment of a split frame.
    pub(super) fn next_fragment(&mut self) -> Option<impl AsRef<[u8]> + use<>> {
        let split = self.split.take()?;
        Some(self.fragment(0, split))
    }

    /// Takes the next byte of a head. Returns the head to read instead, once it is complete.
    pub(super) fn take(&mut self, byte: u8) -> Option<impl AsRef<[u8]> + use<>> {
        let Head { bytes, len } = &mut self.head;
        bytes[*len] = byte;
        *len += 1;
        let [first, second, ..] = *bytes;
        let length_bytes = match second & !MASKED {
            LENGTH_16 => 2,
            LENGTH_64 => 8,
            _ => 0,
        };
        let is_masked = second & MASKED != 0;
        let all = 2 + length_bytes + if is_masked { 4 } else { 0 };
        if *len < 2 || *len < all {
            return None;
        }
        let head = std::mem::take(&mut self.head);
        let length = match length_bytes {
            0 => u64::from(second & !MASKED),
            more => head.bytes[2..2 + more].iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
        };
        let is_data = matches!(OpCode::from(first & OPCODE), OpCode::Data(_));
        if !is_data || length <= FRAGMENT_BYTES || length > self.frame_bytes_max {
            self.payload_left = length;
            return Some(head);
        }
        let mask = is_masked.then(|| head.bytes[2 + length_bytes..all].try_into().unwrap_or_default());
        let split = SplitFrame { is_final: first & FINAL != 0, mask, bytes_left: length };
        Some(self.fragment(first & !FINAL, split))
    }

    /// The head of a fragment whose first byte is `first`, except for whether it is the last one.
    fn fragment(&mut self, first: u8, split: SplitFrame) -> Head {
        let bytes = split.bytes_left.min(FRAGMENT_BYTES);
        let bytes_left = split.bytes_left - bytes;
        let is_last = bytes_left == 0;
        let mut head = Head::default();
        head.push(&[
            first | if is_last && split.is_final { FINAL } else { 0 },
            LENGTH_16 | if split.mask.is_some() { MASKED } else { 0 },
        ]);
        // At most `FRAGMENT_BYTES`, which fits.
        head.push(&u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes());
        head.push(split.mask.as_ref().map_or(&[], |mask| &mask[..]));
        self.payload_left = bytes;
        self.split = (!is_last).then_some(SplitFrame { bytes_left, ..split });
        head
    }
}

impl Head {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

impl AsRef<[u8]> for Head {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_tungstenite::tungstenite::protocol::Role;
    use tokio_tungstenite::tungstenite::protocol::frame::Frame;
    use tokio_tungstenite::tungstenite::protocol::frame::coding::Data;
    use tokio_tungstenite::tungstenite::{Message, WebSocket};

    /// The bytes that the library reads instead of `sent`.
    fn split(sent: &[u8], frame_bytes_max: usize) -> Vec<u8> {
        let mut splitter = FrameSplitter::new(frame_bytes_max);
        let mut read = Vec::new();
        let mut sent = sent.iter().copied();
        loop {
            if splitter.payload_left() > 0 {
                let Some(byte) = sent.next() else { return read };
                read.push(byte);
                splitter.pass(1);
            } else if let Some(head) = splitter.next_fragment() {
                read.extend(head.as_ref());
            } else {
                let Some(byte) = sent.next() else { return read };
                read.extend(splitter.take(byte).iter().flat_map(AsRef::as_ref));
            }
        }
    }

    /// The bytes that a client sends.
    fn sent(frames: Vec<Frame>) -> Vec<u8> {
        let mut client = WebSocket::from_raw_socket(std::io::Cursor::new(Vec::new()), Role::Client, None);
        for frame in frames {
            client.send(Message::Frame(frame)).unwrap();
        }
        client.into_inner().into_inner()
    }

    #[test]
    fn messages_are_the_same_and_frames_are_small() {
        let data = |kind: Data, bytes: usize, is_last| {
            let payload: Vec<u8> = (0..bytes).map(|at| u8::try_from(at % 251).unwrap()).collect();
            Frame::message(payload, OpCode::Data(kind), is_last)
        };
        for bytes in [0, 1, 125, 126, 16_384, 16_385, 32_768, 65_535, 65_536, 1_000_003] {
            let frames = vec![
                data(Data::Binary, bytes, true),
                data(Data::Binary, bytes, false),
                Frame::pong(vec![7; 125]),
                data(Data::Continue, bytes, true),
                data(Data::Binary, 3, true),
            ];
            let read = split(&sent(frames), 1 << 20);
            let mut server =
                WebSocket::from_raw_socket(std::io::Cursor::new(read.clone()), Role::Server, None);
            server
                .set_config(|config| config.max_frame_size = Some(usize::try_from(FRAGMENT_BYTES).unwrap()));
            let mut lengths = Vec::new();
            while let Ok(message) = server.read() {
                let content = message.into_data();
                assert!(
                    content
                        .iter()
                        .take(bytes)
                        .enumerate()
                        .all(|(at, byte)| *byte == 7 || at % 251 == usize::from(*byte))
                );
                lengths.push(content.len());
            }
            assert_eq!(lengths, [bytes, 125, 2 * bytes, 3], "{bytes}");
        }
    }

    #[test]
    fn frames_that_are_refused_by_their_head_are_not_split() {
        let frames = vec![Frame::message(vec![0; 20_000], OpCode::Data(Data::Binary), true)];
        let bytes = sent(frames);
        assert_eq!(split(&bytes, 19_999), bytes);
        let ping = sent(vec![Frame::ping(vec![0; 20_000])]);
        assert_eq!(split(&ping, 1 << 20), ping);
    }
}
