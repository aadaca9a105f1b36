//! Record of a run: prints each finished check to standard error and stores it in OUT.

use super::kept::ResultsFile;
use crate::output::OutputSettings;
use anyhow::Result;
use weir_gpu_check::{Check, LaunchParameters, Stage};

/// Recorder for the stages, one at a time.
pub(super) struct StageRecorder<'a> {
    kept: &'a mut ResultsFile,
    output: OutputSettings,
    /// Cases that started since the last start of the stage process.
    started: Vec<String>,
}

impl<'a> StageRecorder<'a> {
    pub(super) fn new(kept: &'a mut ResultsFile, output: OutputSettings) -> Self {
        Self { kept, output, started: Vec::new() }
    }

    pub(super) fn start_case(&mut self, stage: Stage, case: String) -> Result<()> {
        self.started.push(case.clone());
        self.kept.start_case(stage, case)
    }

    pub(super) fn launches(&mut self, launches: Vec<LaunchParameters>) -> Result<()> {
        self.kept.launches(launches)
    }

    pub(super) fn check(&mut self, check: Check) -> Result<()> {
        self.output.note(line(&check));
        self.kept.check(check)
    }

    /// Records that the stage process ended early, as a failure of the running case. Returns that
    /// case.
    pub(super) fn fail(&mut self, stage: Stage, why: &str) -> Result<Option<String>> {
        let running = self.kept.take_running();
        let (case, launches) =
            running.map_or((None, Vec::new()), |running| (Some(running.case), running.launches));
        let what = case.as_deref().unwrap_or("start of the stage");
        let check = Check { case: case.clone(), launches, ..Check::failed(stage, what, why) };
        self.check(check)?;
        Ok(case)
    }

    /// Takes the cases that started since the last call.
    pub(super) fn take_started(&mut self) -> Vec<String> {
        std::mem::take(&mut self.started)
    }

    /// Ends a stage. `is_finished` is false if some cases did not run.
    pub(super) fn end(&mut self, stage: Stage, is_finished: bool) -> Result<()> {
        self.kept.end(stage, is_finished)
    }

    pub(super) fn note(&self, note: &str) {
        self.output.note(note);
    }
}

fn line(check: &Check) -> String {
    let verdict = if check.passed { "ok    " } else { "FAILED" };
    let tier = check.tier.map_or_else(String::new, |tier| format!(" ({tier})"));
    let why = if check.passed { String::new() } else { format!(": {}", super::table::detail(check)) };
    format!("{verdict} {}{tier}{why}", check.what)
}
