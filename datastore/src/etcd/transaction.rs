//! Transactions, in etcd's words.

use super::{EtcdStore, Root, id_of, is_lease_not_found, number_of, revision_of};
use crate::{Commit, Compare, Error, LeaseId, Result, Revision, Transaction, Write};
use etcd_client::{CompareOp, LeaseClient, PutOptions, ResponseHeader, Txn, TxnOp};

pub(super) async fn commit(store: &EtcdStore, transaction: Transaction) -> Result<Commit> {
    let leases: Vec<LeaseId> = transaction.writes.iter().filter_map(lease_of).collect();
    let compares: Vec<_> =
        transaction.compares.iter().map(|compare| compare_of(&store.root, compare)).collect();
    let writes: Vec<_> =
        transaction.writes.into_iter().map(|write| operation_of(&store.root, write)).collect();
    let mut kv = store.client.kv_client();
    let answer = store.call(async {
        match kv.txn(Txn::new().when(compares).and_then(writes)).await {
            Err(error) if is_lease_not_found(&error) => Ok(None),
            answer => answer.map(Some),
        }
    });
    match answer.await? {
        Some(answer) if answer.succeeded() => {
            let revision = answer.header().map_or(0, ResponseHeader::revision);
            Ok(Commit::Done(revision_of(revision)))
        }
        Some(_) => Ok(Commit::Conflict),
        None => Err(Error::LeaseNotFound(missing(store, &leases).await?)),
    }
}

/// Which of `leases` etcd does not know; it does not say so itself.
async fn missing(store: &EtcdStore, leases: &[LeaseId]) -> Result<LeaseId> {
    let mut client: LeaseClient = store.client.lease_client();
    for lease in leases {
        let known = store.call(client.time_to_live(id_of(*lease), None)).await?;
        if known.ttl() < 0 {
            return Ok(*lease);
        }
    }
    // Gone a moment ago, and all of them there now, cannot be: numbers are not given twice.
    Ok(leases.first().copied().unwrap_or(LeaseId(0)))
}

fn lease_of(write: &Write) -> Option<LeaseId> {
    match write {
        Write::Put { lease, .. } => *lease,
        Write::Delete(_) => None,
    }
}

fn compare_of(root: &Root, compare: &Compare) -> etcd_client::Compare {
    use etcd_client::Compare as Etcd;
    let key = root.of(compare.key().as_str());
    match compare {
        // The version of a key counts its writes since it appeared.
        Compare::Absent(_) => Etcd::version(key, CompareOp::Equal, 0),
        Compare::Exists(_) => Etcd::version(key, CompareOp::Greater, 0),
        // To etcd, what is not there was made and written at revision zero; to us, it was not.
        Compare::CreatedAt(_, Revision(0)) | Compare::ModifiedAt(_, Revision(0)) => {
            Etcd::version(key, CompareOp::Less, 0)
        }
        Compare::CreatedAt(_, revision) => Etcd::create_revision(key, CompareOp::Equal, number_of(*revision)),
        Compare::ModifiedAt(_, revision) => Etcd::mod_revision(key, CompareOp::Equal, number_of(*revision)),
        Compare::Holds(_, value) => Etcd::value(key, CompareOp::Equal, value.as_ref()),
    }
}

fn operation_of(root: &Root, write: Write) -> TxnOp {
    match write {
        Write::Put { key, value, lease } => {
            let options = lease.map(|lease| PutOptions::new().with_lease(id_of(lease)));
            TxnOp::put(root.of(key.as_str()), value, options)
        }
        Write::Delete(key) => TxnOp::delete(root.of(key.as_str()), None),
    }
}
