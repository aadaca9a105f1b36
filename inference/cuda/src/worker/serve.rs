//! Worker process of a device: the entry point of a process started with [`DEVICE_WORKER_COMMAND`].

mod exports;
mod fetching;
mod importing;
mod service;
mod staying;
mod window;

use crate::process::confine;
use service::Service;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use weir_worker::{ConnectionFiles, ControlMessage, ServedConnection, end_at_once, receive_control};

/// Hidden subcommand with which a node starts itself as a worker.
pub const DEVICE_WORKER_COMMAND: &str = "__run-models";

/// Runs the worker of a device: serves the connections that arrive over the socket on standard
/// input, until it closes.
#[must_use]
pub fn device_worker_main() -> ExitCode {
    let served = serve();
    if let Err(error) = &served {
        // Standard error, which the node logs, is the only remaining channel.
        eprintln!("the worker of a device: {error}");
    }
    end_at_once();
    ExitCode::FAILURE
}

/// Reads control messages. This thread never blocks on the device, so that the process ends with
/// its node.
fn serve() -> io::Result<()> {
    confine()?;
    let control: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let service = Arc::new(Service::default());
    while let Some(news) = receive_control(&control)? {
        match news {
            ControlMessage::Connection(connection, files) => attend(&service, connection, files)?,
            ControlMessage::Cancel(run) => service.cancel(run),
        }
    }
    Ok(())
}

/// Starts a thread for a connection. The node bounds the number of connections.
fn attend(service: &Arc<Service>, connection: ServedConnection, files: ConnectionFiles) -> io::Result<()> {
    let service = service.clone();
    let thread = std::thread::Builder::new().name("connection".to_owned());
    thread.spawn(move || {
        if let Err(error) = service.attend(connection, &files) {
            eprintln!("the worker of a device: {error}");
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests;
