//! Worker's end of a connection.

use crate::forecast::{Forecast, Ready};
use crate::polling::poll_until;
use crate::{receive, receive_files, send, send_files};
use rustix::event::{PollFd, PollFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Worker's end of a connection. The worker receives a request, replies, and receives the next
/// request.
pub struct ServedConnection(UnixStream);

impl ServedConnection {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self(socket)
    }

    /// Receives the next request; returns `None` when the node has closed the connection.
    /// `requests` are the earlier requests.
    pub fn receive<Request: DeserializeOwned>(
        &mut self,
        requests: &mut Forecast,
    ) -> io::Result<Option<Request>> {
        if requests.may_poll() {
            requests.wait(None, |until| {
                let is_ready = poll_until(&mut [PollFd::new(&self.0, PollFlags::IN)], until)?;
                Ok(if is_ready { Ready::Message } else { Ready::Late })
            })?;
        }
        receive(&mut self.0)
    }

    /// Receives the files after a request. Returns `None` if the limit of open files is reached.
    pub fn receive_files(&self, count: usize) -> io::Result<Option<Vec<OwnedFd>>> {
        receive_files(&self.0, count)
    }

    /// Sends the reply to the request.
    pub fn reply(&mut self, reply: &impl Serialize) -> io::Result<()> {
        send(&mut self.0, reply)
    }

    /// Sends the files after a reply.
    pub fn send_files(&self, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        send_files(&self.0, files)
    }
}
