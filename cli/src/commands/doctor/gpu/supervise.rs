//! Runs a stage in a child process, and restarts it after a case that ended the process.

use super::child::{StageChild, StageProcessEvent};
use super::limits::{RESTARTS_MAX, StageLimits};
use super::message::{StageEvent, StageOrder};
use super::record::StageRecorder;
use crate::error::Problem;
use anyhow::{Context as _, Result};
use std::time::Instant;
use weir_gpu_check::{CheckConfig, Stage, StageProgress};

/// End of one stage process.
enum StageEnd {
    Finished,
    /// Ended early, with the reason.
    Early(String),
    /// The time limit of the stage is over.
    OverTime(String),
}

/// Runs the selected cases of a stage. The end of a stage process is recorded as a failed check;
/// only a failure of the doctor itself is an error.
pub(super) fn run(
    stage: Stage,
    config: &CheckConfig,
    limits: StageLimits,
    record: &mut StageRecorder<'_>,
) -> Result<()> {
    let deadline = Instant::now() + limits.stage;
    let mut config = config.clone();
    let mut restarts = 0;
    loop {
        let order = StageOrder { stage, config: config.clone() };
        let (why, is_over) = match run_once(&order, limits, deadline, record)? {
            // A stage is finished when all its cases have run.
            StageEnd::Finished => return record.end(stage, config.selection.only.is_empty()),
            StageEnd::Early(why) => (why, false),
            StageEnd::OverTime(why) => (why, true),
        };
        let case = record.fail(stage, &why)?;
        let Some(case) = case.filter(|_| !is_over && restarts < RESTARTS_MAX) else {
            return record.end(stage, false);
        };
        restarts += 1;
        record.note(&format!("{stage} continues after {case:?}"));
        // Skip the cases that have started, including the failed case.
        config.selection.skip.extend(record.take_started());
    }
}

fn run_once(
    order: &StageOrder,
    limits: StageLimits,
    stage_deadline: Instant,
    record: &mut StageRecorder<'_>,
) -> Result<StageEnd> {
    let mut process = StageChild::start(order).context("cannot start a process for the stage")?;
    loop {
        let case_deadline = Instant::now() + limits.case;
        let event = match process.next(stage_deadline.min(case_deadline)) {
            StageProcessEvent::Event(event) => event,
            StageProcessEvent::Ended(how) => return Ok(StageEnd::Early(how)),
            StageProcessEvent::Silence if stage_deadline <= case_deadline => {
                let time_s = limits.stage.as_secs();
                return Ok(StageEnd::OverTime(format!(
                    "the stage took longer than {time_s} s (--stage-time-s), and was killed"
                )));
            }
            StageProcessEvent::Silence => {
                let time_s = limits.case.as_secs();
                return Ok(StageEnd::Early(format!(
                    "no progress for {time_s} s (--case-time-s): the process was killed"
                )));
            }
        };
        match event {
            StageEvent::Progress(StageProgress::Case(case)) => record.start_case(order.stage, case)?,
            StageEvent::Progress(StageProgress::Launches(launches)) => record.launches(launches)?,
            StageEvent::Progress(StageProgress::Check(check)) => record.check(*check)?,
            StageEvent::Finished => return Ok(StageEnd::Finished),
            StageEvent::Failed(why) => return Ok(StageEnd::Early(why)),
            StageEvent::Unavailable(why) => {
                let hint = "a node without a GPU runs models on its processor";
                return Err(Problem::new(why).hint(hint).into());
            }
        }
    }
}
