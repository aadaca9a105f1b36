//! The socket that a worker's main thread reads: one way, in packets of eight bytes. When it closes, the worker ends.

use super::connection::Connection;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, send, sendmsg, socketpair,
};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The packet that brings a connection; any other is the number of a run that nobody wants any more.
const CONNECT: u64 = u64::MAX;
/// How long a worker may take to take in a packet: its main thread does nothing else.
const SEND_TIME_MAX: Duration = Duration::from_secs(5);

/// The node's end.
pub(super) struct Control(OwnedFd);

/// What a worker is told.
pub(super) enum News {
    /// Here is one more connection.
    Connection(UnixStream, Files),
    /// Nobody wants this run any more.
    Cancel(u64),
}

/// What tensors are in.
pub(super) struct Files {
    /// The connection's own.
    pub(super) memory: File,
    /// The node's arena, to be read.
    pub(super) arena: File,
}

impl Control {
    /// The node's end, and the worker's.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&ours, Timeout::Send, Some(SEND_TIME_MAX))?;
        Ok((Self(ours), theirs))
    }

    /// One more connection; its tensors may be in `arena`.
    pub(super) fn connect(&self, arena: &File) -> io::Result<Connection> {
        let (socket, theirs) = UnixStream::pair()?;
        let memory = File::from(memfd_create("weir-tensors", MemfdFlags::CLOEXEC)?);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let brought = [theirs.as_fd(), memory.as_fd(), arena.as_fd()];
        if !ancillary.push(SendAncillaryMessage::ScmRights(&brought)) {
            return Err(io::Error::other("there is no room for a connection in a packet"));
        }
        let packet = CONNECT.to_le_bytes();
        sendmsg(&self.0, &[IoSlice::new(&packet)], &mut ancillary, SendFlags::NOSIGNAL)?;
        Connection::new(socket, memory)
    }

    /// What [`wait_for_end`] waits with.
    pub(super) fn watched(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Tell that nobody wants a run any more. A hint, which does not wait.
    pub(super) fn cancel(&self, run: u64) {
        let _ = send(&self.0, &run.to_le_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
}

/// Wait until the worker is gone, which never sends anything.
pub(super) fn wait_for_end(control: &OwnedFd) {
    // Its end is told of whatever else is asked for.
    while poll(&mut [PollFd::new(control, PollFlags::empty())], None) == Err(Errno::INTR) {}
}

/// In the worker: what comes next; none when the node is gone.
pub(super) fn next(control: &OwnedFd) -> io::Result<Option<News>> {
    let mut packet = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let into = &mut [IoSliceMut::new(&mut packet)];
        match recvmsg(control, into, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?.bytes,
        }
    };
    if received == 0 {
        return Ok(None);
    }
    let number = u64::from_le_bytes(packet);
    if number != CONNECT {
        return Ok(Some(News::Cancel(number)));
    }
    let mut brought = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.collect(),
        _ => Vec::new(),
    });
    match (brought.next(), brought.next(), brought.next()) {
        (Some(socket), Some(memory), Some(arena)) => {
            let files = Files { memory: memory.into(), arena: arena.into() };
            Ok(Some(News::Connection(socket.into(), files)))
        }
        _ => Err(io::Error::other("a connection came without its socket and memory")),
    }
}
