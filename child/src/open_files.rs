//! The limit on open files, which most systems set low and let processes raise.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// Let this process, and those that it starts from now on, have `wanted` files open at once, or as many as the hard limit allows. Gives how many it may have
/// open then, which is never fewer than before.
pub fn raise_open_files(wanted: u64) -> io::Result<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let current = current.unwrap_or(u64::MAX);
    let raised = wanted.min(maximum.unwrap_or(u64::MAX));
    if raised <= current {
        return Ok(current);
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum })?;
    Ok(raised)
}
