//! Records a scheduler's inputs and outputs as JSON lines, and replays them.
//!
//! The first line is the [`Setup`], with the version of the format; every further line is one call
//! of [`Scheduler::handle`]: the time, the event and the actions. Setup and calls determine a
//! scheduler completely, so a record from a running node can be replayed on any other machine. A
//! record covers a prefix of the calls: a [`Recorder`] starts with a new scheduler, and stops for
//! good once the record is full.

use crate::{Action, Arrival, Event, PolicyKind, PolicyOptions, Scheduler, Settings};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::HashSet;
use std::io::{BufRead, Read};

/// The parameters of a scheduler.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The policy.
    pub policy: PolicyKind,
    /// The policy's options.
    pub options: PolicyOptions,
    /// The scheduler's settings.
    pub settings: Settings,
}

impl Setup {
    /// Creates a scheduler without any events.
    #[must_use]
    pub fn build(&self) -> Scheduler {
        Scheduler::with_policy(&self.settings, self.policy.build(&self.options))
    }
}

/// Version of the format, and of the scheduler's decisions. A replay of a record of another version
/// would fail at some point, so it is rejected.
const VERSION: u32 = 6;

/// The first line, for writing.
#[derive(Serialize)]
struct FirstLine<'a> {
    version: u32,
    #[serde(flatten)]
    setup: &'a Setup,
}

/// The version in the first line. Records of version 1 have none.
#[derive(Deserialize)]
struct Versioned {
    #[serde(default = "first_version")]
    version: u32,
}

const fn first_version() -> u32 {
    1
}

/// Records a scheduler's calls for [`replay`]. A recorder does no I/O: the scheduler's driver takes
/// the lines and writes them to a file.
#[derive(Debug)]
pub struct Recorder {
    lines: Vec<u8>,
    bytes_left: usize,
    is_full: bool,
}

impl Recorder {
    /// Starts a record of a new scheduler built from `setup`. All lines together take at most
    /// `bytes_max`.
    #[must_use]
    pub fn new(setup: &Setup, bytes_max: usize) -> Self {
        let mut recorder = Self { lines: Vec::new(), bytes_left: bytes_max, is_full: false };
        recorder.write(&FirstLine { version: VERSION, setup });
        recorder
    }

    /// Passes an event to the scheduler, and records the event and the resulting actions. Earlier
    /// contents of `actions` are not recorded.
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

    /// Records a call of [`Scheduler::handle`] made by the caller.
    pub fn record(&mut self, now_ns: u64, event: &Event, actions: &[Action]) {
        self.write(&RecordedCall { now_ns, event, actions });
    }

    /// Takes the lines recorded since the last call.
    #[must_use]
    pub fn take_lines(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.lines)
    }

    /// Whether a call exceeded the size limit. That call and all later calls are missing.
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

/// The result of a replay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// Calls of [`Scheduler::handle`].
    pub calls: u64,
    /// Actions of all calls.
    pub actions: u64,
    /// The record ends in the middle of a line, for example because its writer was stopped. All
    /// complete lines were replayed.
    pub is_cut_short: bool,
}

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The record cannot be read.
    #[error("the record cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// A line does not parse.
    #[error("line {line} is not part of a record: {error}")]
    Bad {
        /// The line's number, from 1.
        line: u64,
        /// The parse error.
        error: serde_json::Error,
    },
    /// The record has another version.
    #[error(
        "the record has version {0}, and this version of Weir replays version {VERSION}: replay it with the version that wrote it"
    )]
    Version(u32),
    /// A line exceeds the length limit.
    #[error("line {line} is longer than {LINE_BYTES_MAX} bytes")]
    LongLine {
        /// The line's number, from 1.
        line: u64,
    },
    /// The scheduler's actions differ from the recorded actions.
    #[error(
        "line {line}: after the event {event}, the recorded actions are {recorded}, and the replayed actions are {replayed}"
    )]
    Differs {
        /// The line's number, from 1.
        line: u64,
        /// The event, as JSON.
        event: String,
        /// The recorded actions, as JSON.
        recorded: String,
        /// The replayed actions, as JSON.
        replayed: String,
    },
}

/// Maximum length of a line; no arrival or decision comes close.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// Replays a record and checks that the scheduler returns the recorded actions.
///
/// # Errors
/// If an action differs, or if the input is not a valid record.
pub fn replay(record: impl BufRead) -> Result<Replayed, ReplayError> {
    let mut replayed = Replayed::default();
    let mut lines = RecordLines::new(record);
    lines.next()?;
    let setup: Setup = lines.parse()?;
    let Versioned { version } = lines.parse()?;
    if version != VERSION {
        return Err(ReplayError::Version(version));
    }
    let mut scheduler = setup.build();
    let mut actions = Vec::new();
    loop {
        if !lines.next()? {
            replayed.is_cut_short = !lines.buffer.is_empty();
            return Ok(replayed);
        }
        let line = lines.line;
        let call: ReadCall = lines.parse()?;
        let event = json(&call.event);
        actions.clear();
        scheduler.handle(call.now_ns, call.event, &mut actions);
        let recorded: Vec<Action> =
            serde_json::from_str(call.actions.get()).map_err(|error| ReplayError::Bad { line, error })?;
        // Parsing loses the last digits of costs in the millions, so the JSON text is compared too.
        if actions != recorded && json(&actions) != call.actions.get() {
            let recorded = call.actions.get().to_owned();
            let replayed = json(&actions);
            return Err(ReplayError::Differs { line, event, recorded, replayed });
        }
        replayed.calls += 1;
        replayed.actions += actions.len() as u64;
    }
}

/// An arrival in a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedArrival {
    /// Time of the arrival on the scheduler's clock.
    pub at_ns: u64,
    /// The invocation.
    pub arrival: Arrival,
}

/// Reads the arrivals of a record, in order. An invocation that was announced again, to a new
/// dispatcher, arrives once. Records of other versions are read if their events have the same form.
///
/// # Errors
/// If the input is not a valid record.
pub fn recorded_arrivals(record: impl BufRead) -> Result<Vec<RecordedArrival>, ReplayError> {
    let mut lines = RecordLines::new(record);
    lines.next()?;
    let _: Versioned = lines.parse()?;
    let mut known = HashSet::new();
    let mut arrivals = Vec::new();
    while lines.next()? {
        let ReadEvent { now_ns, event } = lines.parse()?;
        if let Event::Arrived(arrival) = event
            && known.insert(arrival.invocation)
        {
            arrivals.push(RecordedArrival { at_ns: now_ns, arrival });
        }
    }
    Ok(arrivals)
}

/// The lines of a record.
struct RecordLines<R> {
    record: R,
    buffer: Vec<u8>,
    /// Number of the line in the buffer.
    line: u64,
}

impl<R: BufRead> RecordLines<R> {
    fn new(record: R) -> Self {
        Self { record, buffer: Vec::new(), line: 0 }
    }

    /// Reads the next line. Returns whether the line is complete.
    fn next(&mut self) -> Result<bool, ReplayError> {
        self.line += 1;
        self.buffer.clear();
        let len = self.record.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut self.buffer)? as u64;
        let is_whole = self.buffer.last() == Some(&b'\n');
        if len == LINE_BYTES_MAX && !is_whole {
            return Err(ReplayError::LongLine { line: self.line });
        }
        Ok(is_whole)
    }

    fn parse<'a, T: Deserialize<'a>>(&'a self) -> Result<T, ReplayError> {
        serde_json::from_slice(&self.buffer).map_err(|error| ReplayError::Bad { line: self.line, error })
    }
}

/// A call, for writing.
#[derive(Serialize)]
struct RecordedCall<'a> {
    now_ns: u64,
    event: &'a Event,
    actions: &'a [Action],
}

/// A call, for reading.
#[derive(Deserialize)]
struct ReadCall {
    now_ns: u64,
    event: Event,
    actions: Box<RawValue>,
}

/// A call without its actions, for reading.
#[derive(Deserialize)]
struct ReadEvent {
    now_ns: u64,
    event: Event,
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| error.to_string())
}
