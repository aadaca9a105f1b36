//! `weir simulate --replay`: replays the recording of a running scheduler.

use crate::commands::CommandContext;
use crate::error::Problem;
use anyhow::Result;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use weir_scheduler::{ReplayError, replay};

pub(super) fn run(path: &Path, context: &CommandContext) -> Result<()> {
    let file = File::open(path)
        .map_err(|error| Problem::new(format!("cannot use {}", path.display())).because(error))?;
    let replayed = replay(BufReader::new(file)).map_err(|error| {
        let problem = Problem::new(format!("{} does not play again", path.display()));
        let hint = match &error {
            ReplayError::Differs { .. } => {
                "this is another version of the scheduler, or it is not repeatable"
            }
            _ => "a record is the output of the scheduler's `Recorder`, from its first line on",
        };
        problem.because(error).hint(hint)
    })?;
    context.output.result(&replayed, |replayed| {
        let end = if replayed.is_cut_short { "; the last line is cut short" } else { "" };
        format!("{} calls, {} actions: all as recorded{end}", replayed.calls, replayed.actions)
    })
}
