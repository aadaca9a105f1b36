//! The link between a node and the dispatcher of its cluster: messages, and the binary frames that
//! carry them.
//!
//! A node sends [`NodeEvent`]s, and the dispatcher sends [`DispatcherCommand`]s. A [`FrameEncoder`]
//! turns messages into the bytes of one direction of a link, and a [`FrameDecoder`] turns the bytes
//! into messages. Both are pure: the caller transfers the bytes.

mod messages;
pub use messages::{
    AnnouncedInvocation, AnnouncedModel, DispatcherCommand, Hello, NodeEvent, PROTOCOL, StagedModel,
};

mod frames;
pub use frames::{FRAME_BYTES_MAX, FrameDecoder, FrameEncoder, FrameError, Message};
