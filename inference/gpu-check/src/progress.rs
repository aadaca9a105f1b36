//! Progress of a stage: reports each case and check immediately, so that the watching process knows
//! which case ended the stage's process.

use crate::config::CheckFailure;
use crate::outcome::{Check, LaunchParameters};
use crate::stage::{CaseSelection, Stage};
use serde::{Deserialize, Serialize};

/// Event of a running stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StageProgress {
    /// A case starts. If the process ends before the next case starts, this case is the reason.
    Case(String),
    /// Launches that the running case enqueues next.
    Launches(Vec<LaunchParameters>),
    /// A check of the running case ended.
    Check(Box<Check>),
}

/// Runs the selected cases of a stage, and reports them.
pub(crate) struct Reporter<'a> {
    stage: Stage,
    selection: &'a CaseSelection,
    tell: &'a mut dyn FnMut(StageProgress),
    case: Option<String>,
    launches: Vec<LaunchParameters>,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(
        stage: Stage,
        selection: &'a CaseSelection,
        tell: &'a mut dyn FnMut(StageProgress),
    ) -> Self {
        Self { stage, selection, tell, case: None, launches: Vec::new() }
    }

    /// Returns whether the case called `name` is selected.
    pub(crate) fn includes(&self, name: &str) -> bool {
        self.selection.includes(name)
    }

    /// Runs the case called `name` if it is selected. An error fails the case; the method returns
    /// only errors after which the process cannot continue.
    pub(crate) fn case(
        &mut self,
        name: &str,
        work: impl FnOnce(&mut Self) -> Result<(), CheckFailure>,
    ) -> Result<(), CheckFailure> {
        if !self.includes(name) {
            return Ok(());
        }
        self.case = Some(name.to_owned());
        (self.tell)(StageProgress::Case(name.to_owned()));
        let worked = work(self);
        let ended = match worked {
            Err(error) if !error.is_device_lost() => {
                self.check(Check::failed(self.stage, name, error));
                Ok(())
            }
            worked => worked,
        };
        self.case = None;
        self.launches.clear();
        ended
    }

    /// Runs a case that is a single check.
    pub(crate) fn single(
        &mut self,
        name: &str,
        work: impl FnOnce() -> Result<Check, CheckFailure>,
    ) -> Result<(), CheckFailure> {
        self.case(name, |report| {
            let check = work()?;
            report.check(check);
            Ok(())
        })
    }

    /// Announces launches before they are enqueued.
    pub(crate) fn launches(&mut self, launches: Vec<LaunchParameters>) {
        self.launches.clone_from(&launches);
        (self.tell)(StageProgress::Launches(launches));
    }

    /// Reports a finished check.
    pub(crate) fn check(&mut self, check: Check) {
        let launches = if check.passed { Vec::new() } else { self.launches.clone() };
        (self.tell)(StageProgress::Check(Box::new(Check { case: self.case.clone(), launches, ..check })));
    }
}
