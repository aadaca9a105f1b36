//! Waiting for descriptors with a deadline.

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::time::Instant;

/// Waits until a descriptor is ready, at most until the deadline, and returns whether one is. After
/// the deadline, looks once.
pub(crate) fn poll_until(descriptors: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        match poll(descriptors, timeout.as_ref()) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(count) => return Ok(count > 0),
        }
    }
}
