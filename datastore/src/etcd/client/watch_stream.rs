//! Stream of one watch.

use super::protocol::watch_client::WatchClient;
use super::protocol::watch_request::RequestUnion;
use super::protocol::{Event, WatchCreateRequest, WatchRequest, WatchResponse};
use super::session::EtcdConnection;
use super::{ClientError, ClientResult};
use crate::etcd::listing;
use futures::{StreamExt as _, stream};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Streaming;

/// A registered watch. Dropping it ends the watch.
pub(in crate::etcd) struct WatchStream {
    responses: Streaming<WatchResponse>,
    /// Ends the request stream, and with it the watch in etcd.
    _requests_end: DropGuard,
}

impl WatchStream {
    pub(super) async fn open(request: WatchCreateRequest, connection: EtcdConnection) -> ClientResult<Self> {
        let over = CancellationToken::new();
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(request)) };
        // etcd ends a watch when the request stream ends.
        let requests =
            stream::iter([request]).chain(stream::pending()).take_until(over.clone().cancelled_owned());
        let requests_end = over.drop_guard();
        let mut client = WatchClient::new(connection).max_decoding_message_size(listing::ANSWER_BYTES_MAX);
        let responses = client.watch(requests).await?.into_inner();
        let mut stream = Self { responses, _requests_end: requests_end };
        // The first response registers the watch, and has no events.
        stream.response().await?;
        Ok(stream)
    }

    /// The next events: whole revisions, in order. Cancel-safe.
    pub(in crate::etcd) async fn next(&mut self) -> ClientResult<Vec<Event>> {
        Ok(self.response().await?.events)
    }

    async fn response(&mut self) -> ClientResult<WatchResponse> {
        let response = self.responses.message().await?.ok_or(ClientError::StreamClosed)?;
        if response.canceled {
            return Err(ClientError::from_cancel(&response.cancel_reason, response.compact_revision));
        }
        Ok(response)
    }
}
