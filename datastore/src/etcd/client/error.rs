//! Errors of requests to etcd, classified by cause: the server, the token or the request.

use std::error::Error;
use tonic::{Code, ConnectError, Status};

/// etcd's message about an unknown lease. The code `NotFound` alone has other causes as well.
const LEASE_NOT_FOUND: &str = "lease not found";
/// etcd's message about a full database. The code `ResourceExhausted` has other causes as well.
const NO_SPACE: &str = "database space exceeded";
/// etcd's message about a token that was issued before users or roles changed.
const TOKEN_OUTDATED: &str = "revision of auth store is old";
/// etcd's message about a watch without permission. etcd 3.4 also sends it for an unknown token.
const PERMISSION_DENIED: &str = "permission denied";
/// etcd's message about a watch with an unknown token, from etcd 3.5 on.
const TOKEN_INVALID: &str = "invalid auth token";

/// Error of a request to etcd.
#[derive(Debug, thiserror::Error)]
pub(in crate::etcd) enum ClientError {
    /// The address or the TLS settings of a server cannot be used.
    #[error("cannot use the etcd server {server}: check the address and this machine's certificates")]
    Server { server: String, source: tonic::transport::Error },
    /// The request was not sent, because no connection could be made.
    #[error("cannot connect to etcd: check that it runs, and its address")]
    Connect { source: Status },
    /// The server did not answer in time. It may have applied the request.
    #[error("etcd did not answer within {seconds} s", seconds = super::REQUEST_TIME_MAX.as_secs())]
    Timeout,
    /// The server closed a stream before it answered.
    #[error("etcd closed the stream of a request")]
    StreamClosed,
    /// Any other failure of a server or of the connection. The server may have applied the request.
    #[error("etcd failed")]
    Failed { source: Status },
    /// Every server of the cluster would reject the request.
    #[error("etcd refused the request")]
    Refused { source: Status },
    /// The database has reached its quota: etcd refuses all writes.
    #[error("etcd refuses writes: {0}")]
    NoSpace(String),
    /// The token of this session is unknown, expired or outdated, or the user lacks permission for
    /// a watch.
    #[error("etcd refused the user or the permissions of the user: {0}")]
    Token(String),
    /// The token that etcd issued cannot be sent.
    #[error("etcd issued a token that is not ASCII")]
    TokenFormat(#[from] tonic::metadata::errors::InvalidMetadataValue),
    /// The lease has expired or was revoked, or never existed.
    #[error("etcd does not know the lease")]
    LeaseNotFound,
    /// etcd no longer has all the revisions that a watch asked for.
    #[error("etcd has compacted the revisions before {oldest}")]
    Compacted { oldest: i64 },
    /// etcd ended a watch for another reason.
    #[error("etcd ended the watch: {0}")]
    WatchCanceled(String),
}

impl ClientError {
    /// Classifies the reason why etcd ended a watch.
    pub(super) fn from_cancel(reason: &str, compact_revision: i64) -> Self {
        let is_about_token = reason.contains(TOKEN_INVALID)
            || reason.contains(TOKEN_OUTDATED)
            || reason.contains(PERMISSION_DENIED);
        match compact_revision {
            1.. => Self::Compacted { oldest: compact_revision },
            _ if is_about_token => Self::Token(reason.to_owned()),
            _ => Self::WatchCanceled(reason.to_owned()),
        }
    }

    /// Whether another server may succeed.
    pub(super) fn is_of_server(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Timeout | Self::StreamClosed | Self::Failed { .. })
    }

    /// Whether the server certainly did not apply the request.
    pub(super) fn is_unsent(&self) -> bool {
        matches!(self, Self::Connect { .. })
    }
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        let message = status.message();
        match status.code() {
            _ if is_connect_error(&status) => Self::Connect { source: status },
            Code::NotFound if message.contains(LEASE_NOT_FOUND) => Self::LeaseNotFound,
            Code::ResourceExhausted if message.contains(NO_SPACE) => Self::NoSpace(message.to_owned()),
            Code::Unauthenticated => Self::Token(message.to_owned()),
            Code::InvalidArgument if message.contains(TOKEN_OUTDATED) => Self::Token(message.to_owned()),
            Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled | Code::DeadlineExceeded => {
                Self::Failed { source: status }
            }
            _ => Self::Refused { source: status },
        }
    }
}

/// Whether `status` stands for a failed connection attempt.
fn is_connect_error(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_map_to_the_party_at_fault() {
        let lease = Status::not_found("etcdserver: requested lease not found");
        assert!(matches!(ClientError::from(lease), ClientError::LeaseNotFound));
        let outdated = Status::invalid_argument("etcdserver: revision of auth store is old");
        assert!(matches!(ClientError::from(outdated), ClientError::Token(_)));
        let no_leader = ClientError::from(Status::unavailable("etcdserver: no leader"));
        assert!(no_leader.is_of_server() && !no_leader.is_unsent());
        let full = Status::resource_exhausted("etcdserver: mvcc: database space exceeded");
        assert!(matches!(ClientError::from(full), ClientError::NoSpace(_)));
        let busy = ClientError::from(Status::resource_exhausted("etcdserver: too many requests"));
        assert!(matches!(busy, ClientError::Refused { .. }));
        let too_large = ClientError::from(Status::invalid_argument("etcdserver: request is too large"));
        assert!(!too_large.is_of_server());
    }

    #[test]
    fn watch_cancel_reasons_are_classified() {
        let compacted = ClientError::from_cancel("etcdserver: mvcc: required revision has been compacted", 7);
        assert!(matches!(compacted, ClientError::Compacted { oldest: 7 }));
        for reason in ["etcdserver: permission denied", "etcdserver: invalid auth token"] {
            assert!(matches!(ClientError::from_cancel(reason, 0), ClientError::Token(_)), "{reason}");
        }
        assert!(matches!(ClientError::from_cancel("", 0), ClientError::WatchCanceled(_)));
    }
}
