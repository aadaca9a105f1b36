//! Names and bodies of the files in an archive.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use weir_datastore::{Entry, Key};

/// Version of the format that this program writes and reads.
pub(crate) const FORMAT: u32 = 1;
/// Name of the first file.
pub(crate) const HEADER: &str = "backup.json";
/// Folder of the records.
pub(crate) const RECORDS: &str = "records/";
/// Folder of the blobs.
pub(crate) const BLOBS: &str = "blobs/";
/// Name of the last file of a complete archive.
pub(crate) const SUMS: &str = "SHA256SUMS";
/// Name of the last file of an archive that the node could not complete.
pub(crate) const FAILURE: &str = "failure.json";

/// Size limit of the header and of a failure.
pub(crate) const BODY_BYTES_MAX: u64 = 64 << 10;
/// Size at which a file of records ends.
pub(crate) const RECORDS_BYTES: usize = 2 << 20;
/// Size limit of a line of records: the largest value of a datastore, escaped, and its key.
pub(crate) const RECORD_BYTES_MAX: u64 = 8 << 20;

/// The first file of an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupHeader {
    /// Version of the format.
    pub format: u32,
    /// Version of the node that wrote the archive.
    pub weir_version: String,
    /// Time at which the backup began, in milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// The origin of the contents.
    pub origin: BackupOrigin,
}

/// The origin of the contents of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackupOrigin {
    /// A single node.
    Node,
    /// All nodes of a cluster, which share their state.
    Cluster,
}

/// The reason why the node did not complete an archive.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BackupFailure {
    pub(crate) error: String,
}

/// A line of a file of records. Values that are text stay readable.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordLine {
    key: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    base64: Option<String>,
}

impl From<&Entry> for RecordLine {
    fn from(entry: &Entry) -> Self {
        let key = entry.key.as_str().to_owned();
        match std::str::from_utf8(&entry.value) {
            Ok(text) => Self { key, text: Some(text.to_owned()), base64: None },
            Err(_) => Self { key, text: None, base64: Some(BASE64_STANDARD.encode(&entry.value)) },
        }
    }
}

impl RecordLine {
    /// The key and the value; `None` if either is invalid.
    pub(crate) fn into_record(self) -> Option<(Key, Bytes)> {
        let value = match (self.text, self.base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(base64)) => BASE64_STANDARD.decode(base64).ok()?,
            _ => return None,
        };
        Some((Key::new(&self.key).ok()?, value.into()))
    }
}
