//! Translation of transactions to etcd's format.

use super::client::ClientError;
use super::client::protocol::compare::{CompareResult, CompareTarget, TargetUnion};
use super::client::protocol::request_op::Request;
use super::client::protocol::{
    Compare as EtcdCompare, DeleteRangeRequest, LeaseTimeToLiveRequest, PutRequest, RequestOp, TxnRequest,
};
use super::{EtcdStore, Root, id_of, number_of, revision_in};
use crate::{Commit, Compare, Error, LeaseId, Result, Revision, Transaction, Write};

pub(super) async fn commit(store: &EtcdStore, transaction: Transaction) -> Result<Commit> {
    let leases: Vec<LeaseId> = transaction.writes.iter().filter_map(lease_of).collect();
    let request = TxnRequest {
        compare: transaction.compares.into_iter().map(|compare| compare_of(&store.root, compare)).collect(),
        success: transaction.writes.into_iter().map(|write| operation_of(&store.root, write)).collect(),
    };
    match store.outcome(&request).await? {
        Err(ClientError::LeaseNotFound) => {
            // Replaced data does not have the lease either.
            store.continuity.verify().await?;
            Err(Error::LeaseNotFound(missing(store, &leases).await?))
        }
        answer => {
            let answer = answer?;
            Ok(if answer.succeeded { Commit::Done(revision_in(answer.header)) } else { Commit::Conflict })
        }
    }
}

/// The lease among `leases` that etcd does not know. etcd's error does not name the lease.
async fn missing(store: &EtcdStore, leases: &[LeaseId]) -> Result<LeaseId> {
    for lease in leases {
        if !store.call(&LeaseTimeToLiveRequest { id: id_of(*lease) }).await? {
            return Ok(*lease);
        }
    }
    // Unreachable for a real etcd: an unknown lease cannot reappear, because lease IDs are never
    // reused.
    Ok(leases.first().copied().unwrap_or(LeaseId(0)))
}

fn lease_of(write: &Write) -> Option<LeaseId> {
    match write {
        Write::Put { lease, .. } => *lease,
        Write::Delete(_) => None,
    }
}

fn compare_of(root: &Root, compare: Compare) -> EtcdCompare {
    use CompareResult::{Equal, Greater, Less};
    let key = root.prefixed(compare.key().as_str()).into();
    let (result, union) = match compare {
        // The version of a key counts the writes since its creation.
        Compare::Absent(_) => (Equal, TargetUnion::Version(0)),
        Compare::Exists(_) => (Greater, TargetUnion::Version(0)),
        // For etcd, an absent key has creation and modification revision zero; for Weir, it has
        // none.
        Compare::CreatedAt(_, Revision(0)) | Compare::ModifiedAt(_, Revision(0)) => {
            (Less, TargetUnion::Version(0))
        }
        Compare::CreatedAt(_, revision) => (Equal, TargetUnion::CreateRevision(number_of(revision))),
        Compare::ModifiedAt(_, revision) => (Equal, TargetUnion::ModRevision(number_of(revision))),
        Compare::Holds(_, value) => (Equal, TargetUnion::Value(value)),
    };
    let target = match union {
        TargetUnion::Version(_) => CompareTarget::Version,
        TargetUnion::CreateRevision(_) => CompareTarget::Create,
        TargetUnion::ModRevision(_) => CompareTarget::Mod,
        TargetUnion::Value(_) => CompareTarget::Value,
    };
    EtcdCompare { result: result.into(), target: target.into(), key, target_union: Some(union) }
}

fn operation_of(root: &Root, write: Write) -> RequestOp {
    let request = match write {
        Write::Put { key, value, lease } => Request::RequestPut(PutRequest {
            key: root.prefixed(key.as_str()).into(),
            value,
            lease: lease.map_or(0, id_of),
        }),
        Write::Delete(key) => {
            Request::RequestDeleteRange(DeleteRangeRequest { key: root.prefixed(key.as_str()).into() })
        }
    };
    RequestOp { request: Some(request) }
}
