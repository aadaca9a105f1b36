//! Checks for arbitrary bytes on the link between a node and the dispatcher. The fuzzer uses them,
//! and so does a test of `host/link/`, which keeps them compiling.

use std::fmt::Debug;
use weir_link::{DispatcherCommand, FrameDecoder, FrameEncoder, FrameError, Message, NodeEvent};

/// Decodes or rejects frames. The lowest bit of the first byte is the direction of the link, and the
/// other bits are the place at which the bytes arrive in two parts.
pub(crate) fn decode_or_refuse(bytes: &[u8]) {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let at = usize::from(first >> 1).min(bytes.len());
    match first & 1 {
        0 => check::<NodeEvent>(bytes, at),
        _ => check::<DispatcherCommand>(bytes, at),
    }
}

fn check<M: Message + Clone + Debug + PartialEq>(bytes: &[u8], at: usize) {
    let decoded = decode::<M>(&[bytes]);
    let parts = bytes.split_at(at);
    assert_eq!(decode::<M>(&[parts.0, parts.1]), decoded, "the result depends on the parts");
    let messages = decoded.0;
    let encoded = FrameEncoder::default().encode(messages.clone());
    assert_eq!(decode::<M>(&[&encoded]), (messages, None));
}

/// Decodes bytes that arrive in parts. Returns the messages before the first error, if any.
fn decode<M: Message>(parts: &[&[u8]]) -> (Vec<M>, Option<FrameError>) {
    let mut decoder = FrameDecoder::default();
    let mut messages = Vec::new();
    for part in parts {
        decoder.receive(part);
        loop {
            match decoder.decode() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
        }
    }
    (messages, None)
}
