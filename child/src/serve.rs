//! Child side.

use crate::{Confinement, Limits, confine_access, confine_process};
use rustix::process::{getpriority_process, setpriority_process};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Read, Write};
use std::process::ExitCode;

/// Niceness that is added to that of the node: a child gets about a third of the time of a thread that
/// competes with it, so that it ends within its wall-clock limit.
const NICENESS: i32 = 5;
const NICENESS_MAX: i32 = 19;

/// Message from the parent to the child.
#[derive(Serialize, Deserialize)]
pub(crate) struct ChildTask<Task> {
    pub(crate) limits: Limits,
    pub(crate) task: Task,
}

/// Runs a child that does one task, which is all that the process does. Passes the task and the
/// limits, already in force, to `work`.
///
/// The process gets all layers of confinement that the system has. `access` returns the files that
/// the task needs, after it has loaded the libraries that `work` uses; `None` if the task needs
/// libraries that are only found during the work.
///
/// Reads the order from standard input, which must stay open: the process exits when standard input
/// closes. Writes the answer to standard output.
#[must_use]
pub fn serve<Task: DeserializeOwned, Answer: Serialize>(
    access: impl FnOnce(&Task) -> Option<Confinement>,
    work: impl FnOnce(Task, Limits) -> Answer,
) -> ExitCode {
    match try_serve(access, work) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Only standard error is left for reporting; the parent reads it.
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn try_serve<Task: DeserializeOwned, Answer: Serialize>(
    access: impl FnOnce(&Task) -> Option<Confinement>,
    work: impl FnOnce(Task, Limits) -> Answer,
) -> io::Result<()> {
    // It only makes calls faster.
    let _ = yield_to_calls();
    // Missing layers are reported by `weir doctor` and by the node's workers.
    let _ = confine_process();
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let ChildTask { limits, task } = serde_json::from_str(&line)?;
    drop(line);
    limits.apply()?;
    if let Some(confinement) = access(&task) {
        let _ = confine_access(&confinement);
    }
    end_with_parent()?;
    let mut answer = serde_json::to_vec(&work(task, limits))?;
    answer.push(b'\n');
    io::stdout().write_all(&answer)
}

/// Lowers the priority of the process: deploys and pushes wait for its answer, and calls of other
/// tenants, which do not, compete with it for the processors.
fn yield_to_calls() -> io::Result<()> {
    let niceness = getpriority_process(None)?.saturating_add(NICENESS).min(NICENESS_MAX);
    Ok(setpriority_process(None, niceness)?)
}

/// Exits the process when standard input closes, which also happens when the parent dies.
fn end_with_parent() -> io::Result<()> {
    let wait = || {
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(1);
    };
    std::thread::Builder::new().name("parent".to_owned()).stack_size(64 << 10).spawn(wait)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_have_a_lower_priority_than_calls() {
        // On Linux, threads have separate priorities.
        let lowered = std::thread::spawn(|| {
            let before = getpriority_process(None).unwrap();
            yield_to_calls().unwrap();
            [before, getpriority_process(None).unwrap()]
        });
        let [before, after] = lowered.join().unwrap();
        assert_eq!(after, (before + NICENESS).min(NICENESS_MAX));
    }
}
