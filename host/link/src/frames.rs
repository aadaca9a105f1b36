//! Frames: the bytes of one direction of a link.
//!
//! A frame is its length (four bytes, little-endian) and one message. Integers have a variable
//! length ([`primitives`]), and fields follow each other in the order of [`layout`], without names.
//! Names and other texts that recur are sent once: both ends of the link number them in the order of
//! their first use ([`texts`]). Frames must therefore be decoded in order, and all of them.

mod layout;
mod primitives;
mod texts;

use crate::{DispatcherCommand, NodeEvent};
use bytes::{Bytes, BytesMut};
use primitives::Wire;
use std::marker::PhantomData;
use texts::{ReceivedTexts, SentTexts};
use weir_types::NameError;

/// The size limit of a frame. The longest messages list resident models and running invocations
/// with the parts of their models.
pub const FRAME_BYTES_MAX: usize = 8 << 20;

/// The length of a frame's length.
const HEAD_BYTES: usize = 4;

/// The reason why bytes are not frames of this protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length of a frame is above the limit.
    #[error("a frame has {0} bytes, of at most {FRAME_BYTES_MAX}")]
    TooLong(usize),
    /// A message ends before its last field.
    #[error("a message ends before its last field")]
    Truncated,
    /// A frame has bytes after its message.
    #[error("a frame has {0} bytes after its message")]
    TrailingBytes(usize),
    /// A number is too large for its field.
    #[error("a number is too large for its field")]
    Overflow,
    /// A field has a value that is not defined.
    #[error("{value} is not a {what}")]
    Unknown {
        /// The type of the field.
        what: &'static str,
        /// The value.
        value: u64,
    },
    /// A text is referenced that was not sent.
    #[error("text {0} was not sent before")]
    UnknownText(u64),
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    NotUtf8,
    /// A name is invalid.
    #[error("a name is invalid: {0}")]
    Name(NameError),
}

/// A message of a link: [`NodeEvent`] or [`DispatcherCommand`].
#[expect(private_bounds, reason = "the frames of other types are not defined")]
pub trait Message: Wire {}

impl Message for NodeEvent {}
impl Message for DispatcherCommand {}

/// Encodes the messages of one direction of a link.
#[derive(Debug)]
pub struct FrameEncoder<M> {
    texts: SentTexts,
    bytes: BytesMut,
    message: PhantomData<fn(M)>,
}

/// The destination of a message's bytes.
struct FrameWriter<'a> {
    bytes: &'a mut BytesMut,
    texts: &'a mut SentTexts,
}

/// The bytes of a message that are not read yet.
struct FrameReader<'a> {
    bytes: &'a [u8],
    texts: &'a mut ReceivedTexts,
}

impl<M: Message> Default for FrameEncoder<M> {
    fn default() -> Self {
        Self { texts: SentTexts::default(), bytes: BytesMut::new(), message: PhantomData }
    }
}

impl<M: Message> FrameEncoder<M> {
    /// Encodes messages as consecutive frames, which are to be sent next.
    pub fn encode(&mut self, messages: impl IntoIterator<Item = M>) -> Bytes {
        for message in messages {
            let begin = self.bytes.len();
            self.bytes.extend_from_slice(&[0; HEAD_BYTES]);
            message.put(&mut FrameWriter { bytes: &mut self.bytes, texts: &mut self.texts });
            let len = self.bytes.len() - begin - HEAD_BYTES;
            // The other end rejects a frame above the limit, and so also one whose length saturates.
            let head = u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
            if let Some(place) = self.bytes.get_mut(begin..begin + HEAD_BYTES) {
                place.copy_from_slice(&head);
            }
        }
        self.bytes.split().freeze()
    }
}

/// Decodes the messages of one direction of a link.
#[derive(Debug)]
pub struct FrameDecoder<M> {
    texts: ReceivedTexts,
    /// Received bytes that are not decoded yet: less than a frame once
    /// [`decode`](Self::decode) has returned `None`.
    unread: BytesMut,
    message: PhantomData<fn() -> M>,
}

impl<M: Message> Default for FrameDecoder<M> {
    fn default() -> Self {
        Self { texts: ReceivedTexts::default(), unread: BytesMut::new(), message: PhantomData }
    }
}

impl<M: Message> FrameDecoder<M> {
    /// Adds received bytes.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
    }

    /// Decodes the next message; `None` if more bytes are needed.
    ///
    /// # Errors
    /// If the bytes are not frames of this protocol. The link must be closed then: the frames that
    /// follow cannot be decoded.
    pub fn decode(&mut self) -> Result<Option<M>, FrameError> {
        let Some((head, rest)) = self.unread.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let len = usize::try_from(u32::from_le_bytes(*head)).unwrap_or(usize::MAX);
        if len > FRAME_BYTES_MAX {
            return Err(FrameError::TooLong(len));
        }
        let Some(bytes) = rest.get(..len) else { return Ok(None) };
        let mut from = FrameReader { bytes, texts: &mut self.texts };
        let message = M::take(&mut from)?;
        if !from.bytes.is_empty() {
            return Err(FrameError::TrailingBytes(from.bytes.len()));
        }
        bytes::Buf::advance(&mut self.unread, HEAD_BYTES + len);
        Ok(Some(message))
    }
}
