//! What a scheduler was told and what it said to it, as JSON lines that can be played again.
//!
//! The first line is the [`Setup`]; each of the others is one call of [`Scheduler::handle`]: the time, the event and the actions. A
//! scheduler follows from its setup and its calls, so a record of a node that is running says, on any other machine, what it did and why.
//! It can be complete up to some call only: a [`Recorder`] begins with a new scheduler, and stops for good once it is full.

use crate::{Action, Event, PolicyKind, PolicyOptions, Scheduler, Settings};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::io::{BufRead, Read};

/// What a scheduler is made of.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Its policy.
    pub policy: PolicyKind,
    /// What the policy is told.
    pub options: PolicyOptions,
    /// Its limits.
    pub settings: Settings,
}

impl Setup {
    /// A scheduler that nothing has happened to yet.
    #[must_use]
    pub fn build(&self) -> Scheduler {
        Scheduler::with_policy(&self.settings, self.policy.build(&self.options))
    }
}

/// Writes down what a scheduler does, for [`replay`]. It does no I/O: whoever drives the scheduler takes the lines and brings them to a
/// file.
#[derive(Debug)]
pub struct Recorder {
    lines: Vec<u8>,
    bytes_left: usize,
    is_full: bool,
}

impl Recorder {
    /// A record of a scheduler that is made of `setup` and has been told nothing yet. All lines together take up to `bytes_max`.
    #[must_use]
    pub fn new(setup: &Setup, bytes_max: usize) -> Self {
        let mut recorder = Self { lines: Vec::new(), bytes_left: bytes_max, is_full: false };
        recorder.write(setup);
        recorder
    }

    /// Hand an event to the scheduler, and write down both it and what comes of it. `actions` may hold earlier ones.
    pub fn handle(
        &mut self,
        scheduler: &mut Scheduler,
        now_ns: u64,
        event: Event,
        actions: &mut Vec<Action>,
    ) {
        let before = actions.len();
        let copy = event.clone();
        scheduler.handle(now_ns, event, actions);
        self.record(now_ns, &copy, actions.get(before..).unwrap_or_default());
    }

    /// Write down a call of [`Scheduler::handle`] that was made elsewhere.
    pub fn record(&mut self, now_ns: u64, event: &Event, actions: &[Action]) {
        self.write(&Written { now_ns, event, actions });
    }

    /// The lines since this was asked last.
    #[must_use]
    pub fn take_lines(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.lines)
    }

    /// Whether a call did not fit any more: it and all later ones are missing.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    fn write(&mut self, line: &impl Serialize) {
        if self.is_full {
            return;
        }
        let before = self.lines.len();
        let written = serde_json::to_writer(&mut self.lines, line);
        self.lines.push(b'\n');
        let len = self.lines.len() - before;
        if written.is_err() || len > self.bytes_left {
            self.lines.truncate(before);
            self.is_full = true;
        } else {
            self.bytes_left -= len;
        }
    }
}

/// What was played again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// Calls of [`Scheduler::handle`].
    pub calls: u64,
    /// What they said, all together.
    pub actions: u64,
    /// The record ends in the middle of a line, as if its writer had been stopped. What comes before it was played.
    pub is_cut_short: bool,
}

/// Why a record could not be played again to its end.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// It cannot be read.
    #[error("the record cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// A line is not what it should be.
    #[error("line {line} is not part of a record: {error}")]
    Bad {
        /// Which one, from 1.
        line: u64,
        /// What is wrong with it.
        error: serde_json::Error,
    },
    /// A line has no end.
    #[error("line {line} is longer than {LINE_BYTES_MAX} bytes")]
    LongLine {
        /// Which one, from 1.
        line: u64,
    },
    /// The scheduler says something else today.
    #[error("line {line}: the scheduler was told {event}, said {recorded}, and says {replayed} now")]
    Differs {
        /// Which one, from 1.
        line: u64,
        /// What it was told.
        event: String,
        /// What it said, as JSON.
        recorded: String,
        /// What it says now.
        replayed: String,
    },
}

/// The longest line that is read: no arrival and no decision comes close.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// Play a record again, and see that the scheduler says the same.
///
/// # Errors
/// If it does not, or if this is not a record.
pub fn replay(mut record: impl BufRead) -> Result<Replayed, ReplayError> {
    let (mut replayed, mut buffer, mut line) = (Replayed::default(), Vec::new(), 1);
    let mut next = |line: u64, buffer: &mut Vec<u8>| -> Result<bool, ReplayError> {
        buffer.clear();
        let len = record.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', buffer)? as u64;
        let is_whole = buffer.last() == Some(&b'\n');
        if len == LINE_BYTES_MAX && !is_whole { Err(ReplayError::LongLine { line }) } else { Ok(is_whole) }
    };
    next(line, &mut buffer)?;
    let setup: Setup = serde_json::from_slice(&buffer).map_err(|error| ReplayError::Bad { line, error })?;
    let mut scheduler = setup.build();
    let mut actions = Vec::new();
    loop {
        line += 1;
        if !next(line, &mut buffer)? {
            replayed.is_cut_short = !buffer.is_empty();
            return Ok(replayed);
        }
        let call: Call = serde_json::from_slice(&buffer).map_err(|error| ReplayError::Bad { line, error })?;
        let event = json(&call.event);
        actions.clear();
        scheduler.handle(call.now_ns, call.event, &mut actions);
        let recorded: Vec<Action> =
            serde_json::from_str(call.actions.get()).map_err(|error| ReplayError::Bad { line, error })?;
        // Costs of millions are not read to the last digit that was written.
        if actions != recorded && json(&actions) != call.actions.get() {
            let (recorded, replayed) = (call.actions.get().to_owned(), json(&actions));
            return Err(ReplayError::Differs { line, event, recorded, replayed });
        }
        replayed.calls += 1;
        replayed.actions += actions.len() as u64;
    }
}

/// A call, to be written.
#[derive(Serialize)]
struct Written<'a> {
    now_ns: u64,
    event: &'a Event,
    actions: &'a [Action],
}

/// A call, as read.
#[derive(Deserialize)]
struct Call {
    now_ns: u64,
    event: Event,
    actions: Box<RawValue>,
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| error.to_string())
}
