//! Limit on open files. Most systems set a low soft limit and let processes raise it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// Raises the limit on open files of this process, and of processes that it starts later, to
/// `wanted` or to the hard limit, whichever is lower. Returns the resulting limit, which is never
/// below the previous limit.
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
