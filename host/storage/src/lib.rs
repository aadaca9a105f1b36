//! Durable state of a node: blobs, changes that are carried through, and mirrors of the datastore.

pub mod blobs;

mod changes;
pub use changes::{Changes, CutOff};

mod follow;
pub use follow::{Follow, Heard, follow};
