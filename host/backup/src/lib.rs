//! Backups: everything durable of a node or cluster in one archive.
//!
//! [`BackupMaker`] writes the archive while the node serves. [`read`] checks an archive and hands out
//! its contents, and [`restore`] puts them into an empty store. The archive is a tar file:
//!
//! | file | contents |
//! |---|---|
//! | `backup.json` | the [`BackupHeader`]: the version of the format, and the origin |
//! | `records/N.jsonl` | the entries of the datastore, one JSON object a line |
//! | `blobs/FOLDER/HASH` | the blobs, under the SHA-256 of their contents |
//! | `SHA256SUMS` | the checksums of all other files, as `sha256sum -c` takes them |
//!
//! `SHA256SUMS` is last and so shows that the archive is complete. If the node fails after it has
//! begun, `failure.json` is last instead.

mod format;
pub use format::{BackupHeader, BackupOrigin};

mod source;
pub use source::{BackupError, BackupSource, BlobFolder};

mod archive;
mod writer;
pub use writer::{Backup, BackupMaker};

mod reader;
pub use reader::{BackupContents, BackupSummary, CheckOnly, Parts, ReadError, read};

mod restore;
pub use restore::{RestoreError, RestoreTarget, restore};

#[cfg(test)]
mod tests;
