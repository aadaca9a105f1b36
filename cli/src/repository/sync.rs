//! Pushes the versions of a repository that a node does not have.

use super::folder::{self, RepositoryModel};
use crate::client::Client;
use crate::declaration::model_file;
use crate::error::{Problem, one_line};
use crate::output::OutputSettings;
use crate::uploads::{ModelUpload, manifest_fields};
use anyhow::{Result, anyhow};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use weir_types::api::{Model, ModelVersion};
use weir_types::{Name, Version};

/// A repository, and the node that serves its models.
pub(crate) struct RepositorySync {
    pub(crate) folder: PathBuf,
    pub(crate) client: Client,
    pub(crate) output: OutputSettings,
    pub(crate) allow_signature_change: bool,
}

/// Result of a synchronisation, as `--json` prints it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SyncReport {
    pub(crate) models: Vec<SyncedModel>,
}

/// A model of the repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SyncedModel {
    /// Name of its folder.
    name: String,
    /// Versions that the node has from now on.
    pushed: Vec<Version>,
    /// Versions that the node had already.
    unchanged: Vec<Version>,
    /// The version that requests without a version get, if the repository does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    other_active: Option<Version>,
    /// Settings of `config.pbtxt` that have no effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    without_effect: Vec<String>,
    /// Why not all versions are on the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl RepositorySync {
    /// Pushes what the node does not have. Models that cannot be pushed are in the report and do not
    /// prevent the others. Stops before the next version if `stop` is set.
    ///
    /// # Errors
    /// The repository cannot be read, or the node cannot be asked for its models.
    pub(crate) fn run(&self, stop: &AtomicBool) -> Result<SyncReport> {
        let found = folder::read(&self.folder)?;
        let on_node: Vec<Model> = self.client.get("/v1/models", "list the models")?;
        let on_node: BTreeMap<_, _> =
            on_node.into_iter().map(|model| (model.active.name.clone(), model)).collect();
        let mut report = SyncReport::default();
        for (name, model) in found {
            let mut synced = SyncedModel { name, ..SyncedModel::default() };
            let done = model.map_err(|why| anyhow!(why)).and_then(|model| {
                synced.without_effect = model.without_effect.iter().cloned().collect();
                self.push_missing(&model, on_node.get(&model.name), &mut synced, stop)
            });
            synced.error = done.err().map(|error| described(&error));
            report.models.push(synced);
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(report)
    }

    /// Pushes the versions that are not on the node, the lowest first, and compares the others.
    fn push_missing(
        &self,
        model: &RepositoryModel,
        on_node: Option<&Model>,
        synced: &mut SyncedModel,
        stop: &AtomicBool,
    ) -> Result<()> {
        for (&version, file) in &model.versions {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            if on_node.is_some_and(|on_node| on_node.versions.contains(&Version(version))) {
                self.compare(model, version, file)?;
                synced.unchanged.push(Version(version));
                continue;
            }
            self.push(model, version, file)?;
            self.output.note(format_args!("pushed {}:{version}", model.name));
            synced.pushed.push(Version(version));
        }
        let active = on_node.map(|on_node| on_node.active.version);
        let newest = model.versions.keys().next_back().copied().map(Version);
        synced.other_active = active.filter(|active| newest.is_some_and(|newest| *active > newest));
        Ok(())
    }

    fn push(&self, model: &RepositoryModel, version: u32, file: &Path) -> Result<()> {
        let query = if self.allow_signature_change { "?allow_signature_change=true" } else { "" };
        let path = format!("/v1/models/{}/versions/{version}{query}", model.name);
        let fields = manifest_fields(&model.manifest)?;
        ModelUpload { path: &path, name: &model.name, file, fields }.send(&self.client, self.output)?;
        Ok(())
    }

    /// Checks that the version on the node is that of the repository.
    fn compare(&self, model: &RepositoryModel, version: u32, file: &Path) -> Result<()> {
        let RepositoryModel { name, manifest, .. } = model;
        let path = format!("/v1/models/{name}/versions/{version}");
        let on_node: ModelVersion = self.client.get(&path, &format!("show {name}:{version}"))?;
        let content = model_file(file.to_owned()).map_err(Problem::new)?;
        if content.digest() != on_node.digest {
            return Err(differs(name, version, "file").into());
        }
        if *manifest != on_node.manifest {
            return Err(differs(name, version, "settings").into());
        }
        Ok(())
    }
}

/// The error about a version that the node has with another content.
fn differs(name: &Name, version: u32, what: &str) -> Problem {
    let next = version.saturating_add(1);
    Problem::new(format!("version {version} is on the node with other {what}, and a version does not change"))
        .hint(format!("rename the folder {version}/ to {next}/, or remove the version: `weir models rm {name} --version {version}`"))
}

/// An error and its advice, in one line.
fn described(error: &anyhow::Error) -> String {
    let advice = error.downcast_ref::<Problem>().and_then(Problem::advice);
    let text = one_line(error);
    advice.map_or_else(|| text.clone(), |advice| format!("{text}; {advice}"))
}

impl SyncReport {
    /// The number of models with an error.
    pub(crate) fn failed(&self) -> usize {
        self.models.iter().filter(|model| model.error.is_some()).count()
    }

    /// The result for people, without models that did not change.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for model in &self.models {
            // Writing to a string does not fail.
            let _ = model.describe(&mut text);
        }
        let pushed: usize = self.models.iter().map(|model| model.pushed.len()).sum();
        let unchanged: usize = self.models.iter().map(|model| model.unchanged.len()).sum();
        let failed = self.failed();
        let models = self.models.len();
        let _ = write!(text, "models: {models}, pushed versions: {pushed}, unchanged versions: {unchanged}");
        let _ = if failed > 0 { writeln!(text, ", failed models: {failed}") } else { writeln!(text) };
        text
    }
}

impl SyncedModel {
    fn describe(&self, text: &mut String) -> std::fmt::Result {
        let Self { name, without_effect, .. } = self;
        if let Some(error) = &self.error {
            writeln!(text, "failed: {name}: {error}")?;
        }
        if !self.pushed.is_empty() && !without_effect.is_empty() {
            writeln!(text, "{name}: without effect in config.pbtxt: {}", without_effect.join(", "))?;
        }
        if let Some(active) = self.other_active {
            writeln!(
                text,
                "{name}: version {active} stays active, which the repository does not have; `weir models rm {name} --version {active}` removes it"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_names_failures_and_settings_without_effect() {
        let model = |name: &str| SyncedModel { name: name.to_owned(), ..SyncedModel::default() };
        let report = SyncReport {
            models: vec![
                SyncedModel {
                    pushed: vec![Version(2)],
                    without_effect: vec!["optimization".into()],
                    ..model("a")
                },
                SyncedModel {
                    unchanged: vec![Version(1)],
                    without_effect: vec!["parameters".into()],
                    ..model("b")
                },
                SyncedModel { unchanged: vec![Version(1)], other_active: Some(Version(4)), ..model("c") },
                SyncedModel { error: Some("no".into()), ..model("d") },
            ],
        };
        let expected = "a: without effect in config.pbtxt: optimization\n\
            c: version 4 stays active, which the repository does not have; `weir models rm c --version 4` removes it\n\
            failed: d: no\n\
            models: 4, pushed versions: 1, unchanged versions: 2, failed models: 1\n";
        assert_eq!(report.text(), expected);
        assert_eq!(report.failed(), 1);
    }

    #[test]
    fn changed_version_is_reported_with_the_next_number() {
        let error = anyhow::Error::from(differs(&"digits".parse().unwrap(), 3, "settings"));
        let text = described(&error);
        assert!(text.starts_with("version 3 is on the node with other settings"), "{text}");
        assert!(text.contains("to 4/") && text.contains("weir models rm digits --version 3"), "{text}");
    }
}
