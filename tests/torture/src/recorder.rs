//! Clock and history of the run.

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};
use weir_torture::history::{FaultRecord, History, Micros, NodeState, Operation, Stall};

/// Delay from which the machine counts as stalled.
const STALL_MIN: Duration = Duration::from_secs(1);

/// History under construction, which is also written to a file, one line of JSON for each entry.
pub(crate) struct Recorder {
    began: Instant,
    state: Mutex<State>,
}

struct State {
    history: History,
    file: BufWriter<File>,
}

/// Line of the file.
#[derive(Serialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
enum Line<'a> {
    Operation(&'a Operation),
    Fault(&'a FaultRecord),
    Stall(&'a Stall),
    Final(&'a NodeState),
}

impl Recorder {
    /// Starts the clock, and a new file.
    pub(crate) fn start(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
        let state = State { history: History::default(), file: BufWriter::new(file) };
        Ok(Self { began: Instant::now(), state: Mutex::new(state) })
    }

    /// Time since the start.
    pub(crate) fn now(&self) -> Micros {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Adds an operation that has ended.
    pub(crate) fn operation(&self, operation: Operation) {
        let mut state = self.state.lock();
        state.write(&Line::Operation(&operation));
        state.history.operations.push(operation);
    }

    /// Adds a fault that was undone.
    pub(crate) fn fault(&self, fault: FaultRecord) {
        let mut state = self.state.lock();
        state.write(&Line::Fault(&fault));
        state.history.faults.push(fault);
    }

    /// Notices periods in which this program does not run, without end. They are no faults of the
    /// cluster.
    pub(crate) async fn watch_stalls(&self) {
        loop {
            let begin_us = self.now();
            tokio::time::sleep(STALL_MIN / 4).await;
            let end_us = self.now();
            if u128::from(end_us - begin_us) > STALL_MIN.as_micros() {
                let stall = Stall { begin_us, end_us };
                let mut state = self.state.lock();
                state.write(&Line::Stall(&stall));
                state.history.stalls.push(stall);
            }
        }
    }

    /// Adds the states of the nodes at the end.
    pub(crate) fn finals(&self, finals: Vec<NodeState>) {
        let mut state = self.state.lock();
        for node in &finals {
            state.write(&Line::Final(node));
        }
        state.history.finals = finals;
    }

    /// Number of operations, and of those that were acknowledged.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        let operations = &state.history.operations;
        (operations.len(), operations.iter().filter(|operation| operation.answer().is_some()).count())
    }

    /// The history so far, and the end of the file.
    pub(crate) fn history(&self) -> Result<History> {
        let mut state = self.state.lock();
        state.file.flush().context("cannot write the history")?;
        Ok(state.history.clone())
    }
}

impl State {
    /// Writes a line. A full disk shows at the last flush.
    fn write(&mut self, line: &Line<'_>) {
        if serde_json::to_writer(&mut self.file, line).is_ok() {
            let _ = self.file.write_all(b"\n");
        }
    }
}
