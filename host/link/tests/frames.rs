//! Messages come back as they were sent, and bytes that are not frames are rejected.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod messages;

use messages::{arrival, command, event, finished, start};
use proptest::prelude::*;
use std::fmt::Debug;
use weir_link::{
    DispatcherCommand, FRAME_BYTES_MAX, FrameDecoder, FrameEncoder, FrameError, Message, NodeEvent, PROTOCOL,
};

/// Decodes all messages of bytes that arrive in parts of this size.
fn decode<M: Message>(bytes: &[u8], part: usize) -> Result<Vec<M>, FrameError> {
    let mut decoder = FrameDecoder::default();
    let mut messages = Vec::new();
    for part in bytes.chunks(part) {
        decoder.receive(part);
        while let Some(message) = decoder.decode()? {
            messages.push(message);
        }
    }
    Ok(messages)
}

/// A frame with this message.
fn framed(message: &[u8]) -> Vec<u8> {
    let head = u32::try_from(message.len()).unwrap().to_le_bytes();
    [&head[..], message].concat()
}

/// Encodes messages in two calls, and decodes the bytes.
fn assert_round_trip<M: Message + Clone + Debug + PartialEq>(messages: &[M], part: usize) {
    let mut encoder = FrameEncoder::default();
    let halves = messages.split_at(messages.len() / 2);
    let encoded = [halves.0, halves.1].map(|half| encoder.encode(half.iter().cloned()));
    assert_eq!(decode::<M>(&encoded.concat(), part).as_deref(), Ok(messages));
}

proptest! {
    #[test]
    fn events_come_back_as_sent(events in prop::collection::vec(event(), 1..12), part in 1_usize..5_000) {
        assert_round_trip(&events, part);
    }

    #[test]
    fn commands_come_back_as_sent(
        commands in prop::collection::vec(command(), 1..12),
        part in 1_usize..5_000,
    ) {
        assert_round_trip(&commands, part);
    }
}

/// A node of another build of this protocol must decode the same bytes: raise [`PROTOCOL`] whenever
/// these bytes change.
#[test]
fn frames_of_this_protocol_do_not_change() {
    let events = FrameEncoder::default().encode([arrival(), finished(), arrival()]);
    let commands = FrameEncoder::default().encode([start(), start()]);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(PROTOCOL, 9);
    assert_eq!(
        (&*hex(&events), &*hex(&commands)),
        (include_str!("golden/events").trim(), include_str!("golden/commands").trim())
    );
}

#[test]
fn recurring_names_are_sent_once() {
    let mut encoder = FrameEncoder::default();
    let first = encoder.encode([arrival()]);
    let second = encoder.encode([arrival()]);
    assert!(second.len() < 48 && second.len() + 10 < first.len(), "{} {}", first.len(), second.len());
}

#[test]
fn truncated_message_is_rejected() {
    let encoded = FrameEncoder::default().encode([start()]);
    let message = &encoded[4..];
    assert_eq!(decode::<DispatcherCommand>(&framed(message), 7), Ok(vec![start()]));
    for len in 0..message.len() {
        let refused = decode::<DispatcherCommand>(&framed(&message[..len]), 7);
        assert_eq!(refused, Err(FrameError::Truncated), "{len}");
    }
    let longer = framed(&[message, &[0]].concat());
    assert_eq!(decode::<DispatcherCommand>(&longer, 7), Err(FrameError::TrailingBytes(1)));
}

#[test]
fn hostile_lengths_are_rejected_before_memory_is_taken() {
    // The length of the frame.
    let len = u32::try_from(FRAME_BYTES_MAX + 1).unwrap().to_le_bytes();
    assert_eq!(decode::<NodeEvent>(&len, 4), Err(FrameError::TooLong(FRAME_BYTES_MAX + 1)));
    // A JSON line of an earlier protocol.
    let json = decode::<NodeEvent>(b"{\"hello\":{\"node\":1", 64);
    assert!(matches!(json, Err(FrameError::TooLong(_))), "{json:?}");
    // The number of models in an arrival's list, and a number of more than 64 bits.
    let staged = |len: &[u8]| decode::<NodeEvent>(&framed(&[&[11], len].concat()), 64);
    assert_eq!(staged(&[0xff, 0xff, 0xff, 0xff, 0x0f]), Err(FrameError::Truncated));
    assert_eq!(staged(&[0xff; 11]), Err(FrameError::Overflow));
}

#[test]
fn undefined_values_are_rejected() {
    let event = |message: &[u8]| decode::<NodeEvent>(&framed(message), 64);
    assert_eq!(event(&[19]), Err(FrameError::Unknown { what: "event", value: 19 }));
    // A cancelled invocation whose use is neither absent nor present.
    assert_eq!(event(&[6, 1, 2]), Err(FrameError::Unknown { what: "truth value", value: 2 }));
    // An ordinal of more than 32 bits.
    assert_eq!(event(&[12, 0xff, 0xff, 0xff, 0xff, 0x7f]), Err(FrameError::Overflow));
    // A model that is evicted: its tenant is text 3, of which there is none.
    assert_eq!(event(&[10, 0, 3, 3, 1]), Err(FrameError::UnknownText(3)));
    assert!(matches!(event(&[10, 0, 0, 1, b'A', 3, 1]), Err(FrameError::Name(_))));
    assert_eq!(event(&[10, 0, 0, 1, 0xff, 3, 1]), Err(FrameError::NotUtf8));
}
