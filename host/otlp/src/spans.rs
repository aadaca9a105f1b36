//! Spans as messages of OpenTelemetry.

use crate::resource::{TEXT_BYTES_MAX, attribute, cut, text_attribute};
use crate::wire::Message;
use weir_telemetry::{AttributeValue, EndedSpan, SpanKind};

/// Field of a span in its scope.
const SPANS: u32 = 2;

/// Flags of a span: sampled, and whether its parent belongs to another process.
const SAMPLED: u32 = 0x1;
const KNOWS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// Status of a span whose work failed.
const STATUS_ERROR: u64 = 2;

/// Appends a span to the spans of a scope.
pub(crate) fn write(into: &mut Vec<u8>, span: &EndedSpan<'_>) {
    Message(into).message(SPANS, |message| {
        message.bytes(1, span.trace_id.bytes());
        message.bytes(2, span.id.bytes());
        if let Some(state) = span.state {
            message.bytes(3, state.as_bytes());
        }
        if let Some(parent) = span.parent {
            message.bytes(4, parent.bytes());
        }
        message.string(5, cut(span.name, TEXT_BYTES_MAX));
        message.varint(6, kind(span.kind));
        message.fixed64(7, span.start_unix_ns);
        message.fixed64(8, span.end_unix_ns);
        for set in span.attributes {
            match &set.value {
                AttributeValue::Static(text) => text_attribute(message, 9, set.key, text),
                AttributeValue::Name(name) => text_attribute(message, 9, set.key, name.as_str()),
                AttributeValue::Shared(text) => text_attribute(message, 9, set.key, text),
                AttributeValue::Text(text) => text_attribute(message, 9, set.key, text),
                AttributeValue::Bool(is_true) => {
                    attribute(message, 9, set.key, |value| value.varint(2, (*is_true).into()));
                }
                AttributeValue::Int(number) => {
                    attribute(message, 9, set.key, |value| value.varint(3, number.cast_unsigned()));
                }
            }
        }
        if let Some(failure) = span.failure {
            message.message(15, |status| {
                status.string(2, failure);
                status.varint(3, STATUS_ERROR);
            });
        }
        let remote = if span.is_parent_remote { IS_REMOTE } else { 0 };
        message.fixed32(16, SAMPLED | KNOWS_IS_REMOTE | remote);
    });
}

fn kind(kind: SpanKind) -> u64 {
    match kind {
        SpanKind::Internal => 1,
        SpanKind::Server => 2,
        SpanKind::Client => 3,
        SpanKind::Producer => 4,
    }
}
