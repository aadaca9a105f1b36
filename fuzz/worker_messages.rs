//! The check of fuzz targets for messages of workers. Each crate with such targets includes this file.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use weir_worker::{receive, send};

/// The messages before the first bytes that are none. They are the same when they are sent and
/// received again.
pub(super) fn messages<T: DeserializeOwned + Serialize + PartialEq + Debug>(mut bytes: &[u8]) -> Vec<T> {
    let mut messages = Vec::new();
    while let Ok(Some(message)) = receive::<T>(&mut bytes) {
        let mut sent = Vec::new();
        send(&mut sent, &message).expect("it was a message before");
        let again = receive::<T>(&mut &sent[..]).expect("it is a message");
        assert_eq!(again.as_ref(), Some(&message));
        messages.push(message);
    }
    messages
}
