//! Checks for arbitrary bytes from a server of NATS. The fuzzer uses them, and so does a test of
//! `host/nats/`.

use bytes::BytesMut;
use tokio_util::codec::Decoder;
use weir_nats::{Codec, MessageHeaders, ServerFrame};

/// Size limit of a message.
const MESSAGE_BYTES_MAX: usize = 256;

/// Decodes or rejects frames. The first byte is the place at which the bytes arrive in two parts.
pub(crate) fn decode_or_refuse(bytes: &[u8]) {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let (start, end) = bytes.split_at(usize::from(*first).min(bytes.len()));
    let decoded = decode(&[bytes]);
    assert_eq!(decode(&[start, end]), decoded, "the result depends on the parts");
    for frame in decoded.0 {
        let ServerFrame::Message(message) = frame else { continue };
        assert!(message.headers.len() + message.payload.len() <= MESSAGE_BYTES_MAX);
        let headers = MessageHeaders::parse(&message.headers);
        assert!(headers.values.iter().all(|(name, _)| headers.get(name).is_some()));
    }
    let _ = MessageHeaders::parse(bytes);
}

/// Decodes bytes that arrive in parts. Returns the frames before the first error, if any.
fn decode(parts: &[&[u8]]) -> (Vec<ServerFrame>, Option<String>) {
    let mut codec = Codec::new(MESSAGE_BYTES_MAX);
    let mut source = BytesMut::new();
    let mut frames = Vec::new();
    for part in parts {
        source.extend_from_slice(part);
        loop {
            match codec.decode(&mut source) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error.to_string())),
            }
        }
    }
    (frames, None)
}
