//! Protobuf codec with limits on the decoded size of a message.
//!
//! A list entry can take two bytes in the message and hundreds of bytes in memory. A message as
//! long as the limit for tensors could therefore exhaust the machine's memory. The codec limits
//! everything except tensor data separately, and checks the limits before decoding.

use bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

/// Largest size of a message without its raw tensor data.
pub const DESCRIPTION_BYTES_MAX: usize = 4 << 20;
/// Largest number of inputs, outputs or raw tensors of a message.
pub const ITEMS_MAX: usize = 1_024;
/// Field number of the raw tensor data in an inference request. Only this message has the field.
const RAW_FIELD: u32 = 7;

/// Prost codec that rejects messages above the limits.
#[derive(Debug)]
pub struct BoundedCodec<T, U>(PhantomData<(T, U)>);

/// Decoder of [`BoundedCodec`].
#[derive(Debug)]
pub struct BoundedDecoder<U>(PhantomData<U>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: prost::Message + Send + 'static,
    U: prost::Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(PhantomData)
    }
}

impl<U: prost::Message + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // `copy_to_bytes` shares the message's memory and does not copy.
        decode(source.copy_to_bytes(source.remaining())).map(Some)
    }
}

/// Decodes a message within the limits.
///
/// # Errors
/// The status for the client, if the message is invalid or above a limit.
pub fn decode<U: prost::Message + Default>(message: Bytes) -> Result<U, Status> {
    check(message.clone())?;
    U::decode(message)
        .map_err(|error| Status::invalid_argument(format!("the message cannot be read: {error}")))
}

/// Checks the top-level fields of a message against the limits.
fn check(mut message: Bytes) -> Result<(), Status> {
    let broken =
        |error: prost::DecodeError| Status::invalid_argument(format!("the message cannot be read: {error}"));
    let mut described_bytes = 0;
    let mut items = [0_usize; RAW_FIELD as usize + 1];
    while message.has_remaining() {
        let before = message.remaining();
        let (field, wire_type) = decode_key(&mut message).map_err(broken)?;
        if let Some(items) = items.get_mut(field as usize) {
            *items += 1;
            if *items > ITEMS_MAX {
                return Err(Status::invalid_argument(format!(
                    "the message lists more than {ITEMS_MAX} items"
                )));
            }
        }
        if field == RAW_FIELD && wire_type == WireType::LengthDelimited {
            let length = decode_varint(&mut message).map_err(broken)?;
            let length = usize::try_from(length).ok().filter(|length| *length <= message.remaining());
            message.advance(length.ok_or_else(|| Status::invalid_argument("the message ends early"))?);
            continue;
        }
        skip_field(wire_type, field, &mut message, DecodeContext::default()).map_err(broken)?;
        described_bytes += before - message.remaining();
        if described_bytes > DESCRIPTION_BYTES_MAX {
            let text = format!(
                "the message has more than {DESCRIPTION_BYTES_MAX} bytes outside of raw_input_contents; send large tensors in raw_input_contents"
            );
            return Err(Status::resource_exhausted(text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelInferRequest;
    use crate::model_infer_request::InferInputTensor;
    use prost::Message;
    use tonic::Code;

    fn refusal(request: &ModelInferRequest) -> Option<Code> {
        check(request.encode_to_vec().into()).err().map(|status| status.code())
    }

    #[test]
    fn raw_tensors_may_exceed_the_description_limit() {
        let raw = vec![vec![0; 8 << 20].into(); 2];
        assert_eq!(refusal(&ModelInferRequest { raw_input_contents: raw, ..Default::default() }), None);
        let id = "x".repeat(DESCRIPTION_BYTES_MAX + 1);
        let request = ModelInferRequest { id, ..Default::default() };
        assert_eq!(refusal(&request), Some(Code::ResourceExhausted));
    }

    #[test]
    fn list_lengths_are_limited() {
        let many = |count| ModelInferRequest {
            inputs: vec![InferInputTensor::default(); count],
            ..Default::default()
        };
        assert_eq!(
            (refusal(&many(ITEMS_MAX)), refusal(&many(ITEMS_MAX + 1))),
            (None, Some(Code::InvalidArgument))
        );
    }

    #[test]
    fn invalid_messages_are_rejected() {
        for bytes in [
            &[0xff; 20][..],
            &[0x3a, 0x05, 1],
            &[0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
            &[0x0b],
        ] {
            let error = check(Bytes::copy_from_slice(bytes)).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{bytes:?}");
        }
    }
}
