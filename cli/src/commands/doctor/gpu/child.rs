//! Doctor's end of the connection to a stage process.

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

/// Path of this executable. Works even if the file was replaced or removed since the start.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Stage process. Killed on drop. The process also exits when the doctor exits for any reason,
/// because its socket closes.
pub(super) struct StageChild {
    child: Child,
    events: Receiver<StageEvent>,
    /// Keeps the process alive while open.
    socket: UnixStream,
}

/// Next event of a stage process.
pub(super) enum StageProcessEvent {
    Event(StageEvent),
    /// No event before the deadline.
    Silence,
    /// The process ended; describes the exit.
    Ended(String),
}

impl StageChild {
    pub(super) fn start(order: &StageOrder) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        // Output of libraries goes to stderr, separate from the doctor's results.
        let child = Command::new(THIS_PROGRAM)
            .arg(STAGE_COMMAND)
            .stdin(OwnedFd::from(theirs))
            .stdout(io::stderr())
            .spawn()?;
        let (sender, events) = channel();
        let reader = BufReader::new(socket.try_clone()?);
        let child = Self { child, events, socket };
        std::thread::Builder::new().name("stage".to_owned()).spawn(move || read(reader, &sender))?;
        // If the process has exited already, its exit status has the reason.
        let _ = send(&child.socket, order);
        Ok(child)
    }

    /// Waits for the next event until `deadline`. At the end of the process, returns the reason.
    pub(super) fn next(&mut self, deadline: Instant) -> StageProcessEvent {
        match self.receive(deadline) {
            Ok(event) => StageProcessEvent::Event(event),
            Err(RecvTimeoutError::Timeout) => StageProcessEvent::Silence,
            // The socket is closed: the process has ended or is exiting.
            Err(RecvTimeoutError::Disconnected) => StageProcessEvent::Ended(match self.child.wait() {
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
        // Wait until the socket closes, so that the next stage finds the device free. After the
        // timeout, the operating system reaps a process that is blocked in the driver.
        let deadline = Instant::now() + KILL_TIME_MAX;
        while self.receive(deadline).is_ok() {}
        let _ = self.child.try_wait();
    }
}

/// Forwards events until the process closes its socket or the doctor drops the receiver.
fn read(reader: BufReader<UnixStream>, events: &Sender<StageEvent>) {
    for line in reader.lines() {
        // A socket error means that the process has ended.
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
