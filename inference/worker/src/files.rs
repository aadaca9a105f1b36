//! Open files over a socket, sent after a message with their number.

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::IoSliceMut;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// Maximum number of files per packet. Each packet carries one byte of data. The kernel's limit is
/// 253.
const AT_ONCE_MAX: usize = 64;

/// Sends files. The sender keeps its descriptors, and may close them.
pub fn send_files(to: &UnixStream, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    for files in files.chunks(AT_ONCE_MAX) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::Error::other("there is no room for files in a packet"));
        }
        while let Err(error) = sendmsg(to, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL) {
            if error != Errno::INTR {
                return Err(error.into());
            }
        }
    }
    Ok(())
}

/// Receives `count` files. Returns `None` if this process reached its limit of open files. In that
/// case the received files are closed, and the next message can still be received.
pub fn receive_files(from: &UnixStream, count: usize) -> io::Result<Option<Vec<OwnedFd>>> {
    let mut files = Vec::with_capacity(count);
    for _ in 0..count.div_ceil(AT_ONCE_MAX) {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let into = &mut [IoSliceMut::new(&mut byte)];
            match recvmsg(from, into, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                received => break received?.bytes,
            }
        };
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(brought) = message {
                files.extend(brought);
            }
        }
    }
    Ok((files.len() == count).then_some(files))
}

#[cfg(test)]
mod tests {
    use super::super::{receive, send};
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn files_arrive_in_order_between_messages() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let files: Vec<OwnedFd> =
            (0..150).map(|_| memfd_create("test", MemfdFlags::CLOEXEC).unwrap()).collect();
        send(&mut ours, &"before").unwrap();
        send_files(&ours, &files.iter().map(AsFd::as_fd).collect::<Vec<_>>()).unwrap();
        send(&mut ours, &"after").unwrap();
        for (number, file) in (0_u8..).zip(files) {
            File::from(file).write_all_at(&[number], 0).unwrap();
        }
        assert_eq!(receive(&mut theirs).unwrap(), Some("before".to_owned()));
        let arrived = receive_files(&theirs, 150).unwrap().unwrap();
        assert_eq!(receive(&mut theirs).unwrap(), Some("after".to_owned()));
        for (number, file) in (0_u8..).zip(arrived) {
            let mut found = [255];
            File::from(file).read_exact_at(&mut found, 0).unwrap();
            assert_eq!(found, [number]);
        }
        drop(ours);
        assert!(receive_files(&theirs, 1).is_err());
    }
}
