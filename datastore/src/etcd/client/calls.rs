//! The requests that a client sends: the method of etcd that takes each, its answer, and when it
//! may be sent twice.

use super::protocol::kv_client::KvClient;
use super::protocol::lease_client::LeaseClient;
use super::protocol::maintenance_client::MaintenanceClient;
use super::protocol::request_op::Request;
use super::protocol::{
    CompactionRequest, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseRevokeRequest,
    LeaseTimeToLiveRequest, RangeRequest, RangeResponse, RequestOp, StatusRequest, StatusResponse,
    TxnRequest, TxnResponse, WatchCreateRequest,
};
use super::session::EtcdConnection;
use super::{ClientError, ClientResult, WatchStream};
use crate::etcd::listing;
use futures::stream;

/// A request and the way it is sent.
pub(in crate::etcd) trait EtcdCall: Clone + Sync {
    type Answer: Send;

    /// Whether to send the request again after a server failure.
    const RESEND: Resend;

    /// The revision of the store in an answer, if every earlier commit precedes the answer.
    fn revision(&self, _answer: &Self::Answer) -> Option<AnswerRevision> {
        None
    }

    fn send(self, connection: EtcdConnection) -> impl Future<Output = ClientResult<Self::Answer>> + Send;
}

/// The revision of the store in an answer.
#[derive(Debug, Clone, Copy)]
pub(in crate::etcd) struct AnswerRevision {
    pub(in crate::etcd) revision: i64,
    /// Whether the request has made the revision.
    pub(in crate::etcd) is_new: bool,
}

/// When to send a request again after a server failed to answer it.
#[derive(Clone, Copy)]
pub(in crate::etcd) enum Resend {
    /// After any failure: etcd can apply the request twice without harm.
    Always,
    /// Only if the server never received the request.
    IfUnsent,
}

impl Resend {
    pub(super) fn allows(self, error: &ClientError) -> bool {
        match self {
            Self::Always => true,
            Self::IfUnsent => error.is_unsent(),
        }
    }
}

impl EtcdCall for RangeRequest {
    type Answer = RangeResponse;
    const RESEND: Resend = Resend::Always;

    fn revision(&self, answer: &RangeResponse) -> Option<AnswerRevision> {
        let revision = answer.header?.revision;
        Some(AnswerRevision { revision, is_new: false })
    }

    async fn send(self, connection: EtcdConnection) -> ClientResult<RangeResponse> {
        let mut kv = KvClient::new(connection).max_decoding_message_size(listing::ANSWER_BYTES_MAX);
        Ok(kv.range(self).await?.into_inner())
    }
}

/// [`ClientError::LeaseNotFound`] if a key names a lease that does not exist.
impl EtcdCall for TxnRequest {
    type Answer = TxnResponse;
    const RESEND: Resend = Resend::IfUnsent;

    fn revision(&self, answer: &TxnResponse) -> Option<AnswerRevision> {
        let revision = answer.header?.revision;
        // A deletion of an absent key makes no revision.
        let puts = |write: &RequestOp| matches!(write.request, Some(Request::RequestPut(_)));
        Some(AnswerRevision { revision, is_new: answer.succeeded && self.success.iter().any(puts) })
    }

    async fn send(self, connection: EtcdConnection) -> ClientResult<TxnResponse> {
        Ok(KvClient::new(connection).txn(self).await?.into_inner())
    }
}

impl EtcdCall for LeaseGrantRequest {
    type Answer = LeaseGrantResponse;
    // If etcd grants the lease twice, the client keeps only one alive, and the other expires.
    const RESEND: Resend = Resend::Always;

    async fn send(self, connection: EtcdConnection) -> ClientResult<LeaseGrantResponse> {
        Ok(LeaseClient::new(connection).lease_grant(self).await?.into_inner())
    }
}

/// [`ClientError::LeaseNotFound`] if the lease does not exist.
impl EtcdCall for LeaseRevokeRequest {
    type Answer = ();
    const RESEND: Resend = Resend::IfUnsent;

    async fn send(self, connection: EtcdConnection) -> ClientResult<()> {
        LeaseClient::new(connection).lease_revoke(self).await?;
        Ok(())
    }
}

/// [`ClientError::LeaseNotFound`] if the lease does not exist.
impl EtcdCall for LeaseKeepAliveRequest {
    /// The seconds until the lease expires.
    type Answer = i64;
    const RESEND: Resend = Resend::Always;

    async fn send(self, connection: EtcdConnection) -> ClientResult<i64> {
        let mut lease = LeaseClient::new(connection);
        let mut answers = lease.lease_keep_alive(stream::iter([self])).await?.into_inner();
        match answers.message().await?.ok_or(ClientError::StreamClosed)?.ttl {
            ..=0 => Err(ClientError::LeaseNotFound),
            seconds => Ok(seconds),
        }
    }
}

impl EtcdCall for LeaseTimeToLiveRequest {
    /// Whether the lease exists.
    type Answer = bool;
    const RESEND: Resend = Resend::Always;

    async fn send(self, connection: EtcdConnection) -> ClientResult<bool> {
        let answer = LeaseClient::new(connection).lease_time_to_live(self).await?;
        Ok(answer.into_inner().ttl >= 0)
    }
}

/// Fails if the history before the revision is already discarded.
impl EtcdCall for CompactionRequest {
    type Answer = ();
    const RESEND: Resend = Resend::Always;

    async fn send(self, connection: EtcdConnection) -> ClientResult<()> {
        KvClient::new(connection).compact(self).await?;
        Ok(())
    }
}

/// The status of the server that answers.
impl EtcdCall for StatusRequest {
    type Answer = StatusResponse;
    const RESEND: Resend = Resend::Always;

    async fn send(self, connection: EtcdConnection) -> ClientResult<StatusResponse> {
        Ok(MaintenanceClient::new(connection).status(self).await?.into_inner())
    }
}

impl EtcdCall for WatchCreateRequest {
    type Answer = WatchStream;
    const RESEND: Resend = Resend::Always;

    async fn send(self, connection: EtcdConnection) -> ClientResult<WatchStream> {
        WatchStream::open(self, connection).await
    }
}
