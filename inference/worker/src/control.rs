//! Control socket, which the main thread of a worker reads: one-way packets of eight bytes. The
//! worker ends when the socket closes.

use crate::connection::WorkerConnection;
use crate::memory::tensor_memory;
use crate::served::ServedConnection;
use rustix::event::{PollFd, PollFlags, poll};
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

/// Packet that passes a connection. Any other packet is the number of a cancelled run.
const CONNECT: u64 = u64::MAX;
/// Maximum time for a worker to receive a packet: its main thread only reads packets.
const SEND_TIME_MAX: Duration = Duration::from_secs(5);

/// Node's end of the control socket.
pub struct Control(OwnedFd);

/// Control message.
pub enum ControlMessage {
    /// A new connection.
    Connection(ServedConnection, ConnectionFiles),
    /// A run was cancelled.
    Cancel(u64),
}

/// Files with the tensors of a connection.
pub struct ConnectionFiles {
    /// Memory file of the connection.
    pub memory: File,
    /// Arena of the node, for reading, if the worker may see the tensors of all tenants.
    pub arena: Option<File>,
}

impl Control {
    /// Creates the node's end and the worker's end.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&ours, Timeout::Send, Some(SEND_TIME_MAX))?;
        Ok((Self(ours), theirs))
    }

    /// Opens a connection for tensors of at most `bytes_max` bytes at a time. Tensors in `arena`,
    /// if given, do not count.
    pub fn connect(&self, bytes_max: u64, arena: Option<&File>) -> io::Result<WorkerConnection> {
        let (socket, theirs) = UnixStream::pair()?;
        let memory = tensor_memory(bytes_max)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let brought: Vec<_> =
            [theirs.as_fd(), memory.as_fd()].into_iter().chain(arena.map(AsFd::as_fd)).collect();
        if !ancillary.push(SendAncillaryMessage::ScmRights(&brought)) {
            return Err(io::Error::other("there is no room for a connection in a packet"));
        }
        let packet = CONNECT.to_le_bytes();
        sendmsg(&self.0, &[IoSlice::new(&packet)], &mut ancillary, SendFlags::NOSIGNAL)?;
        WorkerConnection::new(socket, memory)
    }

    /// Returns the descriptor for [`wait_for_end`].
    pub fn watched(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Sends the cancellation of a run. The message is a hint, and is dropped if the socket is
    /// full.
    pub fn cancel(&self, run: u64) {
        let _ = send(&self.0, &run.to_le_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
}

/// Waits until the worker has ended. The worker never sends anything.
pub fn wait_for_end(control: &OwnedFd) {
    // `poll` reports a hang-up even without requested events.
    while poll(&mut [PollFd::new(control, PollFlags::empty())], None) == Err(Errno::INTR) {}
}

/// Receives the next message in the worker; returns `None` when the node has ended.
pub fn receive_control(control: &OwnedFd) -> io::Result<Option<ControlMessage>> {
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
        return Ok(Some(ControlMessage::Cancel(number)));
    }
    let mut brought = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.collect(),
        _ => Vec::new(),
    });
    match (brought.next(), brought.next(), brought.next()) {
        (Some(socket), Some(memory), arena) => {
            let files = ConnectionFiles { memory: memory.into(), arena: arena.map(File::from) };
            Ok(Some(ControlMessage::Connection(ServedConnection::new(socket.into()), files)))
        }
        _ => Err(io::Error::other("a connection came without its socket and memory")),
    }
}
