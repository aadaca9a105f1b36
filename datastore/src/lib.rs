//! Small facts that must not be lost, and news about them: what is deployed, who is alive, who leads.
//!
//! A [`Datastore`] holds [`Entry`]s under path-like [`Key`]s. In the order data meets them: a [`Transaction`] compares and then writes,
//! all or nothing, and moves the store to its next [`Revision`]; keys written under a lease go away with it; a [`Watch`] tells what
//! changed after a revision. The semantics are those of etcd's v3 API, so that one node with a file and a cluster with etcd run the
//! same code. Members: [`MemoryStore`], which forgets; [`RedbStore`], one file on this machine; and [`EtcdStore`], an etcd cluster.

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
pub use watch::{Change, Event, Watch, WatchEnd};

mod store;
pub use store::{Datastore, LIST_LIMIT_MAX};

mod error;
pub use error::{Error, Result};

mod memory;
pub use memory::MemoryStore;

mod redb;
pub use redb::RedbStore;

mod etcd;
pub use etcd::{EtcdAddress, EtcdAddressError, EtcdStore};

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
