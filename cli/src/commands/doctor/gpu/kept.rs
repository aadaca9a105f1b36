//! Results file of `weir doctor --gpu OUT`. It is written after every check, so that an interrupted
//! run keeps its results and the next run resumes from them.

use crate::error::Problem;
use crate::files::write_whole;
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use weir_gpu_check::{CaseSelection, Check, CheckConfig, LaunchParameters, Stage};

/// Contents of the results file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ResultsFile {
    of: Identity,
    /// Stages with all cases run.
    finished: Vec<Stage>,
    /// Case in progress. In the file of an interrupted run, the case that was interrupted.
    running: Option<RunningCase>,
    /// Checks in stage order.
    pub(super) checks: Vec<Check>,
    #[serde(skip)]
    path: Option<PathBuf>,
    /// Environment of earlier runs, until the current environment is known to be the same. The file
    /// is not written before that.
    #[serde(skip)]
    environment: Option<Vec<Check>>,
}

/// Case in progress.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RunningCase {
    pub(super) stage: Stage,
    pub(super) case: String,
    /// Launches of the case that the process has reported.
    pub(super) launches: Vec<LaunchParameters>,
}

/// Settings of the checks. A file holds only checks with equal settings.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    weir: String,
    gpu_device: u32,
    models: Vec<PathBuf>,
    batches: Vec<u32>,
    repeats: u32,
    warm_up_ms: u64,
    library_flops_min: u64,
}

impl Identity {
    fn new(config: &CheckConfig) -> Self {
        let CheckConfig { ordinal, models, batches, repeats, warm_up_ms, library_flops_min, .. } = config;
        Self {
            weir: env!("CARGO_PKG_VERSION").to_owned(),
            gpu_device: *ordinal,
            models: models.clone(),
            batches: batches.clone(),
            repeats: *repeats,
            warm_up_ms: *warm_up_ms,
            library_flops_min: *library_flops_min,
        }
    }
}

impl ResultsFile {
    /// Reads the results file, or starts with empty results.
    pub(super) fn open(path: Option<&Path>, config: &CheckConfig) -> Result<Self> {
        let of = Identity::new(config);
        let empty = |of| Self {
            of,
            finished: Vec::new(),
            running: None,
            checks: Vec::new(),
            path: path.map(Path::to_owned),
            environment: None,
        };
        let Some(path) = path else { return Ok(empty(of)) };
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(empty(of)),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let hint = "remove it, or give another file";
        let kept: Self = serde_json::from_slice(&bytes).map_err(|error| {
            let text = format!("{} is no file of `weir doctor --gpu`: {error}", path.display());
            Problem::new(text).hint(hint)
        })?;
        if kept.of != of {
            let text = format!("{} is of checks with other models, options or another weir", path.display());
            return Err(Problem::new(text).hint(hint).into());
        }
        Ok(Self { path: Some(path.to_owned()), ..kept })
    }

    /// Whether all cases of a stage ran and passed, so that the stage can be skipped. The
    /// environment stage is never skipped.
    pub(super) fn has_passed(&self, stage: Stage) -> bool {
        let is_finished = stage != Stage::Environment && self.finished.contains(&stage);
        is_finished && self.of_stage(stage).all(|check| check.passed)
    }

    /// The case that an earlier run was interrupted in.
    pub(super) fn cut_off_in(&self) -> Option<&RunningCase> {
        self.running.as_ref()
    }

    /// Begins a stage: removes the checks of cases that run again, and returns the cases to skip.
    pub(super) fn begin(&mut self, stage: Stage, selection: &CaseSelection) -> Vec<String> {
        let cut_off = self.running.take().filter(|running| running.stage == stage);
        if stage == Stage::Environment && self.finished.contains(&stage) {
            self.environment = Some(self.of_stage(stage).cloned().collect());
        }
        let is_over = |case: &String| {
            let mut checks = self.of_stage(stage).filter(|check| check.case.as_ref() == Some(case));
            cut_off.as_ref().is_none_or(|running| running.case != *case) && checks.all(|check| check.passed)
        };
        let mut passed: Vec<String> = Vec::new();
        // Cases selected by name run again.
        if selection.only.is_empty() && stage != Stage::Environment {
            passed.extend(self.of_stage(stage).filter_map(|check| check.case.clone()).filter(is_over));
            passed.dedup();
        }
        self.checks.retain(|check| {
            let is_kept = check.case.as_ref().is_some_and(|case| {
                passed.contains(case) || (!selection.only.is_empty() && !selection.includes(case))
            });
            check.stage != stage || is_kept
        });
        if selection.only.is_empty() {
            self.finished.retain(|finished| *finished != stage);
        }
        passed
    }

    pub(super) fn start_case(&mut self, stage: Stage, case: String) -> Result<()> {
        self.running = Some(RunningCase { stage, case, launches: Vec::new() });
        self.write()
    }

    pub(super) fn launches(&mut self, launches: Vec<LaunchParameters>) -> Result<()> {
        if let Some(running) = &mut self.running {
            running.launches = launches;
        }
        self.write()
    }

    pub(super) fn check(&mut self, check: Check) -> Result<()> {
        self.checks.push(check);
        self.checks.sort_by_key(|check| place(check.stage));
        self.write()
    }

    /// Takes the case in progress, after its process ended.
    pub(super) fn take_running(&mut self) -> Option<RunningCase> {
        self.running.take()
    }

    /// Ends a stage. `is_finished` is false if some cases did not run.
    pub(super) fn end(&mut self, stage: Stage, is_finished: bool) -> Result<()> {
        self.running = None;
        if let Some(before) = self.environment.take()
            && is_finished
            && !self.of_stage(stage).eq(&before)
        {
            let file = self.path.as_deref().unwrap_or(Path::new("the file")).display();
            let text = format!("{file} is of another device, driver or library");
            return Err(Problem::new(text).hint("remove it, or give another file").into());
        }
        if is_finished && !self.finished.contains(&stage) {
            self.finished.push(stage);
            self.finished.sort_by_key(|stage| place(*stage));
        }
        self.write()
    }

    fn of_stage(&self, stage: Stage) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(move |check| check.stage == stage)
    }

    fn write(&self) -> Result<()> {
        let (Some(path), None) = (&self.path, &self.environment) else { return Ok(()) };
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        write_whole(path, &json)
    }
}

/// Index of a stage in the stage order.
fn place(stage: Stage) -> Option<usize> {
    Stage::ALL.iter().position(|other| *other == stage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_device::cuda::Search;

    fn config(repeats: u32) -> CheckConfig {
        CheckConfig {
            ordinal: 0,
            memory_bytes_max: 1,
            models: vec!["m.onnx".into()],
            batches: vec![1],
            repeats,
            warm_up_ms: 0,
            library_flops_min: 0,
            selection: CaseSelection::default(),
            search: Search::default(),
        }
    }

    fn check(stage: Stage, case: &str, passed: bool) -> Check {
        let json =
            serde_json::json!({"stage": stage, "case": case, "what": case, "passed": passed, "detail": ""});
        serde_json::from_value(json).unwrap()
    }

    /// Runs the cases that are not skipped, with these outcomes, and returns their names.
    fn run(kept: &mut ResultsFile, stage: Stage, cases: &[(&str, bool)], only: &[&str]) -> Vec<String> {
        let only = only.iter().map(|case| (*case).to_owned()).collect();
        let mut selection = CaseSelection { only, skip: Vec::new() };
        selection.skip = kept.begin(stage, &selection);
        let mut ran = Vec::new();
        for (case, passed) in cases.iter().filter(|(case, _)| selection.includes(case)) {
            kept.start_case(stage, (*case).to_owned()).unwrap();
            kept.check(check(stage, case, *passed)).unwrap();
            ran.push((*case).to_owned());
        }
        ran
    }

    fn whats(kept: &ResultsFile) -> Vec<&str> {
        kept.checks.iter().map(|check| check.what.as_str()).collect()
    }

    #[test]
    fn finished_stages_and_passed_cases_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpu.json");
        let open = || ResultsFile::open(Some(&path), &config(5)).unwrap();
        let mut kept = open();
        run(&mut kept, Stage::Memory, &[("a", true), ("b", false), ("c", true)], &[]);
        kept.end(Stage::Memory, true).unwrap();
        run(&mut kept, Stage::Launches, &[("d", true)], &[]);
        kept.end(Stage::Launches, true).unwrap();

        let mut kept = open();
        assert_eq!(whats(&kept), ["d", "a", "b", "c"], "in the order of the stages");
        let passed = [Stage::Launches, Stage::Memory, Stage::Networks].map(|stage| kept.has_passed(stage));
        assert_eq!(passed, [true, false, false]);
        assert_eq!(run(&mut kept, Stage::Memory, &[("a", true), ("b", true), ("c", true)], &[]), ["b"]);
        kept.end(Stage::Memory, true).unwrap();
        assert!(open().has_passed(Stage::Memory));
    }

    #[test]
    fn interrupted_stage_resumes_at_its_interrupted_case() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpu.json");
        let open = || ResultsFile::open(Some(&path), &config(5)).unwrap();
        // "b" has one check, but the run was interrupted before the case ended.
        run(&mut open(), Stage::Memory, &[("a", true), ("b", true)], &[]);
        let mut kept = open();
        assert!(!kept.has_passed(Stage::Memory));
        assert_eq!(kept.cut_off_in().map(|running| running.case.as_str()), Some("b"));
        let cases = [("a", true), ("b", true), ("c", true)];
        assert_eq!(run(&mut kept, Stage::Memory, &cases, &[]), ["b", "c"]);
        kept.end(Stage::Memory, true).unwrap();
        assert_eq!(whats(&open()), ["a", "b", "c"]);
    }

    #[test]
    fn single_case_replaces_only_its_own_checks() {
        let mut kept = ResultsFile::open(None, &config(5)).unwrap();
        run(&mut kept, Stage::Memory, &[("a", true), ("b", false)], &[]);
        kept.end(Stage::Memory, true).unwrap();
        assert_eq!(run(&mut kept, Stage::Memory, &[("a", true), ("b", true)], &["b"]), ["b"]);
        assert_eq!(whats(&kept), ["a", "b"]);
        assert!(kept.has_passed(Stage::Memory));
    }

    #[test]
    fn results_file_of_other_settings_or_machine_is_rejected_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpu.json");
        let mut kept = ResultsFile::open(Some(&path), &config(5)).unwrap();
        run(&mut kept, Stage::Environment, &[("driver 12", true)], &[]);
        kept.end(Stage::Environment, true).unwrap();
        let before = std::fs::read(&path).unwrap();
        let other = ResultsFile::open(Some(&path), &config(6)).unwrap_err().to_string();
        assert!(other.contains("other models, options"), "{other}");
        let mut kept = ResultsFile::open(Some(&path), &config(5)).unwrap();
        run(&mut kept, Stage::Environment, &[("driver 13", true)], &[]);
        let other = kept.end(Stage::Environment, true).unwrap_err().to_string();
        assert!(other.contains("another device, driver"), "{other}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
        std::fs::write(&path, "[]").unwrap();
        let other = ResultsFile::open(Some(&path), &config(5)).unwrap_err().to_string();
        assert!(other.contains("is no file of `weir doctor --gpu`"), "{other}");
    }
}
