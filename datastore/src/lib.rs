//! Datastore for the durable metadata of a node or cluster: deployments, membership and leader
//! election.
//!
//! A [`Datastore`] holds [`Entry`]s under path-like [`Key`]s. A [`Transaction`] compares and then
//! writes atomically, and moves the store to its next [`Revision`]. The end of a lease deletes the
//! keys attached to it. A [`Watch`] delivers the changes after a revision. The semantics are those
//! of etcd's v3 API, so that a single node with a file and a cluster with etcd run the same code.
//!
//! Backends: [`MemoryStore`], which is not durable; [`RedbStore`], one local file; and
//! [`EtcdStore`], an etcd cluster.

mod key;
pub use key::{KEY_LEN_MAX, Key, KeyError, Prefix};

mod entry;
pub use entry::{Entry, Listing, Revision};

mod transaction;
pub use transaction::{
    Commit, Compare, TRANSACTION_BYTES_MAX, TRANSACTION_OPERATIONS_MAX, Transaction, VALUE_BYTES_MAX, Write,
};

mod lease;
pub use lease::{Lease, LeaseId, TIME_TO_LIVE_MAX};

mod watch;
pub use watch::{Change, Watch, WatchEnd, WatchEvent};

mod store;
pub use store::{Datastore, LIST_LIMIT_MAX, Snapshot, StoreHealth, StoreUsage};

mod error;
pub use error::{Error, Result};

mod memory;
pub use memory::MemoryStore;

mod redb;
pub use redb::RedbStore;

mod etcd;
pub use etcd::{EtcdAddress, EtcdAddressError, EtcdStore, EtcdTls};

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
