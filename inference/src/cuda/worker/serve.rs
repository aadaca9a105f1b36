//! What the worker of a device does: the whole of what a process does that was started with [`DEVICE_WORKER_COMMAND`].

mod exports;
mod fetching;
mod importing;
mod runs;
mod service;
mod staying;
mod window;

use super::control::{Files, News, next};
use crate::cuda::process::{confine, end_at_once};
use service::Service;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;

/// The hidden subcommand that a node starts itself with.
pub const DEVICE_WORKER_COMMAND: &str = "__run-models";

/// Be the worker of a device: do what is asked over connections that come through standard input, a socket, until it closes.
#[must_use]
pub fn device_worker_main() -> ExitCode {
    let served = serve();
    if let Err(error) = &served {
        // The node's own log is what is left to say it in.
        eprintln!("the worker of a device: {error}");
    }
    end_at_once();
    ExitCode::FAILURE
}

/// Nothing is done here that might take long, so that the process ends with the node whatever the device does.
fn serve() -> io::Result<()> {
    confine()?;
    let control: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let service = Arc::new(Service::default());
    while let Some(news) = next(&control)? {
        match news {
            News::Connection(socket, files) => attend(&service, socket, files)?,
            News::Cancel(run) => service.cancel(run),
        }
    }
    Ok(())
}

/// A thread for each connection: the node sees to it that there are not many.
fn attend(service: &Arc<Service>, socket: UnixStream, files: Files) -> io::Result<()> {
    let service = Arc::clone(service);
    let thread = std::thread::Builder::new().name("connection".to_owned());
    thread.spawn(move || {
        if let Err(error) = service.attend(socket, &files) {
            eprintln!("the worker of a device: {error}");
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests;
