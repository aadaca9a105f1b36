//! What `weir doctor --gpu OUT` keeps in a file from stage to stage, so that a run which was cut off goes on where it was.

use crate::error::Problem;
use crate::files::write_whole;
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use weir_inference::gpu_check::{Check, CheckConfig, Stage};

/// The file's contents.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    of: Of,
    /// In the order of the stages.
    pub(super) checks: Vec<Check>,
}

/// What the checks are of: others do not go into the same file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Of {
    weir: String,
    gpu_device: u32,
    models: Vec<PathBuf>,
    batches: Vec<u32>,
    repeats: u32,
}

impl Kept {
    /// What the file has already, or nothing yet.
    pub(super) fn open(path: Option<&Path>, config: &CheckConfig) -> Result<Self> {
        let CheckConfig { ordinal, models, batches, repeats, .. } = config;
        let of = Of {
            weir: env!("CARGO_PKG_VERSION").to_owned(),
            gpu_device: *ordinal,
            models: models.clone(),
            batches: batches.clone(),
            repeats: *repeats,
        };
        let Some(path) = path else { return Ok(Self { of, checks: Vec::new() }) };
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self { of, checks: Vec::new() }),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let hint = "remove it, or give another file";
        let kept: Self = serde_json::from_slice(&bytes).map_err(|error| {
            Problem::new(format!("{} has something else in it: {error}", path.display())).hint(hint)
        })?;
        if kept.of != of {
            let text = format!("{} is of checks with other models, options or another weir", path.display());
            return Err(Problem::new(text).hint(hint).into());
        }
        Ok(kept)
    }

    /// Whether nothing was wrong with a stage that is there. What there is on the machine is looked at each time.
    pub(super) fn has_passed(&self, stage: Stage) -> bool {
        if stage == Stage::Environment {
            return false;
        }
        let mut of_stage = self.checks.iter().filter(|check| check.stage == stage).peekable();
        of_stage.peek().is_some() && of_stage.all(|check| check.passed)
    }

    /// A stage is over: these are its checks. Whether they are what they were, if they were there.
    pub(super) fn put(&mut self, stage: Stage, checks: Vec<Check>) -> bool {
        let before: Vec<_> = self.checks.extract_if(.., |check| check.stage == stage).collect();
        let is_same = before.is_empty() || before == checks;
        self.checks.extend(checks);
        let place = |check: &Check| Stage::ALL.iter().position(|stage| *stage == check.stage);
        self.checks.sort_by_key(place);
        is_same
    }

    pub(super) fn write(&self, path: Option<&Path>) -> Result<()> {
        let Some(path) = path else { return Ok(()) };
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        write_whole(path, &json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_device::cuda::Search;

    fn config(repeats: u32) -> CheckConfig {
        let (models, search) = (vec!["m.onnx".into()], Search::default());
        CheckConfig { ordinal: 0, memory_bytes_max: 1, models, batches: vec![1], repeats, search }
    }

    fn check(stage: &str, what: &str, passed: bool) -> Check {
        let json = serde_json::json!({"stage": stage, "what": what, "passed": passed, "detail": ""});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn what_was_right_is_kept_and_what_was_wrong_is_done_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpu.json");
        let mut kept = Kept::open(Some(&path), &config(5)).unwrap();
        assert!(kept.put(Stage::Memory, vec![check("memory", "a", true), check("memory", "b", false)]));
        assert!(kept.put(Stage::Launches, vec![check("launches", "c", true)]));
        kept.write(Some(&path)).unwrap();
        let mut kept = Kept::open(Some(&path), &config(5)).unwrap();
        let whats = |kept: &Kept| kept.checks.iter().map(|check| check.what.clone()).collect::<Vec<_>>();
        assert_eq!(whats(&kept), ["c", "a", "b"]);
        assert_eq!(
            [Stage::Launches, Stage::Memory, Stage::Networks].map(|stage| kept.has_passed(stage)),
            [true, false, false]
        );
        assert!(!kept.put(Stage::Memory, vec![check("memory", "d", true)]), "they are others");
        assert_eq!(whats(&kept), ["c", "d"]);
        let other = Kept::open(Some(&path), &config(6)).unwrap_err().to_string();
        assert!(other.contains("other models, options"), "{other}");
        std::fs::write(&path, "[]").unwrap();
        assert!(Kept::open(Some(&path), &config(5)).unwrap_err().to_string().contains("something else"));
    }
}
