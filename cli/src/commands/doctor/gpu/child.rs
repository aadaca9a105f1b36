//! The doctor's side of the process of a stage.

use super::limits::KILL_TIME_MAX;
use super::message::{StageEvent, StageOrder, send};
use super::stage_process::STAGE_COMMAND;
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

/// This program as it runs, whatever has become of its file since.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// The process of a stage. Killed on drop; it ends by itself when the doctor ends, however that happens.
pub(super) struct StageChild {
    child: Child,
    events: Receiver<StageEvent>,
    /// Open for as long as the process shall live.
    socket: UnixStream,
}

/// What comes next from the process of a stage.
pub(super) enum Next {
    Event(StageEvent),
    /// Nothing in time.
    Silence,
    /// The process has ended: how.
    Ended(String),
}

impl StageChild {
    pub(super) fn start(order: &StageOrder) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        // What libraries print must not mix with the doctor's results.
        let child = Command::new(THIS_PROGRAM)
            .arg(STAGE_COMMAND)
            .stdin(OwnedFd::from(theirs))
            .stdout(io::stderr())
            .spawn()?;
        let (sender, events) = channel();
        let reader = BufReader::new(socket.try_clone()?);
        let child = Self { child, events, socket };
        std::thread::Builder::new().name("stage".to_owned()).spawn(move || read(reader, &sender))?;
        // A process that is gone already has its reason in its status.
        let _ = send(&child.socket, order);
        Ok(child)
    }

    /// The next event; or silence at `deadline`, or the end of the process with its reason.
    pub(super) fn next(&mut self, deadline: Instant) -> Next {
        match self.receive(deadline) {
            Ok(event) => Next::Event(event),
            Err(RecvTimeoutError::Timeout) => Next::Silence,
            // Its socket is closed: it has ended, or is about to.
            Err(RecvTimeoutError::Disconnected) => Next::Ended(match self.child.wait() {
                Ok(status) => how(status),
                Err(error) => error.to_string(),
            }),
        }
    }

    fn receive(&self, deadline: Instant) -> Result<StageEvent, RecvTimeoutError> {
        self.events.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    }
}

impl Drop for StageChild {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // Until its socket closes, so that the next stage finds the device free. A process that the driver holds on to is left to the system.
        let deadline = Instant::now() + KILL_TIME_MAX;
        while self.receive(deadline).is_ok() {}
        let _ = self.child.try_wait();
    }
}

/// Reads events until the process closes its socket, or sends something that is no event.
fn read(reader: BufReader<UnixStream>, events: &Sender<StageEvent>) {
    for line in reader.lines() {
        // An error of the socket means that the process has ended.
        let Ok(line) = line else { return };
        let event = serde_json::from_str(&line);
        let event = event.unwrap_or_else(|error| StageEvent::Failed(format!("unexpected message: {error}")));
        if events.send(event).is_err() {
            return;
        }
    }
}

fn how(status: ExitStatus) -> String {
    match status.signal() {
        Some(_) => format!("the process of the stage was ended by {status}"),
        None => format!("the process of the stage ended early: {status}"),
    }
}
