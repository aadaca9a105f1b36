//! What a worker does: the whole of what a process does that was started with [`WORKER_COMMAND`].

use super::message::{Answer, Request};
use super::runner::Runner;
use crate::cuda::open_files::kernel_graph_worker_files;
use crate::cuda::process::{confine, end_at_once, receive, send};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, sync_channel};
use weir_child::raise_open_files;

/// The hidden subcommand that a node starts itself with.
pub const WORKER_COMMAND: &str = "__run-kernel-graphs";

/// The devices that the driver of a worker may see.
const DEVICES_MAX: u64 = 64;

/// Be a worker: answer what is asked over standard input, a socket, until it closes. Tensors go through standard output, a file in memory.
#[must_use]
pub fn worker_main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The node's own log is what is left to say it in.
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
    let mut runner: Option<Runner> = None;
    while let Ok(request) = requests.recv() {
        let answer = match (request, &mut runner) {
            (Request::Open { driver, ordinal, memory_bytes_max }, None) => {
                match Runner::open(driver, ordinal, memory_bytes_max) {
                    Ok(opened) => {
                        runner = Some(opened);
                        Answer::Done
                    }
                    Err(why) => Answer::Failed(why),
                }
            }
            (Request::Load { graph, file }, Some(runner)) => runner.load(graph, &file),
            (Request::Forget { graph }, Some(runner)) => runner.forget(graph),
            (Request::Run { graph, inputs, outputs, outputs_at }, Some(runner)) => {
                runner.run(graph, &inputs, &outputs, outputs_at, &memory)
            }
            (request, _) => Answer::Failed(format!("{request:?} at the wrong time")),
        };
        send(&mut socket, &answer)?;
    }
    Ok(())
}

/// Read requests on a thread of its own, so that the process ends with the node whatever a kernel does.
fn listen(mut socket: UnixStream) -> io::Result<Receiver<Request>> {
    let (sender, requests) = sync_channel(1);
    let read = move || {
        while let Ok(Some(request)) = receive::<Request>(&mut socket) {
            if sender.send(request).is_err() {
                break;
            }
        }
        end_at_once();
    };
    std::thread::Builder::new().name("requests".to_owned()).spawn(read)?;
    Ok(requests)
}
