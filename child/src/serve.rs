//! Child side.

use crate::{Confinement, Limits, confine_access, confine_process};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Read, Write};
use std::process::ExitCode;

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

/// Exits the process when standard input closes, which also happens when the parent dies.
fn end_with_parent() -> io::Result<()> {
    let wait = || {
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(1);
    };
    std::thread::Builder::new().name("parent".to_owned()).stack_size(64 << 10).spawn(wait)?;
    Ok(())
}
