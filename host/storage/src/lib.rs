//! Durable state of a node: blobs, changes that are carried through, and mirrors of the datastore.

pub mod blobs;

mod changes;
pub use changes::{Changes, CutOff};

mod health;
pub use health::{DiskFull, StorageHealth, is_disk_full};

mod identity;
pub use identity::{IdentityError, MarkerPolicy, check_identity, forget_identity, is_identity, is_used};

mod private;
pub use private::{PrivateFileError, read_private_file};

mod follow;
pub use follow::{Follow, Heard, follow};
