//! Worker process for kernel graphs: the entry point of a process started with [`WORKER_COMMAND`].

use super::message::{KernelGraphReply, KernelGraphRequest};
use super::runner::GraphRunner;
use crate::open_files::kernel_graph_worker_files;
use crate::process::confine;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, sync_channel};
use weir_child::raise_open_files;
use weir_worker::{end_at_once, receive, send};

/// Hidden subcommand with which a node starts itself as a worker.
pub const WORKER_COMMAND: &str = "__run-kernel-graphs";

/// Maximum number of devices that the driver of a worker can see.
const DEVICES_MAX: u64 = 64;

/// Runs a worker: answers requests from the socket on standard input until it closes. Tensors are
/// exchanged through standard output, a memory file.
#[must_use]
pub fn worker_main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error, which goes to the node's log, is the only remaining channel.
            eprintln!("a worker for kernels: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    confine()?;
    let files = raise_open_files(kernel_graph_worker_files(DEVICES_MAX))?;
    let files_max = Some(files.min(kernel_graph_worker_files(DEVICES_MAX)));
    setrlimit(Resource::Nofile, Rlimit { current: files_max, maximum: files_max })?;
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let memory = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let requests = listen(socket.try_clone()?)?;
    let mut runner: Option<GraphRunner> = None;
    while let Ok(request) = requests.recv() {
        let answer = match (request, &mut runner) {
            (KernelGraphRequest::Open { driver, ordinal, memory_bytes_max }, None) => {
                match GraphRunner::open(driver, ordinal, memory_bytes_max) {
                    Ok(opened) => {
                        runner = Some(opened);
                        KernelGraphReply::Done
                    }
                    Err(why) => KernelGraphReply::Failed(why),
                }
            }
            (KernelGraphRequest::Load { graph, file }, Some(runner)) => runner.load(graph, &file),
            (KernelGraphRequest::Forget { graph }, Some(runner)) => runner.forget(graph),
            (KernelGraphRequest::Run { graph, inputs, outputs, outputs_at }, Some(runner)) => {
                runner.run(graph, &inputs, &outputs, outputs_at, &memory)
            }
            (request, _) => KernelGraphReply::Failed(format!("{request:?} at the wrong time")),
        };
        send(&mut socket, &answer)?;
    }
    Ok(())
}

/// Reads requests on a dedicated thread, so that the process ends with its node even if a kernel
/// hangs.
fn listen(mut socket: UnixStream) -> io::Result<Receiver<KernelGraphRequest>> {
    let (sender, requests) = sync_channel(1);
    let read = move || {
        while let Ok(Some(request)) = receive::<KernelGraphRequest>(&mut socket) {
            if sender.send(request).is_err() {
                break;
            }
        }
        end_at_once();
    };
    std::thread::Builder::new().name("requests".to_owned()).spawn(read)?;
    Ok(requests)
}
